"""Lines and progress on stderr: what is said on the side, to a person or a log."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from spark_audit.errors import masked, visible

SETTLED_SECONDS = 2.0
"""Seconds after which a rate says something about the time left."""

PLAIN_EVERY = 10.0
"""Seconds between two progress lines when stderr is no terminal."""


def say(text: str) -> None:
    """Print one or more plain lines on stderr, if anybody listens."""
    with contextlib.suppress(OSError):
        print(visible(masked(text), keep="\n"), file=sys.stderr, flush=True)


def awaited() -> bool:
    """Whether a person waits for the work: in a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A callback ``(what, done, total)`` that shows a rate and the time left.

    A bar when stderr is a terminal, else a plain line every ten seconds and at the end
    of each stage.
    """
    bars = None
    if not quiet and sys.stderr.isatty():
        from rich import progress as rich
        from rich.console import Console

        bars = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.TaskProgressColumn(),
            rich.TextColumn("{task.fields[rate]}"),
            rich.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
    tasks: dict[str, Any] = {}
    stages: dict[str, tuple[float, float, int]] = {}

    def update(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, told, before = stages.get(what, (now, -math.inf, 0))
        if done < before:
            # The same stage once more, of another command or checkpoint.
            start, told = now, -math.inf
        fresh, finished = told == -math.inf, 0 < total <= done
        due = finished or now - told >= PLAIN_EVERY
        stages[what] = (start, now if due else told, done)
        seconds = now - start
        rate = f"{done / seconds:,.0f}/s" if seconds > 0.5 and done else ""
        if bars is not None:
            if fresh:
                tasks[what] = bars.add_task(visible(what), rate="")
            bars.update(tasks[what], completed=done, total=total or None, rate=rate)
        elif due:
            line = f"{visible(what)}: {done}{f'/{total}' if total else ''} {rate}"
            if 0 < done < total and seconds > SETTLED_SECONDS:
                line += f", {seconds / done * (total - done):.0f} s left"
            print(line.rstrip(), file=sys.stderr, flush=True)

    with bars or nullcontext():
        yield (lambda what, done, total: None) if quiet else update
