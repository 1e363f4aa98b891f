"""SIGINT, SIGTERM and SIGHUP are one interrupt: work stops, keeps what it has, resumes.

Imported before anything that takes time, and importing nothing that does.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

from spark_audit.errors import masked, visible

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ECHO = 5.0
"""Seconds in which another SIGTERM or SIGHUP says nothing new: a closed terminal, a
launcher and an init system send several, and what is being written must be finished."""

_last: float | None = None
"""When the command that runs now was interrupted."""

REPEAT_SECONDS = 0.05
"""Seconds after which an interrupt that got lost comes again."""


def _interrupt(signum: int, frame: object) -> None:
    global _last
    now = time.monotonic()
    if signum == signal.SIGINT or _last is None or now - _last > ECHO:
        _last = now
        raise KeyboardInterrupt


def _ignored(
    unraisable: sys.UnraisableHookArgs,
    hook: Callable[[sys.UnraisableHookArgs], object],
) -> None:
    """Tell an error in a ``__del__`` or the like; an interrupt there counts."""
    global _last
    if unraisable.exc_type is not KeyboardInterrupt:
        hook(unraisable)
        return
    _last = None
    timer = threading.Timer(REPEAT_SECONDS, _thread.interrupt_main, [signal.SIGTERM])
    timer.daemon = True
    timer.start()


def interrupted() -> bool:
    """Whether the command that runs now was, though libraries may make it an error."""
    return _last is not None


def take_over() -> dict[signal.Signals, object]:
    """Let the signals interrupt from now on; what they did before.

    Signals that are ignored (``nohup``, a job in the background) stay so, and those
    that a program of its own handles are left to it.
    """
    global _last
    _last = None
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before: dict[signal.Signals, object] = {}
    if threading.current_thread() is threading.main_thread():
        for one in SIGNALS:
            if (handler := signal.getsignal(one)) in usual:
                signal.signal(one, _interrupt)
                before[one] = handler
    if signal.SIGTERM in before:
        sys.unraisablehook = partial(_ignored, hook=sys.unraisablehook)
    return before


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """The signals interrupt inside the block; afterwards they do what they did.

    Python knows signals in its main thread only: in another one nothing is changed.
    """
    hook = sys.unraisablehook
    before = take_over()
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for one, handler in before.items():
            signal.signal(one, handler)  # type: ignore[arg-type]


def start(program: str, load: Callable[[], Callable[[Sequence[str]], int]]) -> NoReturn:
    """A console script: run what ``load`` imports on what was typed, and leave."""
    take_over()
    if not sys.warnoptions:
        import logging

        # Libraries warn of kernels that they lack and of what they will change: nothing
        # that a user of these commands can mend. `python -W default` shows it.
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
    try:
        code = load()(sys.argv[1:])
    except KeyboardInterrupt:
        code = say_interrupted(program, sys.argv[1:])
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:  # or Python makes an exit code of its own of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    # An interrupt that passed an ``exec`` of text (a dataclass being made) stays marked
    # as unhandled, and ``python -m`` then dies of the signal whatever the code; another
    # ``exec`` takes the mark away.
    exec("")
    sys.exit(code)


def say_interrupted(
    program: str, arguments: Sequence[str], *, verb: str = "resume"
) -> int:
    """Tell on stderr how the command goes on; its exit code.

    Of the processes of one launch the first one tells it.
    """
    if not _launched() or os.environ.get("RANK", "0") == "0":
        text = f"interrupted; {again(program, arguments, verb=verb)}"
        # The terminal may be what has gone, and a closed stream is None.
        with contextlib.suppress(OSError, AttributeError):
            sys.stderr.write(visible(masked(f"\n{program}: {text}\n"), keep="\n"))
            sys.stderr.flush()
    return 130


def again(program: str, arguments: Sequence[str], *, verb: str = "resume") -> str:
    """``resume with: ...``, by torchrun where it started this command."""
    words = [program]
    if _launched():
        count = os.environ.get("LOCAL_WORLD_SIZE", "1")
        module = program.replace("-", "_")
        words = ["torchrun", "--nproc-per-node", count, "-m", module]
    return f"{verb} with: {shlex.join([*words, *arguments])}"


def _launched() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
