"""The progress of long work, on stderr: a bar, or plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from spark_audit.errors import visible

SETTLED = 2.0
"""Seconds after which a rate says something about the time left."""
PLAIN_EVERY = 10.0
"""Seconds between two progress lines when stderr is no terminal."""


def awaited() -> bool:
    """Whether a person waits for it: in a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


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
                task = bars.add_task(visible(what), total=total or None, rate="")
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
        of = f"/{total}" if total else ""
        line = f"{visible(what)}: {done}{of} {_rate(done, seconds)}"
        if 0 < done < total and seconds > SETTLED:
            line += f", {seconds / done * (total - done):.0f} s left"
        self._stream.write(line.rstrip() + "\n")
        self._stream.flush()


def _rate(done: int, seconds: float) -> str:
    return f"{done / seconds:,.0f}/s" if seconds > 0.5 and done else ""
