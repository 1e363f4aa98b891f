"""TPR at a budget of false positives where rows come in clusters and tasks.

Rates are averaged over tasks; every resample is one of clusters, of both sides, so
that the threshold's own error is in the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.results import Estimate
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.intervals import FEW_EVENTS, korn_graubard, percentile_interval
from spark_audit.stats.roc import Band, allowed, chance_band, checked, tpr_at_fpr
from spark_audit.stats.roc_clusters import ZERO, Design, blocks, renumbered
from spark_audit.stats.weights import Weights


def tpr_estimate(
    design: Design,
    scores: ArrayLike,
    fpr: float,
    *,
    replicates: np.ndarray,
    level: float = 0.95,
) -> Estimate:
    """TPR at a budget of false positives, averaged over tasks, with its interval.

    The interval resamples the clusters of both sides, so that the threshold's own
    error is in it. With few members above the threshold it is widened to hold the
    exact interval of the rate at the given threshold. Status ``not_resolvable`` where
    the budget allows no false positive in some task.

    Parameters
    ----------
    replicates
        Shape ``(B,)``, from :func:`tpr_replicates` for this budget.
    """
    n, clusters = len(design.member), design.n_clusters
    try:
        values = checked(np.asarray(scores, dtype=np.float64))
        rates = [tpr_at_fpr(values[x], values[y], fpr) for x, y in design.tasks]
        if not rates:
            raise NotEstimableError("there is no row")
        low, high = percentile_interval(replicates, level=level)
    except NotEstimableError as error:
        return Estimate.missing(error.what, n=n, clusters=clusters)
    spread = high - low > ZERO
    estimate = Estimate(
        float(np.mean([tpr.value for tpr in rates])),
        level=level,
        n=n,
        clusters=clusters,
        se=float(np.nanstd(replicates)) if spread else None,
    ).between(low, high)
    if not spread:
        estimate = replace(estimate, parity_low=None, parity_high=None)
    above = np.zeros(len(values), dtype=bool)
    for (x, _), tpr in zip(design.tasks, rates, strict=True):
        above[x] = values[x] > tpr.threshold
    estimate = _widened(estimate, design, above)
    achieved = float(np.mean([tpr.fpr for tpr in rates]))
    estimate = estimate.noting(f"achieved FPR {achieved:.4g}")
    unresolved = [tpr for tpr in rates if not tpr.resolvable]
    if unresolved:
        estimate = replace(estimate, status="not_resolvable")
    notes = [tpr.note for tpr in unresolved or rates if tpr.note]
    return estimate.noting(notes[0]) if notes else estimate


def tpr_replicates(
    design: Design, scores: ArrayLike, fprs: Sequence[float], weights: Weights
) -> np.ndarray:
    """TPR at each budget, averaged over tasks, in every resample of clusters.

    Parameters
    ----------
    fprs
        ``F`` budgets of false positives.
    weights
        Shape ``(B, C)``, from :meth:`Design.draw`.

    Returns
    -------
    Shape ``(F, B)``; NaN where a resample lacks a side.
    """
    values = checked(np.asarray(scores, dtype=np.float64))
    total = np.zeros((len(fprs), len(weights)))
    count = 0
    for x, y in design.tasks:
        x, y = (side[np.argsort(-values[side], kind="stable")] for side in (x, y))
        # Members strictly above each non-member, both from the largest score down.
        over = np.searchsorted(-values[x], -values[y], side="left")
        used, of_x, of_y = renumbered(design, x, y)
        for columns, part in blocks(weights, used, len(x) + len(y)):
            false = np.cumsum(part[of_y], axis=0)
            true = np.zeros((len(x) + 1, part.shape[1]))
            np.cumsum(part[of_x], axis=0, out=true[1:])
            lacking = (false[-1] == 0) | (true[-1] == 0)
            for row, fpr in enumerate(fprs):
                budget = np.floor(fpr * false[-1] + 1e-9)
                at = np.minimum((false <= budget).sum(axis=0), len(y) - 1)
                hits = true[over[at], np.arange(part.shape[1])]
                total[row, columns] += np.where(
                    lacking, np.nan, hits / np.maximum(true[-1], 1)
                )
        count += 1
    return total / max(count, 1)


def chance(
    design: Design, fpr: float, *, seed: int, level: float = 0.95, draws: int = 20000
) -> Band:
    """TPR at a budget, averaged over tasks, of a score that knows nothing.

    Exact for one task (:func:`chance_band`), else the mean of independent draws of
    each task's law. Clusters of several rows count as the equally large clusters that
    they are worth, ``(sum n)^2 / sum n^2``, rounded down.
    """
    held = design.held
    size = np.floor(held.sum(axis=0) ** 2 / np.maximum((held**2).sum(axis=0), 1) + 1e-9)
    pairs = size.astype(np.int64).reshape(-1, 2).tolist()
    if len(pairs) == 1:
        return chance_band(pairs[0][0], pairs[0][1], fpr, level=level)
    rng = np.random.default_rng(seed)
    mean, drawn = 0.0, np.zeros(draws)
    for n1, n0 in pairs:
        k = allowed(n0, fpr)
        drawn += rng.binomial(n1, rng.beta(k + 1, n0 - k, draws)) / n1
        mean += (k + 1) / (n0 + 1)
    low, high = np.quantile(drawn / len(pairs), [0.5 - level / 2, 0.5 + level / 2])
    return Band(mean / len(pairs), float(low), float(high))


def _widened(estimate: Estimate, design: Design, above: np.ndarray) -> Estimate:
    events, trials = (
        cluster_sums(rows, design.cluster, design.n_clusters)
        for rows in (above & design.member, design.member)
    )
    hits, tried = events.sum(), trials.sum()
    if min(hits, tried - hits) >= FEW_EVENTS or np.count_nonzero(trials) < 2:
        return estimate
    low, high = korn_graubard(events, trials, level=estimate.level)
    ends = [x for x in (estimate.value, estimate.low, estimate.high) if x is not None]
    return replace(
        estimate,
        low=min(low, *ends),
        high=max(high, *ends),
        interval="korn-graubard",
    )
