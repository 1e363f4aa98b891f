"""What a log shows of long work, and tables that hold every cell."""

from __future__ import annotations

import io
import json

import pytest

from spark_audit import terminal
from spark_audit.reports import Block


def test_plain_lines_give_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 104.0, 112.0, 120.0])
    monkeypatch.setattr("spark_audit.terminal.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    show = terminal._Lines(stream)
    show("scoring", 0, 400)
    show("scoring", 100, 400)  # 4 s after the last line: nothing is said
    show("scoring", 300, 400)
    show("scoring", 400, 400)
    assert stream.getvalue().splitlines() == [
        "scoring: 0/400",
        "scoring: 300/400 25/s, 4 s left",
        "scoring: 400/400 20/s",
    ]


def test_a_stage_that_begins_again_starts_its_clock_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 10.0, 500.0, 510.0])
    monkeypatch.setattr("spark_audit.terminal.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    show = terminal._Lines(stream)
    for done in (10, 100, 10, 100):
        show("scoring", done, 100)
    assert stream.getvalue().splitlines() == [
        "scoring: 10/100",
        "scoring: 100/100 10/s",
        "scoring: 10/100",
        "scoring: 100/100 10/s",
    ]


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress(quiet=True) as show:
        show("scoring", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_tables_hold_every_cell_and_no_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    block = Block("a title", ("name", "x"), (("[red]a[/red]", "1.5"),), ("a remark",))
    terminal.show_blocks([block])
    out = capsys.readouterr().out
    for text in ("a title", "[red]a[/red]", "1.5", "a remark"):
        assert text in out


def test_facts_and_records_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_facts({"a": 1}, as_json=True)
    terminal.show_records([{"b": None}], title="t", as_json=True)
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first) == {"a": 1}
    assert json.loads(second) == [{"b": None}]
