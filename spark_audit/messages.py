"""Write messages and progress to stderr, for a person or a log."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.errors import masked, visible
from spark_audit.spoken_options import as_called

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Update: TypeAlias = Callable[[str, int, int], None]
"""A callback with the stage, the amount done and the total (0: unknown)."""

SETTLED_SECONDS = 2.0
"""Seconds after which a rate can predict the time left."""

SECONDS_FOR_RATE = 0.5
"""Seconds after which a rate is shown."""

PLAIN_EVERY = 10.0
"""Seconds between two progress lines when stderr is no terminal."""


def say(text: str) -> None:
    """Print one or more plain lines on stderr, if it is open.

    Options are named as the caller writes them (``spoken_options.py``).
    """
    text = as_called(text)
    # stderr may be closed, or a pipe whose reader has ended.
    with contextlib.suppress(OSError):
        print(visible(masked(text), keep="\n"), file=sys.stderr, flush=True)


def is_watched() -> bool:
    """Return whether a person watches the work, in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Update]:
    """Yield a callback ``(stage, done, total)`` that shows a rate and the time left.

    If stderr is a terminal, it shows a bar. Otherwise it prints a plain line every ten
    seconds and at the end of each stage.
    """
    if quiet:
        yield lambda stage, done, total: None
    elif sys.stderr.isatty():
        with _bars() as bars:
            yield _Stages(bars).update
    else:
        yield _Stages(bars=None).update


def _bars() -> Progress:
    """Return progress bars on stderr, one for each stage."""
    from rich import progress as rich
    from rich.console import Console

    return rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TaskProgressColumn(),
        rich.TextColumn("{task.fields[rate]}"),
        rich.TimeRemainingColumn(),
        console=Console(stderr=True),
    )


@dataclass
class _Stage:
    """The progress of a stage of the work.

    Attributes
    ----------
    began_at, shown_at
        Times of its beginning and of its last display, in monotonic seconds.
    done
        Amount done at the last update.
    """

    began_at: float
    shown_at: float = -math.inf
    done: int = 0

    @property
    def is_new(self) -> bool:
        """Return whether it has not been shown yet."""
        return self.shown_at == -math.inf


class _Stages:
    """The stages of the work, displayed as bars or as lines."""

    def __init__(self, bars: Progress | None) -> None:
        self._bars = bars
        # By the name of a stage: its progress, and its bar.
        self._stages: dict[str, _Stage] = {}
        self._bar_ids: dict[str, TaskID] = {}

    def update(self, name: str, done: int, total: int) -> None:
        """Show the progress of a stage; the parameters are those of :data:`Update`."""
        now = time.monotonic()
        stage = self._stages.get(name)
        if stage is None or done < stage.done:
            # A smaller amount means that another command or checkpoint begins the
            # stage.
            stage = _Stage(began_at=now)
            self._stages[name] = stage

        # The first update of a stage is always due, since it was never shown.
        is_new = stage.is_new
        is_finished = 0 < total <= done
        is_due = is_finished or now - stage.shown_at >= PLAIN_EVERY
        stage.done = done
        if is_due:
            stage.shown_at = now

        seconds = now - stage.began_at
        rate = ""
        if done and seconds > SECONDS_FOR_RATE:
            rate = f"{done / seconds:,.0f}/s"

        # A bar is moved at each update, and a line is printed only when it is due.
        if self._bars is not None:
            if is_new:
                self._bar_ids[name] = self._bars.add_task(visible(name), rate="")
            self._bars.update(
                self._bar_ids[name], completed=done, total=total or None, rate=rate
            )
        elif is_due:
            line = _progress_line(name, done, total, seconds=seconds, rate=rate)
            print(line, file=sys.stderr, flush=True)


def _progress_line(
    name: str, done: int, total: int, *, seconds: float, rate: str
) -> str:
    """Return a line such as ``scoring: 20/100 4/s, 20 s left``."""
    of_total = f"/{total}" if total else ""
    line = f"{visible(name)}: {done}{of_total} {rate}"
    if 0 < done < total and seconds > SETTLED_SECONDS:
        seconds_left = seconds / done * (total - done)
        line += f", {seconds_left:.0f} s left"
    return line.rstrip()
