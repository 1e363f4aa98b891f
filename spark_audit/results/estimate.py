"""What statistics return: a value, its intervals, and why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["ok", "not_estimable", "invalid", "not_resolvable", "insensitive"]
Interval = Literal[
    "jackknife-t",
    "korn-graubard",
    "clopper-pearson",
    "delong",
    "percentile",
    "beta-binomial",
    "none",
]


@dataclass(frozen=True)
class Estimate:
    """A value with its decision interval and its percentile interval.

    ``value`` is ``None`` exactly when ``status`` is ``not_estimable``; ``note`` then
    gives the reason. ``n`` counts what was averaged, ``clusters`` what was resampled.
    ``se`` is the standard error that ``mde`` was computed from.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    interval: Interval = "none"
    level: float = 0.95
    parity_low: float | None = None
    parity_high: float | None = None
    se: float | None = None
    mde: float | None = None
    n: int = 0
    clusters: int = 0
    status: Status = "ok"
    note: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != (self.status == "not_estimable"):
            raise ValueError("a value is missing exactly when it is not estimable")
        if self.status == "not_estimable" and not self.note:
            raise ValueError("not_estimable needs its reason in note")
        for name, number in vars(self).items():
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{name} is not finite")

    @classmethod
    def missing(cls, reason: str, *, n: int = 0, clusters: int = 0) -> Estimate:
        """The explicit `not estimable`, with its reason."""
        return cls(None, status="not_estimable", note=reason, n=n, clusters=clusters)

    def decided(self, *, paper: bool) -> Estimate:
        """The same estimate; ``paper`` takes the percentile interval for decisions."""
        if not paper or self.parity_low is None or self.parity_high is None:
            return self
        return replace(
            self, low=self.parity_low, high=self.parity_high, interval="percentile"
        )

    def between(self, low: float, high: float) -> Estimate:
        """The same estimate with a percentile interval, which decides too."""
        return replace(
            self,
            low=low,
            high=high,
            interval="percentile",
            parity_low=low,
            parity_high=high,
        )

    def noting(self, text: str) -> Estimate:
        """The same estimate with a sentence added to its note."""
        return replace(self, note=f"{self.note}; {text}" if self.note else text)
