"""Write messages and progress for a person or a log.

They go to stderr. In a notebook, where stderr looks like a failure, they go to the
output of the cell, where a bar is a line of its own (``cell_line.py``).
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeAlias

from spark_audit.cell_line import COLUMNS_OF_CELL_LINE, CellLine
from spark_audit.errors import masked, visible
from spark_audit.spoken_options import as_called

if TYPE_CHECKING:
    from tqdm import tqdm

Update: TypeAlias = Callable[[str, int, int], None]
"""A callback with the stage, the amount done and the total (0: unknown)."""

SETTLED_SECONDS = 2.0
"""Seconds after which a rate can predict the time left."""

SECONDS_FOR_RATE = 0.5
"""Seconds after which a rate is shown."""

PLAIN_EVERY = 10.0
"""Seconds between two progress lines where no person watches."""


def say(text: str) -> None:
    """Print one or more plain lines, if the stream is open; a bar stays below them.

    Options are named as the caller writes them (``spoken_options.py``).
    """
    text = visible(masked(as_called(text)), keep="\n")
    stream = _stream()
    # The stream may be closed, or a pipe whose reader has ended.
    with contextlib.suppress(OSError), _bars_aside(stream):
        print(text, file=stream, flush=True)


def is_notebook() -> bool:
    """Return whether this process runs the cells of a notebook.

    The shell of a notebook has a kernel. That a package has imported ``ipykernel`` says
    nothing: a script that runs notebooks does, too.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def is_watched() -> bool:
    """Return whether a person watches the work, in a terminal or a notebook."""
    return sys.stderr.isatty() or is_notebook()


def _stream() -> TextIO:
    """Return where messages and progress go."""
    return sys.stdout if is_notebook() else sys.stderr


@contextmanager
def _bars_aside(stream: TextIO) -> Iterator[None]:
    """Take bars off a stream for a moment, so that no line is written into them."""
    # Without the library there is no bar.
    if "tqdm" not in sys.modules:
        yield
        return

    from tqdm import tqdm

    with tqdm.external_write_mode(file=stream):
        yield


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Update]:
    """Yield a callback ``(stage, done, total)`` that shows a rate and the time left.

    If a person watches, it shows one bar, that of the present stage, which is gone at
    the end. Otherwise it prints a plain line every ten seconds and at the end of each
    stage.
    """
    if quiet:
        yield lambda stage, done, total: None
    elif is_watched():
        bar = _Bar()
        try:
            yield bar.update
        finally:
            bar.close()
    else:
        yield _ProgressLines().update


class _Bar:
    """One bar in a terminal or notebook, which shows one stage after the other."""

    def __init__(self) -> None:
        # All stages are drawn on the same line.
        self._cell_line = CellLine() if is_notebook() else None
        self._stage = ""
        self._shown: tqdm[None] | None = None

    def update(self, name: str, done: int, total: int) -> None:
        """Show the progress of a stage; the parameters are those of :data:`Update`."""
        bar = self._shown
        # A smaller amount means that another checkpoint begins the stage.
        if bar is None or name != self._stage or done < bar.n:
            self._end_stage()
            bar = _new_bar(name, done, total, cell_line=self._cell_line)
            self._shown = bar
            self._stage = name

        bar.total = total or None
        bar.update(done - bar.n)
        # A stage that ends between two displays is still shown as whole.
        if 0 < total <= done:
            bar.refresh()

    def close(self) -> None:
        """Take the bar away."""
        self._end_stage()
        if self._cell_line is not None:
            self._cell_line.clear()

    def _end_stage(self) -> None:
        """End the bar of the present stage."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None


def _new_bar(
    name: str, done: int, total: int, *, cell_line: CellLine | None
) -> tqdm[None]:
    """Return the bar of a stage; below one piece a second it says seconds a piece.

    Parameters
    ----------
    cell_line
        Where a notebook shows it; ``None``: in the terminal.
    """
    from tqdm import tqdm

    return tqdm(
        desc=visible(name),
        total=total or None,
        initial=done,
        leave=False,
        dynamic_ncols=cell_line is None,
        ncols=None if cell_line is None else COLUMNS_OF_CELL_LINE,
        file=sys.stderr if cell_line is None else cell_line,
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


class _ProgressLines:
    """The stages of the work, displayed as lines."""

    def __init__(self) -> None:
        # By the name of a stage.
        self._stages: dict[str, _Stage] = {}

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
        is_finished = 0 < total <= done
        is_due = is_finished or now - stage.shown_at >= PLAIN_EVERY
        stage.done = done
        if not is_due:
            return

        stage.shown_at = now
        line = _progress_line(name, done, total, seconds=now - stage.began_at)
        print(line, file=sys.stderr, flush=True)


def _progress_line(name: str, done: int, total: int, *, seconds: float) -> str:
    """Return a line such as ``scoring: 20/100 4/s, 20 s left``."""
    of_total = f"/{total}" if total else ""
    rate = _rate(done, seconds) if seconds > SECONDS_FOR_RATE else ""
    line = f"{visible(name)}: {done}{of_total} {rate}"
    if 0 < done < total and seconds > SETTLED_SECONDS:
        seconds_left = seconds / done * (total - done)
        line += f", {seconds_left:.0f} s left"
    return line.rstrip()


def _rate(done: int, seconds: float) -> str:
    """Return the speed in words: ``4/s``, or ``2.5 s each`` if it is slow."""
    if done == 0:
        return ""
    if done >= seconds:
        return f"{done / seconds:,.0f}/s"
    return f"{seconds / done:,.1f} s each"
