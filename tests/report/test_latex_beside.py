"""Reports of several task orders or bases are one table, with the mean over orders."""

import stat
from pathlib import Path
from typing import Any

import pytest
from made_reports import figure, made_report

from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError
from spark_audit.report.folder import write_report
from spark_audit.report.writers.latex_beside import table_beside
from spark_audit.results import Report

ORDERS = ("fomc,yelp", "yelp,fomc")


def a_report(shift: float, **settings: Any) -> Report:
    """Last and an NLL of two methods; ``spark`` has no valid NLL."""
    rows = []
    for k, name in enumerate(("er", "spark")):
        last = figure(name, "utility|last", 0.5 + k / 8 + shift, unit="")
        rows += [last, figure(name, "nll|nll|pii", 2.5 + k + shift, unit="nats")]
    rows[-1] = rows[-1].model_copy(update={"status": "invalid", "note": "no"})
    return made_report("er", "spark", results=rows, settings=settings)


def of_orders() -> dict[str, Report]:
    shifts = (0.0, 0.0625)
    return {
        f"order-{k}": a_report(shift, reference="llama", **{"utility.order": order})
        for k, (shift, order) in enumerate(zip(shifts, ORDERS, strict=True))
    }


def lines(tex: str) -> list[list[str]]:
    """The cells of the table's lines."""
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")]
    rows = [line.removesuffix(r"\\") for line in body.splitlines() if "&" in line]
    return [[cell.strip() for cell in row.split("&")] for row in rows]


def test_each_order_is_a_block_and_the_last_one_their_mean():
    tex = table_beside(of_orders(), is_exact=True)
    blocks, names = zip(*(line[:2] for line in lines(tex)), strict=True)
    assert blocks == ("Order 1", "", "Order 2", "", "Mean", "")
    assert names == ("er", "spark") * 3
    table = lines(tex)
    assert table[0][3].startswith("0.5000 [")
    assert table[2][3].startswith("0.5625 [")
    # The mean of 0.5 and 0.5625, and of 2.5 and 2.5625.
    assert table[4][3:] == ["0.5312", "2.5312"]
    # One order of spark has no valid NLL.
    assert table[5][3:] == ["0.6562", "-"]
    assert r"Order 2: yelp $\rightarrow$ fomc" in tex


def test_reports_on_two_bases_are_named_after_them_and_have_no_mean():
    reports = {
        "a": a_report(0.0, reference="llama"),
        "b": a_report(0.1, reference="qwen"),
    }
    blocks = [line[0] for line in lines(table_beside(reports))]
    assert blocks == ["llama", "", "qwen", ""]


def test_reports_that_nothing_tells_apart_have_the_names_of_their_folders():
    reports = {"runs/a_1": a_report(0.0), "runs/b": a_report(0.1)}
    blocks = [line[0] for line in lines(table_beside(reports))]
    assert blocks == [r"runs/a\_1", "", "runs/b", ""]


def test_the_first_tasks_of_an_order_are_no_order_of_their_own():
    reports = of_orders()
    reports["early"] = a_report(0.1, reference="llama", **{"utility.order": "fomc"})
    blocks = [line[0] for line in lines(table_beside(reports))]
    assert blocks == ["order-0", "", "order-1", "", "early", ""]


def test_a_report_without_a_figure_of_the_table_is_named():
    rows = [figure("er", "matched|memory", 0.1)]
    reports = of_orders() | {"other": made_report("er", results=rows)}
    with pytest.raises(InputError) as caught:
        table_beside(reports)
    assert caught.value.where == "other"


@pytest.fixture
def folders(tmp_path) -> list[str]:
    for name, report in of_orders().items():
        write_report(report, tmp_path / name, formats=["json"])
    return [str(tmp_path / name) for name in of_orders()]


def test_the_command_writes_one_file_which_is_the_owners_if_it_is_exact(
    folders, tmp_path
):
    first, second = folders
    for name, more, mode in (("s", [], 0o644), ("e", ["--exact"], 0o600)):
        path = tmp_path / f"{name}.tex"
        words = ["report", first, "--beside", second, "-o", str(path), *more]
        assert command_line(words) == 0
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert "0.5625" not in (tmp_path / "s.tex").read_text()
    assert "0.5625" in (tmp_path / "e.tex").read_text()
    assert {path.name for path in Path(first).iterdir()} == {"report.json"}


@pytest.mark.parametrize(
    "more",
    [
        ["--beside", "{second}"],
        ["-o", "x.tex"],
        ["--beside", "{first}", "-o", "x.tex"],
        ["--beside", "{second}", "-o", "x.docx"],
        ["--beside", "{second}", "-o", "x"],
    ],
)
def test_what_lacks_a_file_or_a_second_report_is_refused(
    more, folders, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    first, second = folders
    words = [word.format(first=first, second=second) for word in more]
    assert command_line(["report", first, *words]) == 2
    assert not list(tmp_path.glob("x*"))
