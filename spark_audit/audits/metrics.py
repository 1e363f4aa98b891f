"""Declarations of an audit about its figures: metrics, and columns of LaTeX tables.

A field of :class:`Metric` is read wherever figures are estimated, shown or judged; a
further one gets a default, so that other audits need no change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple


class LatexColumn(NamedTuple):
    """A column of a LaTeX table: its header, and the rows that it shows.

    The table has one line per checkpoint.

    Attributes
    ----------
    header
        An arrow in it shows the better direction.
    metric, variant, group
        Metric, variant and group of its rows. ``variant = "last"`` selects the last
        stage for an accuracy.
    counted
        The units that ``n`` of the rows counts, in words.
    audit
        The audit of the rows; empty: the audit that declares the column.
    """

    header: str
    metric: str
    variant: str = ""
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
    unit
        Unit of its values, such as ``nats``; empty: a plain number.
    rate
        Whether it is a share of events. The interval of a rate never has zero width.
    bounds
        Smallest and largest value; None: see ``range``.
    learned
        Its direction as a checkpoint memorises its rows or planted strings: 1 up, -1
        down, 0 neither by itself.
    variants
        The values of ``variant`` in its rows (:data:`~spark_audit.names.ANY_NAME`:
        any).
    no_effect
        Its value by chance, or without an effect; None: it has none.
    note
        A note on every figure; empty: none.
    alone
        Whether it is never compared with a baseline.
    heavy
        Whether its percentile interval never decides, not even in the paper's preset.
    hidden
        Variants that only the CSV shows.
    missing
        Variants that get a row with the reason if nothing was scored.
    glance
        Variants among the figures that are shown first
        (:data:`~spark_audit.names.ANY_NAME`: the one that the verdict rests on).
    headline
        Variants that have a sentence on a method with several seeds.
    partner
        Metric that is shown with it or not at all, since one may follow from the other.
    panel
        Key of its table, if not the audit's own.
    counted
        Variants whose smallest effect the table states.
    rounds
        Where shared files round its values to: a bound from above must never be rounded
        down, nor one from below up.
    least_step
        Least rounding step of its figures in shared files, in its unit; 0: that which
        their clusters ask for.
    is_chosen
        Whether it was chosen and not measured: shared files show it as it is.
    known_as
        Its name in tables over many tools, such as ``auroc``; empty: only we have it.
    is_useful
        Whether users want more of it, such as accuracy: it is no leak, although a model
        learns it.
    remarked
        Whether notes on its values stand under its table; else only the CSV has them.
    """

    name: str
    unit: str = ""
    rate: bool = False
    bounds: tuple[float, float] | None = None
    learned: int = 0
    variants: tuple[str, ...] = ("",)
    no_effect: float | None = None
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
    rounds: Literal["nearest", "up", "down"] = "nearest"
    least_step: float = 0.0
    is_chosen: bool = False
    known_as: str = ""
    is_useful: bool = False
    remarked: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest value: ``bounds``, else those of a rate, else none."""
        if self.bounds is not None:
            return self.bounds
        return (0.0, 1.0) if self.rate else (-math.inf, math.inf)
