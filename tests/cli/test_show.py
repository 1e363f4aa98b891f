"""Tables that hold every cell, and records as JSON."""

from __future__ import annotations

import json

import pytest

from spark_audit.cli import show as terminal
from spark_audit.report.cells import Cell, Line, Table


def test_tables_hold_every_cell_and_no_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = Line((Cell("[red]a[/red]"), Cell("1.5")))
    terminal.show_tables([Table("a title", ("name", "x"), (line,), ("a remark",))])
    out = capsys.readouterr().out
    for text in ("a title", "[red]a[/red]", "1.5", "a remark"):
        assert text in out


def test_records_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_records([{"b": None}], title="t", as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"b": None}]
