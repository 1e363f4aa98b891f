"""Rows and contrasts of the matched audit, made from estimates.

A row is a figure of one checkpoint, a contrast one of a checkpoint next to its
baseline. Every file of this folder makes them here, so that audit and unit stand once.
"""

from __future__ import annotations

from spark_audit.names import BASE
from spark_audit.results import Contrast, Row
from spark_audit.results.rows import Family
from spark_audit.stats.estimate import Estimate


def row_of(
    estimate: Estimate,
    *,
    checkpoint: str,
    metric: str,
    variant: str = "",
    group: str = "pooled",
    unit: str = "nats",
    no_effect: float | None = None,
    no_effect_low: float | None = None,
    no_effect_high: float | None = None,
) -> Row:
    """Return a row of this audit with an estimate's figures.

    Parameters
    ----------
    variant
        Variant of the metric; empty: the main one.
    no_effect, no_effect_low, no_effect_high
        Value without an effect, and the range of such values if there is one.
    """
    return Row.of_estimate(
        estimate,
        audit="matched",
        checkpoint=checkpoint,
        metric=metric,
        variant=variant,
        group=group,
        unit=unit,
        no_effect=no_effect,
        no_effect_low=no_effect_low,
        no_effect_high=no_effect_high,
    )


def contrast_of(
    estimate: Estimate,
    *,
    checkpoint: str,
    baseline: str,
    metric: str,
    variant: str = "",
    group: str = "pooled",
    no_effect: float | None = None,
    family: Family = "exploratory",
    p: float | None = None,
    p_adjusted: float | None = None,
    note: str = "",
) -> Contrast:
    """Return a contrast of this audit with an estimate's figures, in nats.

    Parameters
    ----------
    variant
        Variant of the metric; empty: the main one.
    no_effect
        Value without an effect.
    family
        ``primary``: declared beforehand, and corrected with all contrasts that were.
    p, p_adjusted
        p of the test by itself, and corrected over its family.
    """
    return Contrast.of_estimate(
        estimate,
        audit="matched",
        checkpoint=checkpoint,
        baseline=baseline,
        metric=metric,
        variant=variant,
        group=group,
        unit="nats",
        no_effect=no_effect,
        family=family,
        p=p,
        p_adjusted=p_adjusted,
        note=note,
    )


def guard_row(metric: str, value: float, clusters: int) -> Row:
    """Return a figure of the base, in nats, that only a guard shows."""
    estimate = Estimate(float(value), clusters=clusters)
    return row_of(estimate, checkpoint=BASE, metric=metric)
