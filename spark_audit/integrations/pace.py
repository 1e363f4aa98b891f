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
        """Return the seconds since the beginning that no look took."""
        return time.perf_counter() - self.began - self.spent

    def wait(self, step: int) -> int:
        """Return the steps to wait until a look is due; 0: it is due now.

        A look is due as soon as all looks until then take no more than
        :data:`MAX_TIME_SHARE` of the time of training. What the last look of a run will
        take is kept back: that one always is.
        """
        if self.every is not None:
            return -step % self.every

        trained = max(self.trained, 1e-9)  # seconds; a clock may not have moved
        # After this look, and the last one.
        spent_by_looks = self.spent + 2 * self.cost
        seconds_lacking = spent_by_looks / MAX_TIME_SHARE - trained
        steps_per_second = (step - self.start) / trained
        return max(math.ceil(seconds_lacking * steps_per_second), 0)
