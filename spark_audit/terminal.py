"""How things look in a terminal: tables on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from spark_audit.reports import WIDE, Block, blocks, verdict
from spark_audit.results import Report, number

SETTLED = 2.0
"""Seconds after which a rate says something about the time left."""
PLAIN_EVERY = 10.0
"""Seconds between two progress lines when stderr is no terminal."""


def show_report(report: Report) -> None:
    """Verdict, guards that did not pass, and the tables."""
    console = _console()
    for audit, lines in verdict(report).items():
        if audit:
            console.print(f"\n{audit}", style="bold", markup=False)
        for line in lines:
            console.print(f"- {line}", markup=False)
    for guard in report.guards:
        if guard.passed is not True:
            word = "GUARD FAILED" if guard.passed is False else "warning"
            place = f" ({guard.checkpoint})" if guard.checkpoint else ""
            console.print(f"{word}: {guard.name}{place}: {guard.detail}", markup=False)
    audits = {row.audit for row in report.results}
    show_blocks(blocks(report, brief=not audits <= set(WIDE)))


def show_blocks(tables: Sequence[Block]) -> None:
    """Tables one below the other, remarks under each."""
    console = _console()
    for block in tables:
        table = Table(title=block.title, title_justify="left", title_style="bold")
        for position, name in enumerate(block.header):
            table.add_column(name, justify="left" if position == 0 else "right")
        for row in block.rows:
            table.add_row(*row)
        console.print()
        console.print(table, markup=False)
        for remark in block.remarks:
            console.print(remark, markup=False)


def show_facts(facts: Mapping[str, Any], *, as_json: bool = False) -> None:
    """Names and values, aligned, or as one JSON object."""
    if as_json:
        sys.stdout.write(json.dumps(dict(facts)) + "\n")
        return
    width = max(map(len, facts), default=0)
    for key, value in facts.items():
        sys.stdout.write(f"{key:<{width}}  {value}\n")


def show_records(
    records: Sequence[Mapping[str, Any]], *, title: str, as_json: bool = False
) -> None:
    """Records of the same fields as a table, or as a JSON list."""
    if as_json:
        sys.stdout.write(json.dumps([dict(record) for record in records]) + "\n")
        return
    header = list(dict.fromkeys(key for record in records for key in record))
    rows = [tuple(_cell(record.get(key)) for key in header) for record in records]
    names = tuple(key.replace("_", " ") for key in header)
    show_blocks([Block(title=title, header=names, rows=tuple(rows))])


def _cell(value: object) -> str:
    return number(value) if isinstance(value, float | None) else str(value)


def _console() -> Console:
    # Piped output keeps whole lines: there is no terminal to wrap to.
    width = None if sys.stdout.isatty() else 200
    return Console(highlight=False, markup=False, width=width)


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A callback ``(what, done, total)`` that shows a rate and the time left.

    A bar when stderr is a terminal, else a plain line every ten seconds and at the end
    of each stage.
    """
    if quiet:
        yield lambda what, done, total: None
    elif sys.stderr.isatty():
        with _bars() as update:
            yield update
    else:
        yield _Lines(sys.stderr)


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, tuple[TaskID, float]] = {}
    reached: dict[str, int] = {}
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks or done < reached[what]:
                # The same stage once more, of another command or checkpoint.
                task = bars.add_task(what, total=total or None, rate="")
                tasks[what] = (task, time.monotonic())
            reached[what] = done
            task, start = tasks[what]
            rate = _rate(done, time.monotonic() - start)
            bars.update(task, completed=done, total=total or None, rate=rate)

        yield update


class _Lines:
    """Plain progress lines for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stages: dict[str, tuple[float, float, int]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, last, before = self._stages.get(what, (now, float("-inf"), 0))
        if done < before:
            # The same stage once more, of another command or checkpoint.
            start, last = now, float("-inf")
        finished = total > 0 and done >= total
        if not finished and now - last < PLAIN_EVERY:
            return
        self._stages[what] = (start, now, done)
        seconds = now - start
        line = f"{what}: {done}/{total} {_rate(done, seconds)}"
        if 0 < done < total and seconds > SETTLED:
            line += f", {seconds / done * (total - done):.0f} s left"
        self._stream.write(line.rstrip() + "\n")
        self._stream.flush()


def _rate(done: int, seconds: float) -> str:
    return f"{done / seconds:,.0f}/s" if seconds > 0.5 and done else ""
