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
    names = dict.fromkeys(each_row.checkpoint for each_row in rows)
    return made_report(
        settings={"reference": "tiny"},
        checkpoints=[checkpoint(name, base=base) for name in names],
        results=list(rows),
        caveats=["not for decisions"],
    )


def test_what_cannot_be_compared_is_refused():
    other_report = made(row("spark"), row("er", "nll_pii"))
    for name in ("mine", "er"):
        with pytest.raises(InputError, match="spark, er"):
            against(made(row(name)), other_report)


def lines(report: Report, other_report: Report) -> list[dict[str, str]]:
    """The table's lines, by its header."""
    table = against(report, other_report)
    return [dict(zip(table.header, line.texts, strict=True)) for line in table.rows]


def valued(name: str, value: float | None, **columns: Any) -> Row:
    """Delta_sel of a checkpoint, without an interval."""
    bare = (
        {} if value is None else {"low": None, "high": None, "interval_method": "none"}
    )
    variant = columns.pop("variant", "")
    return figure(name, f"matched|delta_sel|{variant}", value, **(bare | columns))


def test_each_figure_stands_beside_the_same_one_of_the_other_report():
    own_report = made(
        valued("m", 0.1), valued("m", 0.2, variant="change"), valued("n", 0.3)
    )
    other_report = made(
        valued("m", 0.7), valued("m", 0.8, variant="change"), valued("n", None)
    )
    first, second = lines(own_report, other_report)
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
    own_report = made(valued("m", 0.1, n=90, clusters=12), base="tiny")
    other_report = made(valued("m", 0.1, n=80, clusters=10), base="small")
    (line,) = lines(own_report, other_report)
    differences = line[render("against.differences")]
    assert differences == "base tiny / small; n 90 / 80; clusters 12 / 10"
    (line,) = lines(own_report, own_report)
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
    output = capsys.readouterr().out
    assert output.index(render("against.lead")[:40]) < output.index("ER+PTPC")
    assert "0.746 [0.385, 1.169] (SPARK)" in output
    assert (tmp_path / "report.md").read_text() == before


def test_the_papers_figures_are_those_of_audits():
    paper = read_report(PAPER)
    assert len(paper.results) == 502
    for paper_row in paper.results:
        assert paper_row.metric in {
            metric.name for metric in about(paper_row.audit).metrics
        }
        assert (
            None in (paper_row.value, paper_row.low)
            or paper_row.low <= paper_row.value <= paper_row.high
        )


def test_the_papers_figures_are_those_that_it_prints():
    """Digit by digit: each stands in the table that its note names, or in the text."""
    if not TEXTS:
        pytest.skip("the paper's text is not beside this checkout (../shared/paper)")
    text = TEXTS[0].read_text(encoding="utf-8").replace("$-$", "-").replace("$+$", "+")

    def numbers(label: str) -> set[float]:
        start = text.find(f"\\label{{{label}}}")
        table = label.startswith("tab:")
        table_text = text[start : text.index("\\end{table", start)] if table else text
        return {
            float(figure_text)
            for figure_text in re.findall(r"[-+]?\d+(?:\.\d+)?", table_text)
        }

    numbers_by_label: dict[str, set[float]] = {}
    for paper_row in read_report(PAPER).results:
        label = re.split(r"[,;]", paper_row.note)[0]
        numbers_there = numbers_by_label.setdefault(label, numbers(label))
        for value in (paper_row.value, paper_row.low, paper_row.high):
            if value is not None:
                scaled = {value, 100 * value, -value, -100 * value}
                assert any(abs(a - b) < 1e-9 for a in scaled for b in numbers_there), (
                    paper_row
                )
