"""What an audit declares of its figures: metrics, and columns of tables of LaTeX."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class LatexColumn(NamedTuple):
    """A column of a table of LaTeX: its header, and the rows that it shows.

    Attributes
    ----------
    metric, of, group
        Of the rows. ``of = "last"`` of an accuracy is a series' last stage.
    counted
        What ``n`` of the rows counts.
    audit
        Whose rows these are; empty: those of the audit that has the column.
    """

    header: str
    metric: str
    of: str = ""
    counted: str = "tokens"
    group: str = "pooled"
    audit: str = ""


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
        What ``of`` can be (:data:`~spark_audit.names.ANY_NAME`: anything); those that
        stand in the CSV alone; those that get a row with the reason where nothing was
        scored.
    null, note
        Chance value, and what stands with every figure.
    alone, heavy
        Whether it has no contrasts; whether its percentile interval never decides.
    glance, headline
        Variants among the figures that are shown first
        (:data:`~spark_audit.names.ANY_NAME`: the one that the verdict rests on), and
        those that sentences on several seeds are of.
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
    alone: bool = False
    heavy: bool = False
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
        if self.bounds is not None:
            return self.bounds
        return (0.0, 1.0) if self.rate else (-math.inf, math.inf)
