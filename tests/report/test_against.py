"""A report beside another one, and the paper's printed figures as a report."""

import re
from pathlib import Path
from typing import Any

import pytest
from made_reports import checkpoint, figure, made_report

from spark_audit.audits import about
from spark_audit.cli.main import run
from spark_audit.errors import InputError
from spark_audit.report.against import against
from spark_audit.report.folder import read_report, write_report
from spark_audit.results import Report, Row
from spark_audit.sentences import render

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "reports" / "paper"
TEXTS = sorted((ROOT.parent / "shared" / "paper").glob("*.txt"))


def row(name: str, metric: str = "delta_sel", **columns: Any) -> Row:
    return figure(name, f"matched|{metric}", **{"n": 0, "clusters": 0, **columns})


def made(*rows: Row, base: str | None = "tiny") -> Report:
    names = dict.fromkeys(one.checkpoint for one in rows)
    return made_report(
        settings={"reference": "tiny"},
        checkpoints=[checkpoint(name, base=base) for name in names],
        results=list(rows),
        caveats=["not for decisions"],
    )


def test_what_cannot_be_compared_is_refused():
    theirs = made(row("spark"), row("er", "nll_pii"))
    for name in ("mine", "er"):
        with pytest.raises(InputError, match="no figure .* choose one of: spark, er"):
            against(made(row(name)), theirs)


def lines(report: Report, other: Report) -> list[dict[str, str]]:
    """The table's lines, by its header."""
    table = against(report, other)
    return [dict(zip(table.header, line.texts, strict=True)) for line in table.rows]


def valued(name: str, value: float | None, **columns: Any) -> Row:
    """Delta_sel of a checkpoint, without an interval."""
    bare = (
        {} if value is None else {"low": None, "high": None, "interval_method": "none"}
    )
    of = columns.pop("variant", "")
    return figure(name, f"matched|delta_sel|{of}", value, **(bare | columns))


def test_each_figure_stands_beside_the_same_one_of_the_other_report():
    here = made(valued("m", 0.1), valued("m", 0.2, variant="change"), valued("n", 0.3))
    there = made(
        valued("m", 0.7), valued("m", 0.8, variant="change"), valued("n", None)
    )
    first, second = lines(here, there)
    assert [first["figure"], second["figure"]] == [
        "matched.delta_sel",
        "matched.delta_sel.change",
    ]
    assert (first["here"], first["there"]) == ("0.100", "0.700 (m)")
    assert (second["here"], second["there"]) == ("0.200", "0.800 (m)")


def test_a_method_with_seeds_has_one_line_over_sources_and_seeds():
    overs = {"seeds": 0.3, "sources": 0.1, "both": 0.2}
    rows = [valued("m", value, interval_over=over) for over, value in overs.items()]
    seeds = [valued("m[1]", 0.5), valued("m[2]", 0.6)]
    (line,) = lines(made(*seeds, *rows), made(*seeds, *rows))
    assert (line["checkpoint"], line["here"]) == ("m", "0.200")


def test_what_the_two_figures_differ_in_is_told():
    here = made(valued("m", 0.1, n=90, clusters=12), base="tiny")
    there = made(valued("m", 0.1, n=80, clusters=10), base="small")
    (line,) = lines(here, there)
    told = line[render("against.differences")]
    assert told == "base tiny / small; n 90 / 80; clusters 12 / 10"
    (line,) = lines(here, here)
    assert line[render("against.differences")] == "-"


def test_the_command_prints_the_papers_figures_and_keeps_nothing(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    write_report(made(row("spark"), row("er-ptpc")), tmp_path, formats=["json", "md"])
    call = ["report", str(tmp_path), "--format", "md"]
    assert run([*call, "--against", str(tmp_path / "none")]) != 0
    before = (tmp_path / "report.md").read_text()
    capsys.readouterr()
    assert run([*call, "--against", str(PAPER)]) == 0
    shown = capsys.readouterr().out
    assert shown.index(render("against.lead")[:40]) < shown.index("ER+PTPC")
    assert "0.746 [0.385, 1.169] (SPARK)" in shown
    assert (tmp_path / "report.md").read_text() == before


def test_the_papers_figures_are_those_of_audits():
    paper = read_report(PAPER)
    assert len(paper.results) == 502
    for one in paper.results:
        assert one.metric in {metric.name for metric in about(one.audit).metrics}
        assert None in (one.value, one.low) or one.low <= one.value <= one.high


def test_the_papers_figures_are_those_that_it_prints():
    """Digit by digit: each stands in the table that its note names, or in the text."""
    if not TEXTS:
        pytest.skip("the paper's text is not beside this checkout (../shared/paper)")
    text = TEXTS[0].read_text(encoding="utf-8").replace("$-$", "-").replace("$+$", "+")

    def numbers(label: str) -> set[float]:
        start = text.find(f"\\label{{{label}}}")
        table = label.startswith("tab:")
        part = text[start : text.index("\\end{table", start)] if table else text
        return {float(one) for one in re.findall(r"[-+]?\d+(?:\.\d+)?", part)}

    known: dict[str, set[float]] = {}
    for one in read_report(PAPER).results:
        label = re.split(r"[,;]", one.note)[0]
        there = known.setdefault(label, numbers(label))
        for value in (one.value, one.low, one.high):
            if value is not None:
                scaled = {value, 100 * value, -value, -100 * value}
                assert any(abs(a - b) < 1e-9 for a in scaled for b in there), one
