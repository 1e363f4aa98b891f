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

REPEAT_SECONDS = 0.05
"""Seconds after which an interrupt that got lost comes again."""

INTERRUPTED_EXIT_CODE = 130
"""Exit code of an interrupt: 128 and the number of SIGINT, as shells have it."""

_interrupted_at: float | None = None
"""When the command that runs now was interrupted last, in monotonic seconds."""


def _interrupt(signum: int, frame: object) -> None:
    """Raise ``KeyboardInterrupt``, for every SIGINT and for other signals once."""
    global _interrupted_at
    now = time.monotonic()
    is_echo = _interrupted_at is not None and now - _interrupted_at <= ECHO
    if is_echo and signum != signal.SIGINT:
        return

    _interrupted_at = now
    raise KeyboardInterrupt


def _hook_of_unraisable(
    unraisable: sys.UnraisableHookArgs,
    previous_hook: Callable[[sys.UnraisableHookArgs], object],
) -> None:
    """Report an error in a ``__del__`` or the like; send an interrupt there again.

    Python cannot raise in such a place: an interrupt that arrives there would be lost.
    """
    global _interrupted_at
    if unraisable.exc_type is not KeyboardInterrupt:
        previous_hook(unraisable)
        return

    _interrupted_at = None
    timer = threading.Timer(REPEAT_SECONDS, _thread.interrupt_main, [signal.SIGTERM])
    timer.daemon = True
    timer.start()


def interrupted() -> bool:
    """Whether the command that runs now was, though libraries may make it an error."""
    return _interrupted_at is not None


def take_over() -> dict[signal.Signals, object]:
    """Let the signals interrupt from now on; return what handled them before.

    Signals that are ignored (``nohup``, a job in the background) stay so, and those
    that a program of its own handles are left to it. Python knows signals in its main
    thread only: in another one nothing is changed.
    """
    global _interrupted_at
    _interrupted_at = None
    if threading.current_thread() is not threading.main_thread():
        return {}

    default_handlers = (signal.SIG_DFL, signal.default_int_handler)
    handlers_before: dict[signal.Signals, object] = {}
    for signum in SIGNALS:
        handler = signal.getsignal(signum)
        if handler in default_handlers:
            signal.signal(signum, _interrupt)
            handlers_before[signum] = handler

    if signal.SIGTERM in handlers_before:
        sys.unraisablehook = partial(
            _hook_of_unraisable, previous_hook=sys.unraisablehook
        )
    return handlers_before


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """Let the signals interrupt inside the block; afterwards they do what they did."""
    hook_before = sys.unraisablehook
    handlers_before = take_over()
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        for signum, handler in handlers_before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]


def start(program: str, load: Callable[[], Callable[[Sequence[str]], int]]) -> NoReturn:
    """Run what ``load`` imports on what was typed, and leave: a console script."""
    take_over()
    if not sys.warnoptions:
        import logging

        # Libraries warn of kernels that they lack and of what they will change: nothing
        # that a user of these commands can mend. `python -W default` shows it.
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)

    try:
        exit_code = load()(sys.argv[1:])
    except KeyboardInterrupt:
        exit_code = say_interrupted(program, sys.argv[1:])

    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        # Python would end with an exit code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    # An interrupt that passed an ``exec`` of text (a dataclass being made) stays marked
    # as unhandled, and ``python -m`` then dies of the signal whatever the code; another
    # ``exec`` takes the mark away.
    exec("")
    sys.exit(exit_code)


def say_interrupted(
    program: str, arguments: Sequence[str], *, verb: str = "resume"
) -> int:
    """Say on stderr how the command goes on; return the exit code.

    Of the processes of one launch the first one says it.
    """
    if not _is_launched() or os.environ.get("RANK", "0") == "0":
        text = f"interrupted; {again(program, arguments, verb=verb)}"
        # The terminal may be what has gone, and a closed stream is None.
        with contextlib.suppress(OSError, AttributeError):
            sys.stderr.write(visible(masked(f"\n{program}: {text}\n"), keep="\n"))
            sys.stderr.flush()
    return INTERRUPTED_EXIT_CODE


def again(program: str, arguments: Sequence[str], *, verb: str = "resume") -> str:
    """Return ``resume with: ...``, by torchrun where it started this command."""
    words = [program]
    if _is_launched():
        n_processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
        module = program.replace("-", "_")
        words = ["torchrun", "--nproc-per-node", n_processes, "-m", module]
    return f"{verb} with: {shlex.join([*words, *arguments])}"


def _is_launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ
