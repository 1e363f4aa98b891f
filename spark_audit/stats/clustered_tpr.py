"""TPR at a small FPR of rows that come in clusters and tasks, with its interval.

Figures are averaged over tasks; the unit of every resample is the cluster. Shapes are
those of :mod:`~spark_audit.stats.clustered_roc`: ``n`` rows, ``C`` clusters, ``T``
tasks, ``B`` resamples. A *budget* is the largest false positive rate that is allowed, a
share; a row is called a member if its score exceeds the threshold of its task. The
audit ``mia`` reads these figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.stats import intervals
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.clustered_roc import ZERO, Design
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.percentiles import percentile_interval
from spark_audit.stats.roc import Band, Tpr, allowed, chance_band, tpr_at_fpr


def tpr_by_task(design: Design, scores: ArrayLike, budget: float) -> list[Tpr]:
    """Return :func:`tpr_at_fpr` of each task.

    Parameters
    ----------
    design
        Members, clusters and tasks of ``n`` rows.
    scores
        Shape ``(n,)``.
    budget
        Budget of false positives, a share.

    Examples
    --------
    Two tasks of two members and two non-members each:

    >>> design = Design.of([1, 1, 0, 0] * 2, range(8), [0] * 4 + [1] * 4)
    >>> scores = [4.0, 2.0, 3.0, 1.0, 4.0, 3.0, 2.0, 1.0]
    >>> [tpr.value for tpr in tpr_by_task(design, scores, budget=0.1)]
    [0.5, 1.0]
    """
    values = np.asarray(scores, dtype=np.float64)
    return [
        tpr_at_fpr(values[members], values[others], budget)
        for members, others in design.tasks
    ]


def tpr_estimate(
    design: Design,
    scores: ArrayLike,
    budget: float,
    *,
    replicates: np.ndarray,
) -> Estimate:
    """Return the TPR at a budget of false positives, with its interval.

    It is averaged over tasks. It is missing if some task has too few held-out clusters
    for the budget (:func:`why_unresolved`).

    Parameters
    ----------
    design
        Members, clusters and tasks of ``n`` rows.
    scores
        Shape ``(n,)``.
    budget
        Budget of false positives, a share.
    replicates
        Shape ``(B,)``, of this budget, from
        :func:`~spark_audit.stats.roc_replicates.roc_replicates`.

    Notes
    -----
    The interval resamples the clusters of both sides, which includes the error of the
    threshold. With few members above the threshold, it is widened to contain the exact
    interval of the rate at the given threshold.

    Examples
    --------
    Four of ten members score above all 20 others. Of the others one may exceed the
    threshold at a budget of 5%, so the threshold is the second largest of their scores:

    >>> from spark_audit.stats.roc_replicates import tpr_replicates
    >>> design = Design.of([True] * 10 + [False] * 20, range(30))
    >>> scores = [25, 24, 23, 22, 9, 8, 7, 6, 5, 4, *range(20)]
    >>> resamples = design.draw(replicates=200, seed=0)
    >>> replicates = tpr_replicates(design, scores, [0.05], resamples)[0]
    >>> estimate = tpr_estimate(design, scores, 0.05, replicates=replicates)
    >>> estimate.value, estimate.clusters
    (0.4, 30)
    """
    if reason := why_unresolved(design, budget):
        return design.missing(reason)

    try:
        rates = tpr_by_task(design, scores, budget)
        if not rates:
            raise NotEstimableError("there is no row")
        low, high = percentile_interval(replicates)
    except NotEstimableError as error:
        return design.missing(error.what)

    value = float(np.mean([tpr.value for tpr in rates]))
    estimate = design.point(value).decided_by_percentiles(low, high)
    if high - low > ZERO:
        estimate = replace(estimate, se=float(np.nanstd(replicates)))
    else:
        # All resamples agree: there is no percentile interval, and no error. Too few
        # members decide, so the interval is widened below.
        estimate = replace(estimate, parity_low=None, parity_high=None)

    thresholds = np.array([tpr.threshold for tpr in rates])  # (T,)
    is_above = np.asarray(scores) > thresholds[design.task]  # (n,)
    estimate = _widened_for_few(design, is_above, estimate)

    return _with_notes(estimate, rates)


def why_unresolved(design: Design, budget: float) -> str:
    """Return why the rows cannot resolve a budget of false positives; empty: they can.

    Parameters
    ----------
    design
        Members, clusters and tasks of ``n`` rows.
    budget
        Budget of false positives, a share.

    Notes
    -----
    A threshold is set by the largest scores of non-members. It has a false positive
    rate of at most the budget only if at least one of ``n`` independent non-members may
    exceed it, which is so from ``n = 1 / budget`` on. With fewer, the threshold is the
    largest score of all, and the budget decides nothing: any smaller budget has the
    same threshold. Rows of a cluster are not independent, so clusters count, and
    unequal ones as :func:`effective_clusters` says. Each task has its own threshold, so
    each needs as many.

    Examples
    --------
    99 non-members, each a cluster, resolve 5% and not 1%:

    >>> design = Design.of([True] * 10 + [False] * 99, range(109))
    >>> why_unresolved(design, 0.05)
    ''
    >>> why_unresolved(design, 0.01)
    'an FPR of 1% needs 100 held-out clusters of equal size per task, there are 99'
    """
    n_by_side = effective_clusters(design)  # (T, 2)
    n_others = n_by_side[n_by_side.any(axis=1), 1]  # of tasks with a row
    fewest = int(n_others.min()) if len(n_others) else 0
    # The tolerance is for rounding, as in allowed(): 1 / (1 / 49) is 49.00000000000001.
    n_needed = int(np.ceil(1 / budget - 1e-9))
    if fewest >= n_needed:
        return ""
    return (
        f"an FPR of {100 * budget:g}% needs {n_needed} held-out clusters of equal size "
        f"per task, there are {fewest}"
    )


def effective_clusters(design: Design) -> np.ndarray:
    """Return how many clusters of equal size each side of each task is worth.

    That is Kish's effective number of clusters with ``n`` rows each,
    ``(sum n)^2 / sum n^2``, rounded down.

    Returns
    -------
    Shape ``(T, 2)``, whole numbers: members, then non-members.

    Examples
    --------
    A member of each of two clusters, and non-members of a large and a small one:

    >>> design = Design.of([1, 1, 0, 0, 0, 0], [0, 1, 2, 2, 2, 3])
    >>> effective_clusters(design).tolist()
    [[2, 1]]
    """
    n_rows = design.rows_by_side  # (C, 2 T)
    squares = np.maximum((n_rows**2).sum(axis=0), 1)
    n_effective = np.floor(n_rows.sum(axis=0) ** 2 / squares + 1e-9)  # (2 T,)
    return np.asarray(n_effective.astype(np.int64).reshape(-1, 2))


def _with_notes(estimate: Estimate, rates: Sequence[Tpr]) -> Estimate:
    """Return the estimate with the achieved rate, and one task's note.

    ``rates``: the TPR of each task.
    """
    achieved = np.mean([tpr.fpr for tpr in rates])
    estimate = estimate.noting(f"achieved FPR {achieved:.4g}")

    # One note is enough.
    notes = [tpr.note for tpr in rates if tpr.note]
    if notes:
        estimate = estimate.noting(notes[0])
    return estimate


def _widened_for_few(
    design: Design, is_above: np.ndarray, estimate: Estimate
) -> Estimate:
    """Return the estimate, its interval widened to the exact one if few members decide.

    Few: less than ``FEW_EVENTS`` members above the threshold, or not above it. The
    wider interval contains both. ``is_above``: shape ``(n,)``, whether a row exceeds
    the threshold of its task.
    """
    is_hit = is_above & design.member
    hits = cluster_sums(is_hit, design.cluster, design.n_clusters)  # (C,)
    members = cluster_sums(design.member, design.cluster, design.n_clusters)  # (C,)

    n_hits = hits.sum()
    n_members = members.sum()
    is_few = min(n_hits, n_members - n_hits) < intervals.FEW_EVENTS
    if not is_few or np.count_nonzero(members) < 2:
        return estimate

    exact = intervals.rate_estimate(hits, members)
    lows = [estimate.value, estimate.low, exact.value, exact.low]
    highs = [estimate.value, estimate.high, exact.value, exact.high]
    return replace(
        estimate,
        low=min(end for end in lows if end is not None),
        high=max(end for end in highs if end is not None),
        interval="korn-graubard",
    )


@lru_cache(maxsize=64)
def chance(design: Design, budget: float, *, seed: int, draws: int = 20000) -> Band:
    """Return the TPR of a random score at a budget, averaged over tasks.

    For one task it is exact (:func:`chance_band`), else it comes from ``draws``
    independent draws for each task. The rows of a side count as
    :func:`effective_clusters`.

    Examples
    --------
    Ten members and 99 others, each a cluster: the mean is 10 of 100, not 9 of 99.

    >>> design = Design.of([True] * 10 + [False] * 99, range(109))
    >>> chance(design, 0.1, seed=0)
    Band(mean=0.1, low=0.0, high=0.3)
    """
    # Members and non-members of each task.
    sizes = effective_clusters(design).tolist()
    if len(sizes) == 1:
        n_members, n_others = sizes[0]
        return chance_band(n_members, n_others, budget)

    # Draw from the beta-binomial of chance_band: a binomial with a random rate. Both
    # are summed over tasks.
    rng = np.random.default_rng(seed)
    mean = 0.0
    drawn = np.zeros(draws)
    for n_members, n_others in sizes:
        k = allowed(n_others, budget)
        rate = rng.beta(k + 1, n_others - k, draws)
        drawn += rng.binomial(n_members, rate) / n_members
        mean += (k + 1) / (n_others + 1)

    low, high = np.quantile(drawn / len(sizes), [0.025, 0.975])
    return Band(mean=mean / len(sizes), low=float(low), high=float(high))
