"""The pace of looks: at which step of a training the next one is due."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

MAX_TIME_SHARE = 0.02
"""Of the time of training, what looks may take where no interval is given."""


@dataclass
class Pace:
    """At which step the next look is due, so that all looks take their share of time.

    Attributes
    ----------
    every
        Steps between looks; ``None``: as many as ``MAX_TIME_SHARE`` asks for.
    start
        The step at which the training began.
    spent, cost
        Seconds that looks took: all, and the last.
    """

    every: int | None
    start: int = 0
    began: float = field(default_factory=time.perf_counter)
    spent: float = 0.0
    cost: float = 0.0

    @property
    def trained(self) -> float:
        """Seconds since the beginning that no look took."""
        return time.perf_counter() - self.began - self.spent

    def wait(self, step: int) -> int:
        """Steps to wait until a look is due; 0: it is due now.

        What the last look of a run will take is kept back.
        """
        if self.every is not None:
            return -step % self.every
        trained = max(self.trained, 1e-9)
        lacking = (self.spent + 2 * self.cost) / MAX_TIME_SHARE - trained
        return max(math.ceil(lacking * (step - self.start) / trained), 0)
