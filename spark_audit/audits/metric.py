"""What is known of a figure that an audit estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """What is known of one metric: whatever estimates, reads or shows it asks here.

    Attributes
    ----------
    name
        In rows. Readers see ``metric.AUDIT.NAME`` of ``sentences/en/metrics.toml``.
    unit, bounds, rate
        Of its values, and their range; a rate is a share of events, whose interval is
        never of zero width.
    learned
        Which way it moves as a checkpoint learns its rows, or the string planted in
        them, by heart: 1 up, -1 down; 0: neither by itself.
    variants, hidden, missing
        What ``of`` can be (:data:`ANY`: anything); those that stand in the CSV alone;
        those that get a row with the reason where nothing was scored.
    null, note
        Chance value, and what stands with every figure.
    glance, headline
        Variants among the figures that are shown first (:data:`ANY`: the one that the
        verdict rests on), and those that sentences on several seeds are of.
    partner
        Metric that it is shown with or not at all: from the one the other may follow.
    panel, counted
        Key of the table that it stands in, where it is not the audit's own; variants
        that the table's smallest effect is of.
    """

    name: str
    unit: str = ""
    rate: bool = False
    bounds: tuple[float, float] | None = None
    learned: int = 0
    variants: tuple[str, ...] = ("",)
    null: float | None = None
    note: str = ""
    hidden: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    glance: tuple[str, ...] = ()
    headline: tuple[str, ...] = ()
    partner: str = ""
    panel: str = ""
    counted: tuple[str, ...] = ()

    @property
    def range(self) -> tuple[float, float]:
        """Least and largest value."""
        return self.bounds or ((0.0, 1.0) if self.rate else (-math.inf, math.inf))

    @property
    def range_of_change(self) -> tuple[float, float]:
        """Least and largest difference of two values."""
        low, high = self.range
        return low - high, high - low
