"""What is known of a figure that an audit estimates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """What is known of one metric: whatever estimates, reads or shows it asks here.

    Attributes
    ----------
    name, label, labels
        In rows, and as readers see it (default: the name); ``labels`` has those of
        variants that are called otherwise.
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
        By variant: its title among the figures that are shown first (:data:`ANY`: the
        variant that the verdict rests on), and its name in sentences on several seeds.
    partner
        Metric that it is shown with or not at all: from the one the other may follow.
    panel, counted
        Title of the table that it stands in, where it is not the audit's own; by
        variant, its name as the one that the table's smallest effect is of.
    """

    name: str
    label: str = ""
    unit: str = ""
    rate: bool = False
    bounds: tuple[float, float] | None = None
    learned: int = 0
    variants: tuple[str, ...] = ("",)
    null: float | None = None
    note: str = ""
    hidden: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    glance: Mapping[str, str] = field(default_factory=dict)
    headline: Mapping[str, str] = field(default_factory=dict)
    partner: str = ""
    panel: str = ""
    counted: Mapping[str, str] = field(default_factory=dict)

    def label_of(self, of: str = "") -> str:
        """What readers see for one of its variants."""
        return self.labels.get(of) or self.label or self.name

    @property
    def range(self) -> tuple[float, float]:
        """Least and largest value."""
        return self.bounds or ((0.0, 1.0) if self.rate else (-math.inf, math.inf))

    @property
    def range_of_change(self) -> tuple[float, float]:
        """Least and largest difference of two values."""
        low, high = self.range
        return low - high, high - low


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Metrics by their names."""
    return {metric.name: metric for metric in metrics}
