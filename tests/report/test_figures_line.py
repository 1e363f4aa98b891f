"""The line of figures of each finding, in ``report.json`` and in shared copies."""

import json

import pytest
from made_reports import figure, made_report

from spark_audit.report.audit_report import AuditReport
from spark_audit.report.disclosure.shared import disclosed, rounded_for_owner
from spark_audit.report.figures_line import SEPARATOR, figures_line
from spark_audit.report.folder import read_report, write_report
from spark_audit.results import Finding, Row

ROW = figure(
    "a",
    "matched|memory",
    -0.1234,
    low=-0.1876,
    high=-0.0512,
    unit="nats",
    no_effect=0.0,
)
TRAINED = figure("a", "matched|memory|trained", -0.2, unit="nats", clusters=207)
HELD_OUT = figure("a", "matched|memory|held_out", -0.1, unit="nats", clusters=102)


def finding(row: Row, claim: str = "memory") -> Finding:
    facts = {
        "text": "REMEMBERS.",
        "otherwise": "does not.",
        "trained": TRAINED,
        "held_out": HELD_OUT,
    }
    made_finding = Finding.on(
        row, claim, "said", facts=facts, p=0.00123, p_adjusted=0.0123
    )
    update = {"tests": 3}
    if claim == "nothing_shown":
        update["at_most"] = -0.2345
    return made_finding.model_copy(update=update)


def report(row: Row, claim: str = "memory") -> AuditReport:
    rows = [row, TRAINED, HELD_OUT]
    return made_report("base", "a", results=rows, findings=[finding(row, claim)])


def test_the_file_has_sentence_and_figures_apart(tmp_path):
    report_given = report(ROW)
    write_report(report_given, tmp_path, formats=["json"])
    (written,) = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert written["text"] == report_given.findings[0].text == "REMEMBERS."
    estimate, null, p, sides = written["figures"].split(SEPARATOR)
    assert estimate.startswith("+13% [+5%, +21%]")
    assert all(number in p for number in ("0.0012", "0.012"))
    assert all(count in sides for count in ("207", "102"))
    assert "0%" in null


def test_a_forged_line_or_sentence_is_not_believed(tmp_path):
    write_report(report(ROW), tmp_path, formats=["json"])
    path = tmp_path / "report.json"
    content = json.loads(path.read_text())
    honest = dict(content["findings"][0])
    content["findings"][0] |= {"figures": "+0% per token", "text": "Nothing leaks."}
    path.write_text(json.dumps(content))
    (read,) = read_report(tmp_path).findings
    assert (read.figures, read.text) == (honest["figures"], honest["text"])


def test_a_report_without_lines_of_figures_is_given_them(tmp_path):
    write_report(report(ROW), tmp_path, formats=["json"])
    path = tmp_path / "report.json"
    content = json.loads(path.read_text())
    figures = content["findings"][0].pop("figures")
    path.write_text(json.dumps(content))
    assert read_report(tmp_path).findings[0].figures == figures


@pytest.mark.parametrize("claim", ["memory", "nothing_shown"])
def test_a_shared_line_is_of_the_rounded_figures(claim):
    exact = report(ROW, claim)
    (shared,) = disclosed(exact).findings
    assert shared.value != exact.findings[0].value
    assert shared.figures == figures_line(shared)
    assert shared.figures != exact.findings[0].figures
    for exact_words in ("+13%", "+21%", "0.0012", "0.012", "27%"):
        assert exact_words not in shared.figures
    # Its own at-most stands in the exact line only where nothing was found.
    assert ("27%" in exact.findings[0].figures) == (claim == "nothing_shown")


@pytest.mark.parametrize("claim", ["memory", "nothing_shown"])
def test_withheld_figures_stand_in_no_line(claim):
    few = ROW.model_copy(update={"clusters": 2})
    (shared,) = disclosed(report(few, claim)).findings
    assert shared.value is None
    assert "%" not in shared.figures
    (owner,) = rounded_for_owner(report(few, claim)).findings
    assert owner.figures == figures_line(owner)


def test_what_is_void_could_hide_anything():
    void = finding(ROW, "nothing_shown").model_copy(
        update={"status": "void", "voided_by": "broken_model", "at_most": None}
    )
    assert "26%" not in figures_line(void)


def test_a_figure_without_a_null_is_shown_in_its_unit():
    bare = ROW.model_copy(update={"no_effect": None})
    (line, *_) = figures_line(finding(bare)).split(SEPARATOR)
    assert line == "-0.123 [-0.188, -0.051] nats per token"


def test_a_share_is_shown_in_per_cent():
    row = figure("a", "extract|greedy_rate", 0.25, low=0.125, high=0.5, no_effect=0.05)
    moved_finding = Finding.on(row, "moved", "said", facts={"text": "x."})
    assert figures_line(moved_finding) == "25.0% [12.5, 50.0]"


@pytest.mark.parametrize("place", ["nll|nll", "matched|delta_sel"])
def test_what_is_no_effect_of_a_leak_is_not_shown_as_one(place):
    """A described or exploratory change has no value without a leak."""
    row = figure("a", place, -0.25, unit="nats", no_effect=0.0)
    moved_finding = Finding.on(row, "moved", "said", facts={"text": "x."})
    assert figures_line(moved_finding) == "-0.250 [-0.375, 0.000] nats per token"


def test_no_line_of_figures_fails_whatever_a_finding_lacks():
    fields = ("value", "low", "high", "no_effect", "at_most", "p", "p_adjusted", "unit")
    full_finding = finding(ROW, "nothing_shown").model_copy(
        update={"family": "exploratory", "alone": "nothing_shown"}
    )
    for chosen in range(2 ** len(fields)):
        lacking = {
            name: "" if name == "unit" else None
            for k, name in enumerate(fields)
            if chosen >> k & 1
        }
        line = figures_line(full_finding.model_copy(update=lacking))
        assert "None" not in line
        assert bool(line) or "value" in lacking
