"""Handle SIGINT, SIGTERM and SIGHUP as one interrupt, after which work can resume.

The console scripts call :func:`start`, which handles the signals for the whole process.
``console.run_command`` uses :func:`one_interrupt`, because tests and other programs may
run a command without :func:`start`.

This module is imported first and imports nothing slow, so that an interrupt works from
the start.
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
from typing import NoReturn, TypeAlias

from spark_audit.errors import masked, visible

KeepsNothing: TypeAlias = Callable[[Sequence[str]], bool]
"""Tells from the typed words whether a command keeps nothing of interrupted work."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ECHO_SECONDS = 5.0
"""Seconds in which a repeated SIGTERM or SIGHUP is ignored: the echo of the first one.
A closed terminal, a launcher and an init system send several, and current writes must
be finished."""

REPEAT_SECONDS = 0.05
"""Seconds after which a lost interrupt is sent again."""

INTERRUPTED_EXIT_CODE = 130
"""Exit code of an interrupt: 128 plus the number of SIGINT, as in shells."""

_interrupted_at: float | None = None
"""Time of the last interrupt of the current command, in monotonic seconds."""


def _interrupt(signum: int, frame: object) -> None:
    """Raise ``KeyboardInterrupt``: for every SIGINT, and once for other signals.

    This is the handler of the signals, which Python calls in the main thread.
    """
    global _interrupted_at
    now = time.monotonic()
    is_echo = _interrupted_at is not None and now - _interrupted_at <= ECHO_SECONDS
    if is_echo and signum != signal.SIGINT:
        return

    _interrupted_at = now
    raise KeyboardInterrupt


def _hook_of_unraisable(
    unraisable: sys.UnraisableHookArgs,
    previous_hook: Callable[[sys.UnraisableHookArgs], object],
) -> None:
    """Report an error in a finaliser such as ``__del__``; resend an interrupt there.

    Python cannot raise errors in such a place, so an interrupt would be lost.
    """
    global _interrupted_at
    if unraisable.exc_type is not KeyboardInterrupt:
        previous_hook(unraisable)
        return

    # Without this, the signal that is sent again would count as an echo.
    _interrupted_at = None
    timer = threading.Timer(REPEAT_SECONDS, _thread.interrupt_main, [signal.SIGTERM])
    timer.daemon = True
    timer.start()


def interrupted() -> bool:
    """Return whether the current command was interrupted, whatever it raised."""
    return _interrupted_at is not None


def take_over() -> dict[signal.Signals, object]:
    """Handle the signals from now on; return the previous handlers.

    Ignored signals (``nohup``, background jobs) stay ignored, and handlers of a host
    program stay in place. In threads other than the main thread nothing changes,
    because Python handles signals only there.
    """
    global _interrupted_at
    _interrupted_at = None
    if threading.current_thread() is not threading.main_thread():
        return {}

    # SIGINT has a default handler of Python, and the other signals have none.
    default_handlers = (signal.SIG_DFL, signal.default_int_handler)
    handlers_before: dict[signal.Signals, object] = {}
    for signum in SIGNALS:
        handler = signal.getsignal(signum)
        if handler in default_handlers:
            signal.signal(signum, _interrupt)
            handlers_before[signum] = handler

    # The hook sends SIGTERM, so it is of use only where SIGTERM is handled here.
    if signal.SIGTERM in handlers_before:
        sys.unraisablehook = partial(
            _hook_of_unraisable, previous_hook=sys.unraisablehook
        )
    return handlers_before


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """Handle the signals inside the block; restore the previous handlers afterwards."""
    hook_before = sys.unraisablehook
    handlers_before = take_over()
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        for signum, handler in handlers_before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]


def start(
    program: str,
    load: Callable[[], Callable[[Sequence[str]], int]],
    *,
    keeps_nothing: KeepsNothing | None = None,
) -> NoReturn:
    """Import a program with ``load``, run it on the command line, and exit.

    Parameters
    ----------
    load
        Imports the program, for seconds, and returns its function from typed words to
        the exit code.
    keeps_nothing
        Default: all commands resume.
    """
    take_over()
    if not sys.warnoptions:
        import logging

        # Libraries warn of missing kernels and of future changes, which users of these
        # commands cannot mend. `python -W default` shows the warnings.
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)

    try:
        exit_code = load()(sys.argv[1:])
    except KeyboardInterrupt:
        arguments = sys.argv[1:]
        verb = verb_of(arguments, keeps_nothing)
        exit_code = say_interrupted(program, arguments, verb=verb)

    # With an error in its own flush, Python would end with an exit code of its own.
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    # An interrupt inside an ``exec`` of text (the making of a dataclass) stays marked
    # as unhandled, and then ``python -m`` dies of the signal. Another ``exec`` removes
    # this mark.
    exec("")
    sys.exit(exit_code)


def verb_of(arguments: Sequence[str], keeps_nothing: KeepsNothing | None) -> str:
    """Return what the same command does after an interrupt: resume or start again."""
    if keeps_nothing is not None and keeps_nothing(arguments):
        return "start again"
    return "resume"


def say_interrupted(
    program: str, arguments: Sequence[str], *, verb: str = "resume"
) -> int:
    """Print how to continue the command on stderr; return the exit code.

    If a launch has several processes, only the first prints (torchrun sets RANK).

    Parameters
    ----------
    verb
        ``resume``, or ``start again`` for a command that keeps nothing.
    """
    if not _is_launched() or os.environ.get("RANK", "0") == "0":
        text = f"interrupted; {how_to_continue(program, arguments, verb=verb)}"
        # The terminal may be gone, and a closed stream is None.
        with contextlib.suppress(OSError, AttributeError):
            sys.stderr.write(visible(masked(f"\n{program}: {text}\n"), keep="\n"))
            sys.stderr.flush()
    return INTERRUPTED_EXIT_CODE


def how_to_continue(
    program: str, arguments: Sequence[str], *, verb: str = "resume"
) -> str:
    """Return ``resume with: ...``, with torchrun if it started this command."""
    words = [program]
    if _is_launched():
        n_processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
        module = program.replace("-", "_")
        words = ["torchrun", "--nproc-per-node", n_processes, "-m", module]
    return f"{verb} with: {shlex.join([*words, *arguments])}"


def _is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ
