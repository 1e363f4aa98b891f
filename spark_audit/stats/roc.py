"""How well a score tells members from non-members: AUC, TPR at a small FPR, chance.

A larger score speaks for membership; ties count one half. Rows come in clusters and
tasks: the unit of every variance and resample is the cluster, and figures are averaged
over tasks. The variance of an AUC is that of Obuchowski (1997), "Nonparametric analysis
of clustered ROC curve data", which for clusters of one row is that of DeLong et al.
(1988). What is undefined for plain rows raises ``NotEstimableError``; what cannot be
estimated is an ``Estimate.missing`` with its reason.

Rows are told one by one, too, at a declared share of false ones. A row's conformal p is
how often a row of a held-out cluster looks at least as familiar. Each held-out cluster
counts once, whatever the number of its rows, so p is valid for a row of a cluster like
them. Rows are named by Benjamini and Hochberg's procedure, whose bound on the expected
share of false ones holds for p values on one calibration set (Bates et al., 2023,
"Testing for outliers with conformal p-values", arXiv 2104.08279).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

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

COARSE = 10
"""With fewer false positives than this allowed, a TPR says little."""
ZERO = 1e-12


class Tpr(NamedTuple):
    """True positive rate at a budget of false positives.

    ``threshold`` is the score that must be exceeded, ``fpr`` the rate achieved by it,
    ``note`` empty, ``coarse`` or ``not resolvable`` with the reason.
    """

    value: float
    threshold: float
    fpr: float
    resolvable: bool
    note: str


class Band(NamedTuple):
    """What scores without any signal give: mean and central interval of the TPR."""

    mean: float
    low: float
    high: float


# --- rows -----------------------------------------------------------------------------


def auc(members: ArrayLike, non_members: ArrayLike) -> float:
    """``P(member > non-member) + P(equal) / 2``.

    Parameters
    ----------
    members, non_members
        Shapes ``(m,)`` and ``(n,)``.

    Raises
    ------
    NotEstimableError
        If a side is empty or a score is NaN.
    """
    x, y = _side(members, "member"), _side(non_members, "non-member")
    return placements(x, y)[0]


def tpr_at_fpr(members: ArrayLike, non_members: ArrayLike, fpr: float) -> Tpr:
    """Share of members above the strictest threshold that the budget allows.

    With ``k = floor(fpr n)``, the threshold is the (k+1)-th largest non-member score
    and a row must exceed it: at most k non-members do, so the achieved rate is never
    above ``fpr``, and what ties with the threshold counts as a non-member. Nothing is
    interpolated.

    Raises
    ------
    NotEstimableError
        If a side is empty or a score is NaN.
    """
    x, y = _side(members, "member"), _side(non_members, "non-member")
    k = allowed(len(y), fpr)
    threshold = float(np.partition(y, len(y) - 1 - k)[len(y) - 1 - k])
    note = ""
    if k < 1:
        needed = f"an FPR of {fpr:g} needs {int(np.ceil(1 / fpr))} non-members"
        note = f"not resolvable: {needed}, there are {len(y)}"
    elif k < COARSE:
        note = f"coarse: {k} of {len(y)} non-members set the threshold"
    above, false = (float(np.mean(side > threshold)) for side in (x, y))
    return Tpr(above, threshold, false, k >= 1, note)


def allowed(n: int, fpr: float) -> int:
    """How many of ``n`` non-members may be called members, ``floor(fpr n)``."""
    if not 0 < fpr < 1:
        raise ValueError("fpr must lie in (0, 1)")
    # 0.29 * 100 is 28.999999999999996.
    return int(np.floor(fpr * n + 1e-9))


def chance_band(n1: int, n0: int, fpr: float) -> Band:
    """TPR at a budget of false positives when the score knows nothing, exactly.

    The members above the (k+1)-th largest of ``n0`` exchangeable non-members follow
    BetaBinomial(n1, k + 1, n0 - k).

    Parameters
    ----------
    n1, n0
        Independent members and non-members.
    """
    if n1 < 1 or n0 < 1:
        raise NotEstimableError("a side is empty")
    k = allowed(n0, fpr)
    law = scipy.stats.betabinom(n1, k + 1, n0 - k)
    low, high = law.ppf([0.025, 0.975])
    return Band(float(law.mean()) / n1, float(low) / n1, float(high) / n1)


def placements(x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """AUC; share of ``y`` below each ``x``; share of ``x`` above each ``y``."""
    above, below = _ranks(x, y) / len(y), 1 - _ranks(y, x) / len(x)
    return float(above.mean()), above, below


def _ranks(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How many others each value exceeds; ties count one half."""
    order = np.sort(others)
    below, upto = (order.searchsorted(values, side) for side in ("left", "right"))
    return np.asarray((below + upto) / 2)


def _side(scores: ArrayLike, name: str) -> np.ndarray:
    values = checked(scores)
    if values.ndim != 1:
        raise ValueError("scores must have one dimension")
    if not len(values):
        raise NotEstimableError(f"there is no {name}")
    return values


def checked(scores: ArrayLike) -> np.ndarray:
    """Float64 scores, refused when one is NaN; infinite ones can be ordered."""
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise NotEstimableError("a score is NaN")
    return values


# --- clusters and tasks ---------------------------------------------------------------


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
    estimate = replace(plain, low=low, high=high, interval="delong", se=se)
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
    estimate = replace(plain, low=low, high=high, interval="delong", se=se)
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


# --- rows, each by itself -------------------------------------------------------------


def standardised(
    scores: ArrayLike, held_out: ArrayLike, task: ArrayLike, cluster: ArrayLike
) -> np.ndarray:
    """Scores on one scale for all tasks: by each task's held-out rows.

    Parameters
    ----------
    scores
        Shape ``(n,)``, NaN where a row has none.
    held_out
        Shape ``(n,)``, bool: never trained on.
    task, cluster
        Shape ``(n,)``, labels.

    Returns
    -------
    Shape ``(n,)``: distance to the median of the task's held-out rows in units of their
    median absolute deviation, a row's own cluster left out so that held-out rows are
    measured as trained ones are; NaN where fewer than two rows are left, or all alike.
    """
    x, held = np.asarray(scores, np.float64), np.asarray(held_out, bool)
    tasks, clusters = np.asarray(task), np.asarray(cluster)
    found = np.full(len(x), np.nan)
    known = held & np.isfinite(x)
    for name in np.unique(tasks):
        own = tasks == name
        for each in np.unique(clusters[own]):
            others = x[known & own & (clusters != each)]
            if len(others) < 2:
                continue
            middle = np.median(others)
            if spread := np.median(np.abs(others - middle)):
                rows = own & (clusters == each)
                found[rows] = (x[rows] - middle) / spread
    return found


def conformal_p(
    scores: ArrayLike, held_out: ArrayLike, cluster: ArrayLike
) -> np.ndarray:
    """How often a held-out row looks at least as familiar as each row.

    Parameters
    ----------
    scores
        Shape ``(n,)``, the larger the more familiar.
    held_out, cluster
        As in :func:`standardised`.

    Returns
    -------
    Shape ``(n,)``: p of trained rows, at least ``1 / (C + 1)`` of ``C`` held-out
    clusters; NaN for held-out rows, and for those without a score.
    """
    x, held = np.asarray(scores, np.float64), np.asarray(held_out, bool)
    known = held & np.isfinite(x)
    _, code, count = np.unique(
        np.asarray(cluster)[known], return_inverse=True, return_counts=True
    )
    order = np.argsort(x[known])
    weight = np.concatenate([[0.0], np.cumsum(1 / count[code[order]])])
    below = weight[np.searchsorted(x[known][order], x, side="left")]
    p = (1 + weight[-1] - below) / (1 + len(count))
    return np.where(held | ~np.isfinite(x), np.nan, np.minimum(p, 1.0))


def simes(p: ArrayLike) -> float:
    """One p of several of one cluster (Simes 1986), valid where they go together."""
    ordered = np.sort(np.asarray(p, np.float64))
    return float((ordered * len(ordered) / np.arange(1, len(ordered) + 1)).min())


MOST_P = 0.05
"""Nobody is named above it: where most are named, the procedure alone would reach p up
to the share, and name a stranger as often."""


def discoveries(p: ArrayLike, *, share: float) -> np.ndarray:
    """Those that are named: Benjamini and Hochberg (1995) at a share of false ones.

    And none whose own p is above :data:`MOST_P`.

    Parameters
    ----------
    p
        Shape ``(n,)``; NaN is never named.

    Returns
    -------
    Shape ``(n,)``, bool.
    """
    values = np.asarray(p, np.float64)
    known = np.isfinite(values)
    found = np.zeros(len(values), bool)
    if known.any():
        found[known] = scipy.stats.false_discovery_control(values[known]) <= share
    return found & (values <= MOST_P)
