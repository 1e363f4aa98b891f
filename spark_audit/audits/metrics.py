"""Declarations of an audit about its figures: metrics, and columns of LaTeX tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class LatexColumn(NamedTuple):
    """A column of a LaTeX table: its header, and the rows that it shows.

    Attributes
    ----------
    metric, of, group
        Names of its rows. ``of = "last"`` selects the last stage for an accuracy.
    counted
        The units that ``n`` of the rows counts.
    audit
        The audit of the rows; empty: the audit that declares the column.
    """

    header: str
    metric: str
    of: str = ""
    counted: str = "tokens"
    group: str = "pooled"
    audit: str = ""


@dataclass(frozen=True)
class Metric:
    """Everything that is known about a metric, for code that estimates or shows it.

    Attributes
    ----------
    name
        Name in rows. Readers see ``metric.AUDIT.NAME`` of
        ``sentences/en/metrics.toml``.
    unit, bounds, rate
        Unit and range of its values. A rate is a share of events, whose interval never
        has zero width.
    learned
        Its direction as a checkpoint memorises its rows or planted strings: 1 up, -1
        down, 0 neither by itself.
    variants, hidden, missing
        ``variants``: the values of ``of`` (:data:`~spark_audit.names.ANY_NAME`: any).
        ``hidden``: variants that only the CSV shows. ``missing``: variants that get a
        row with the reason if nothing was scored.
    null, note
        Value by chance, and a note on every figure.
    alone, heavy
        ``alone``: it has no contrasts. ``heavy``: its percentile interval never
        decides.
    glance, headline
        ``glance``: variants among the figures that are shown first
        (:data:`~spark_audit.names.ANY_NAME`: the one that the verdict rests on).
        ``headline``: variants of the sentences on several seeds.
    partner
        Metric that is shown with it or not at all, since one may follow from the other.
    panel, counted
        ``panel``: key of its table, if not the audit's own. ``counted``: variants whose
        smallest effect the table states.
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
