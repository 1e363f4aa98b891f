"""A limit on the time that something takes, which a busy machine does not trip."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Hung(BaseException):
    """No ``except Exception`` holds it."""


@contextmanager
def limited(*, cpu: float, wall: float) -> Iterator[None]:
    """Raise :class:`Hung` after so many seconds of this process, or by the clock.

    Seconds of the process are what a slow command takes; the clock is for one that
    waits for ever.
    """

    def hang(*_: object) -> None:
        raise Hung(f"took longer than {cpu} s, or waited for {wall} s")

    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, cpu),
        (signal.ITIMER_REAL, signal.SIGALRM, wall),
    )
    before = [signal.signal(number, hang) for _, number, _ in timers]
    for timer, _, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (timer, number, _), old in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, old)
