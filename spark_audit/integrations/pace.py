"""Decide at which steps of a training the looks are due."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

MAX_TIME_SHARE = 0.02
"""Share of the training time that looks may take if no interval is given."""

HAS_USED_CUDA: Callable[[], bool] = torch.cuda.is_initialized
"""Tells whether this process has used a GPU. The name gives torch's function a type."""


def seconds_now() -> float:
    """Return the clock in seconds, after the GPU has finished all requested work."""
    if HAS_USED_CUDA():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass
class Pace:
    """The schedule of looks, which limits their share of the time.

    Attributes
    ----------
    every
        Steps between looks; ``None``: as many as ``MAX_TIME_SHARE`` requires.
    start
        The step at which the training began; above 0 it was resumed.
    began
        The clock at the beginning, in seconds.
    spent
        Seconds of all looks so far.
    cost
        Seconds of the last look, by which the next one is estimated.
    """

    every: int | None
    start: int = 0
    began: float = field(default_factory=time.perf_counter)
    spent: float = 0.0
    cost: float = 0.0

    @property
    def trained(self) -> float:
        """Return the seconds since the beginning without those of looks."""
        return time.perf_counter() - self.began - self.spent

    @property
    def share_of_time(self) -> float:
        """Return the share of the time since the beginning that looks took."""
        elapsed = time.perf_counter() - self.began
        return min(self.spent / max(elapsed, 1e-9), 1.0)

    def wait(self, step: int) -> int:
        """Return the number of steps until the next look; 0 if it is due now.

        A look is due as soon as all looks together, this one included, take at most
        :data:`MAX_TIME_SHARE` of the training time. Time for the final look is
        reserved, because that look always happens.
        """
        if self.every is not None:
            return -step % self.every

        trained = max(self.trained, 1e-9)  # seconds; a clock may not have moved
        # Seconds of all looks when this one and the final one are done.
        spent_by_looks = self.spent + 2 * self.cost
        # Seconds of training until these are MAX_TIME_SHARE of it.
        seconds_lacking = spent_by_looks / MAX_TIME_SHARE - trained

        steps_per_second = (step - self.start) / trained
        return max(math.ceil(seconds_lacking * steps_per_second), 0)
