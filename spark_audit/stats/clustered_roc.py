"""AUC and TPR of rows that come in clusters and tasks, with their intervals.

The unit of every variance and resample is the cluster, and figures are averaged over
tasks. The variance of an AUC is that of Obuchowski (1997), "Nonparametric analysis
of clustered ROC curve data", which for clusters of one row is that of DeLong et al.
(1988). What cannot be estimated is an ``Estimate.missing`` with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.stats import intervals
from spark_audit.stats.bootstrap import (
    Weights,
    cluster_sums,
    draw_in_strata,
    row_chunks,
)
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.roc import (
    Band,
    Tpr,
    allowed,
    chance_band,
    checked,
    placements,
    tpr_at_fpr,
)

ZERO = 1e-12


@dataclass(frozen=True, eq=False)
class Design:
    """Who is a member, in which cluster and in which task.

    Parameters
    ----------
    member
        Shape ``(n,)``, bool.
    cluster, task
        Shape ``(n,)``, integer codes from 0. Figures are taken by task and averaged
        over tasks with equal weights; one task: all rows together.
    """

    member: np.ndarray
    cluster: np.ndarray
    task: np.ndarray

    @classmethod
    def of(
        cls, member: ArrayLike, cluster: ArrayLike, task: ArrayLike | None = None
    ) -> Design:
        """Number the labels of clusters and tasks in sorted order."""
        sides = np.asarray(member, dtype=bool)
        labels = cluster, np.zeros(len(sides)) if task is None else task
        codes = [np.unique(np.asarray(one), return_inverse=True)[1] for one in labels]
        return cls(sides, *(code.astype(np.int64) for code in codes))

    def __post_init__(self) -> None:
        if not len(self.member) == len(self.cluster) == len(self.task):
            raise ValueError("member, cluster and task must have one row each")

    def take(self, rows: np.ndarray) -> Design:
        """Some of the rows, with the codes that they have."""
        return Design(self.member[rows], self.cluster[rows], self.task[rows])

    @cached_property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.cluster.max(initial=-1)) + 1

    @property
    def size(self) -> dict[str, Any]:
        """Rows and clusters, as estimates have them."""
        return {"n": len(self.member), "clusters": self.n_clusters}

    @cached_property
    def held(self) -> np.ndarray:
        """Shape ``(C, 2 T)``: rows of each cluster among a task's members, others."""
        cell = 2 * self.task + ~self.member
        width = 2 * (int(self.task.max(initial=-1)) + 1)
        return cluster_sums(np.eye(width)[cell], self.cluster, self.n_clusters)

    def draw(self, *, replicates: int, seed: int) -> Weights:
        """Bootstrap weights of the clusters, drawn within task and side.

        Clusters with rows of several tasks or of both sides form one further stratum.
        """
        present = self.held > 0
        stratum = np.where(present.sum(axis=1) == 1, present.argmax(axis=1), -1)
        return draw_in_strata(stratum, replicates=replicates, seed=seed)

    @cached_property
    def tasks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows of members and of non-members, by task."""
        return [
            (np.flatnonzero(of & self.member), np.flatnonzero(of & ~self.member))
            for of in (self.task == code for code in range(self.held.shape[1] // 2))
        ]


def auc_estimate(
    design: Design, scores: ArrayLike, *, replicates: np.ndarray | None = None
) -> tuple[Estimate, float | None]:
    """AUC, averaged over tasks, and its two-sided p value against 0.5.

    The clustered DeLong interval is taken on the logit scale with a t quantile, its
    degrees of freedom by Satterthwaite's formula over sides and tasks; p is below 0.05
    where it leaves 0.5 out. Where the score separates the sides perfectly there is no
    variance: the bound is then the exact one for ``k`` disjoint pairs of clusters, as
    many as there are, and p that of their sign test, ``2 / 2^k``. There is no p where
    the estimate is missing or has no spread.

    Parameters
    ----------
    scores
        Shape ``(n,)``.
    replicates
        Shape ``(B,)``, from :func:`auc_replicates`: also the percentile interval.
    """
    try:
        value, parts = _influence(design, scores)
    except NotEstimableError as error:
        return Estimate.missing(error.what, **design.size), None
    variance, df = _variance(design, parts)
    plain = Estimate(value, **design.size)
    if _perfect(value):
        pairs = _pairs(design)
        low, high = intervals.clopper_pearson(round(value) * pairs, pairs)
        exact = replace(plain, low=low, high=high, interval="clopper-pearson")
        note = f"perfect order: exact bound for {pairs} disjoint pairs of clusters"
        return exact.noting(note), _perfect_p(design)
    if variance <= ZERO:
        return plain.noting(intervals.NO_SPREAD), None
    # On the logit scale: inside (0, 1) and around the value.
    se, centre = float(np.sqrt(variance)), float(scipy.special.logit(value))
    *ends, p = _t_test(centre, se / (value * (1 - value)), df)
    low, high = scipy.special.expit(ends).tolist()
    estimate = replace(plain, low=low, high=high, interval="delong", se=se, df=df)
    return intervals.with_parity(estimate, replicates), p


def auc_difference(
    design: Design,
    first: ArrayLike,
    second: ArrayLike,
    *,
    replicates: np.ndarray | None = None,
) -> tuple[Estimate, float | None]:
    """AUC of one score minus that of another over the same rows, and its p value.

    Paired DeLong with clusters: the variance of the difference of both scores'
    cluster components, t quantiles as in :func:`auc_estimate`. A perfect order has no
    variance: p is then at least that of its exact test, and two opposite perfect orders
    get the bounds of both exact intervals, each at half the
    error.

    Parameters
    ----------
    replicates
        Shape ``(B,)``: difference of both scores' replicates from the same weights.
    """
    try:
        (a, ours), (b, theirs) = (_influence(design, one) for one in (first, second))
    except NotEstimableError as error:
        return Estimate.missing(error.what, **design.size), None
    variance, df = _variance(design, ours - theirs)
    plain = Estimate(a - b, **design.size)
    least = _perfect_p(design) if _perfect(a) or _perfect(b) else 0.0
    if variance <= ZERO:
        if abs(a - b) < 1 - ZERO:
            return plain.noting("the two order all pairs alike: no spread"), None
        pairs = _pairs(design)
        reach = 2 * intervals.clopper_pearson(pairs, pairs, level=0.975)[0] - 1
        low, high = sorted([a - b, (a - b) * max(reach, -1.0)])
        exact = replace(plain, low=low, high=high, interval="clopper-pearson")
        note = f"opposite perfect orders: exact bounds for {pairs} disjoint pairs of "
        return exact.noting(f"{note}clusters"), least
    se = float(np.sqrt(variance))
    low, high, p = _t_test(a - b, se, df)
    low, high = max(-1.0, low), min(1.0, high)
    estimate = replace(plain, low=low, high=high, interval="delong", se=se, df=df)
    return intervals.with_parity(estimate, replicates), max(least, p)


def _t_test(value: float, se: float, df: float) -> tuple[float, float, float]:
    """Ends of the interval of 95 %, and the two-sided p value against 0."""
    reach = float(scipy.special.stdtrit(df, 0.975)) * se
    p = 2 * scipy.special.stdtr(df, -abs(value) / se)
    return value - reach, value + reach, float(p)


def auc_components(design: Design, scores: ArrayLike) -> np.ndarray:
    """What each cluster moves an AUC by, on each side of each task: flat.

    Inner products of two scores' components are their AUCs' covariance, but for a
    factor of nearly 1 (DeLong et al. 1988).
    """
    return _influence(design, scores)[1].ravel()


def auc_replicates(design: Design, scores: ArrayLike, weights: Weights) -> np.ndarray:
    """AUC, averaged over tasks, in every resample of clusters.

    Parameters
    ----------
    weights
        ``B`` resamples, from :meth:`Design.draw`.

    Returns
    -------
    Shape ``(B,)``; NaN where a resample lacks a side. One sort, then O(B n).
    """
    values = checked(scores)
    total = np.zeros(len(weights))
    for x, y in design.tasks:
        y = y[np.argsort(values[y], kind="stable")]
        ends = [values[y].searchsorted(values[x], side) for side in ("left", "right")]
        # Cell (j, i): member i has j non-members below, half of it for either tie.
        cells = np.concatenate(ends), np.tile(np.arange(len(x)), 2)
        halves = np.full(2 * len(x), 0.5)
        place = scipy.sparse.csr_array((halves, cells), (len(y) + 1, len(x)))
        for columns, members, others in _resamples(design, weights, x, y):
            below = np.pad(np.cumsum(others, axis=0), ((1, 0), (0, 0)))
            above = place @ members
            with np.errstate(invalid="ignore"):
                total[columns] += np.einsum("jb,jb->b", below, above) / (
                    below[-1] * above.sum(axis=0)
                )
    return total / len(design.tasks)


def _resamples(
    design: Design, weights: Weights, x: np.ndarray, y: np.ndarray
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Slices of replicates with the weights of some rows and others, ``(rows, b)``."""
    drawn, columns = weights.drawn, weights.column[design.cluster]
    for part in row_chunks(len(drawn), len(x) + len(y)):
        own, others = (
            drawn[part][:, columns[rows]].T.astype(np.float64, order="C")
            for rows in (x, y)
        )
        yield part, own, others


def _influence(design: Design, scores: ArrayLike) -> tuple[float, np.ndarray]:
    """AUC averaged over tasks and its components by cluster, shape ``(C, 2 T)``.

    A component is ``(sum of V - rows * AUC) / all rows`` of the cluster in one task
    and side, V being the share of the other side that a row is above of (members) or
    below of (non-members).
    """
    values = checked(scores)
    if values.shape != design.member.shape:
        raise ValueError("one score a row is needed")
    if not len(values):
        raise NotEstimableError("there is no row")
    if values.min() == values.max():
        raise NotEstimableError("all scores are equal: they order nothing")
    held = design.held
    found, parts = [], np.zeros_like(held)
    clusters = (held > 0).sum(axis=0)
    if (few := np.flatnonzero(clusters < 2)).size:
        side = ("members", "non-members")[few[0] % 2]
        one = f"only 1 cluster holds {side}"
        what = one if clusters[few[0]] else f"there are no {side}"
        raise NotEstimableError(f"{what}: an interval needs 2")
    for task, (x, y) in enumerate(design.tasks):
        value, above, below = placements(values[x], values[y])
        found.append(value)
        for column, rows, part in ((2 * task, x, above), (2 * task + 1, y, below)):
            sums = cluster_sums(part - value, design.cluster[rows], design.n_clusters)
            parts[:, column] = sums / len(rows)
    return float(np.mean(found)), parts / len(found)


def _variance(design: Design, parts: np.ndarray) -> tuple[float, float]:
    """Variance of a mean of AUCs and its Satterthwaite degrees of freedom."""
    count = (design.held > 0).sum(axis=0)
    products = parts.T @ parts
    variances = np.diag(products) * count / (count - 1)
    # Clusters of one row and side have no products across cells.
    across = products.sum() - np.trace(products)
    total = design.n_clusters
    variance = float(variances.sum() + across * total / (total - 1))
    squares = float(np.sum(variances**2 / (count - 1)))
    df = float(variances.sum() ** 2 / squares) if squares > 0 else 1.0
    return max(variance, 0.0), df


def _perfect(value: float) -> bool:
    return value <= ZERO or value >= 1 - ZERO


def _pairs(design: Design) -> int:
    """Disjoint pairs of a member cluster and another, in the task with the fewest."""
    return int((design.held > 0).sum(axis=0).min())


def _perfect_p(design: Design) -> float:
    """Two-sided sign test where all disjoint pairs agree; never 0."""
    # Beyond 1000 pairs the power is no normal number.
    return 2 * 0.5 ** min(_pairs(design), 1000)


def tpr_by_task(design: Design, scores: ArrayLike, fpr: float) -> list[Tpr]:
    """:func:`tpr_at_fpr` of each task."""
    values = np.asarray(scores, dtype=np.float64)
    return [tpr_at_fpr(values[x], values[y], fpr) for x, y in design.tasks]


def tpr_estimate(
    design: Design, scores: ArrayLike, fpr: float, *, replicates: np.ndarray
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
    try:
        if not (rates := tpr_by_task(design, scores, fpr)):
            raise NotEstimableError("there is no row")
        low, high = intervals.percentile_interval(replicates)
    except NotEstimableError as error:
        return Estimate.missing(error.what, **design.size)
    values, thresholds, achieved, *_ = zip(*rates, strict=True)
    estimate = Estimate(float(np.mean(values)), **design.size).between(low, high)
    if high - low > ZERO:
        estimate = replace(estimate, se=float(np.nanstd(replicates)))
    else:
        estimate = replace(estimate, parity_low=None, parity_high=None)
    above = np.asarray(scores) > np.array(thresholds)[design.task]
    events, trials = (
        cluster_sums(rows & design.member, design.cluster, design.n_clusters)
        for rows in (above, True)
    )
    hits, tried = events.sum(), trials.sum()
    if min(hits, tried - hits) < intervals.FEW_EVENTS and np.count_nonzero(trials) > 1:
        sides = (estimate, intervals.rate_estimate(events, trials))
        ends = [x for one in sides for x in (one.value, one.low, one.high)]
        known = [x for x in ends if x is not None]
        low, high = min(known), max(known)
        estimate = replace(estimate, low=low, high=high, interval="korn-graubard")
    estimate = estimate.noting(f"achieved FPR {np.mean(achieved):.4g}")
    if unresolved := [tpr for tpr in rates if not tpr.resolvable]:
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
        ``B`` resamples, from :meth:`Design.draw`.

    Returns
    -------
    Shape ``(F, B)``; NaN where a resample lacks a side.
    """
    values = checked(scores)
    total = np.zeros((len(fprs), len(weights)))
    for x, y in design.tasks:
        x, y = (side[np.argsort(-values[side], kind="stable")] for side in (x, y))
        # Members strictly above each non-member, both from the largest score down.
        over = np.searchsorted(-values[x], -values[y], side="left")
        for columns, members, others in _resamples(design, weights, x, y):
            false = np.cumsum(others, axis=0)
            true = np.pad(np.cumsum(members, axis=0), ((1, 0), (0, 0)))
            lacking = (false[-1] == 0) | (true[-1] == 0)
            for row, fpr in enumerate(fprs):
                budget = np.floor(fpr * false[-1] + 1e-9)
                at = np.minimum((false <= budget).sum(axis=0), len(y) - 1)
                rate = true[over[at], np.arange(len(at))] / np.maximum(true[-1], 1)
                total[row, columns] += np.where(lacking, np.nan, rate)
    return total / max(len(design.tasks), 1)


@lru_cache(maxsize=64)
def chance(design: Design, fpr: float, *, seed: int, draws: int = 20000) -> Band:
    """TPR at a budget, averaged over tasks, of a score that knows nothing.

    Exact for one task (:func:`chance_band`), else the mean of independent draws of
    each task's law. Clusters of several rows count as the equally large clusters that
    they are worth, ``(sum n)^2 / sum n^2``, rounded down.
    """
    held = design.held
    size = np.floor(held.sum(axis=0) ** 2 / np.maximum((held**2).sum(axis=0), 1) + 1e-9)
    pairs = size.astype(np.int64).reshape(-1, 2).tolist()
    if len(pairs) == 1:
        n1, n0 = pairs[0]
        return chance_band(n1, n0, fpr)
    rng = np.random.default_rng(seed)
    mean, drawn = 0.0, np.zeros(draws)
    for n1, n0 in pairs:
        k = allowed(n0, fpr)
        drawn += rng.binomial(n1, rng.beta(k + 1, n0 - k, draws)) / n1
        mean += (k + 1) / (n0 + 1)
    low, high = np.quantile(drawn / len(pairs), [0.025, 0.975])
    return Band(mean / len(pairs), float(low), float(high))
