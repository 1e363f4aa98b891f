"""Rows and contrasts of the matched audit, made from estimates.

A row holds a figure of one checkpoint, a contrast the difference of a figure from that
of the checkpoint's baseline. Every file of this folder makes them here, so that the
audit's name, and nats as the default unit, are written once.
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
    group
        The spans that the figure is over, as ``type:SSN``; ``pooled``: all of them.
    unit
        Unit of all figures of the row; empty for shares and ratios.
    no_effect, no_effect_low, no_effect_high
        Value without an effect, and the range of such values if there is one. Only
        rows of ``memory`` have a range (``memory.py`` says why), and no contrast has.
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
    baseline
        Name of the checkpoint that is subtracted.
    variant
        Variant of the metric; empty: the main one.
    group
        As for :func:`row_of`.
    no_effect
        Value without an effect.
    family
        ``primary``: declared beforehand; its p is corrected over all primary contrasts.
    p, p_adjusted
        p of the test by itself, and corrected over its family.
    note
        Remark that is added to the note of the estimate.
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
    """Return a figure of the base, in nats, that only a guard shows.

    A guard is a check of the setup (:mod:`~spark_audit.audits.matched.guards`). It
    judges the value alone, so the figure has no interval.

    Parameters
    ----------
    clusters
        Number of clusters that the value is over.
    """
    estimate = Estimate(float(value), clusters=clusters)
    return row_of(estimate, checkpoint=BASE, metric=metric)
