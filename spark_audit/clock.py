"""A clock that adds up seconds by kind of work.

``with clock("loading"): ...`` times a block; ``clock["loading"]`` are the seconds of
all such blocks so far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Clock(dict[str, float]):
    """A clock of seconds by kind of work, in wall time or processor time.

    Parameters
    ----------
    seconds
        Seconds that were spent before, such as in an interrupted run. They are copied.
    of
        ``wall``, or ``processor`` for the processor time of this process.
    """

    def __init__(self, seconds: Mapping[str, float] = {}, *, of: str = "wall") -> None:
        super().__init__(seconds)
        self._now = time.process_time if of == "processor" else time.perf_counter

    @contextmanager
    def __call__(self, kind: str) -> Iterator[None]:
        """Add the seconds of a block to a kind of work; a block that fails, too."""
        began = self._now()
        try:
            yield
        finally:
            self[kind] = self.get(kind, 0.0) + self._now() - began
