"""AUC and TPR with their intervals where rows come in clusters and tasks.

The unit of every variance and resample is the cluster: the variance of an AUC is that
of Obuchowski (1997), "Nonparametric analysis of clustered ROC curve data", which for
clusters of one row is that of DeLong et al. (1988). Figures are averaged over tasks.
What cannot be estimated is an ``Estimate.missing`` with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.results import Estimate
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.intervals import NO_SPREAD, clopper_pearson, percentile_interval
from spark_audit.stats.roc import checked, logit_interval, placements
from spark_audit.stats.weights import Blocks, Weights, draw_in_strata

ZERO = 1e-12
_CHUNK = 1 << 20


@dataclass(frozen=True)
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
        tasks = np.zeros(len(sides)) if task is None else np.asarray(task)
        codes = [
            np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)
            for labels in (cluster, tasks)
        ]
        if any(len(code) != len(sides) for code in codes):
            raise ValueError("member, cluster and task must have one row each")
        return cls(sides, *codes)

    @cached_property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.cluster.max(initial=-1)) + 1

    @cached_property
    def held(self) -> np.ndarray:
        """Shape ``(C, 2 T)``: rows of each cluster among a task's members, others."""
        cell = 2 * self.task + ~self.member
        width = 2 * (int(self.task.max(initial=-1)) + 1)
        return cluster_sums(np.eye(width)[cell], self.cluster, self.n_clusters)

    def draw(self, *, replicates: int, seed: int) -> Weights:
        """Bootstrap weights of the clusters, drawn within task and side.

        Clusters with rows of several tasks or of both sides form one further stratum.

        Returns
        -------
        Shape ``(replicates, C)``, int16.
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
    design: Design,
    scores: ArrayLike,
    *,
    replicates: np.ndarray | None = None,
    level: float = 0.95,
) -> Estimate:
    """AUC, averaged over tasks, with the clustered DeLong interval.

    The interval is taken on the logit scale with a t quantile, its degrees of freedom
    by Satterthwaite's formula over sides and tasks. Where the score separates the
    sides perfectly there is no variance: the bound is then the exact one for as many
    disjoint pairs of clusters as there are.

    Parameters
    ----------
    scores
        Shape ``(n,)``.
    replicates
        Shape ``(B,)``, from :func:`auc_replicates`: also the percentile interval.
    """
    n, clusters = len(design.member), design.n_clusters
    try:
        value, parts = _influence(design, np.asarray(scores, dtype=np.float64))
    except NotEstimableError as error:
        return Estimate.missing(error.what, n=n, clusters=clusters)
    variance, df = _variance(design, parts)
    plain = Estimate(value, level=level, n=n, clusters=clusters)
    if variance <= ZERO:
        if not _perfect(value):
            return plain.noting(NO_SPREAD)
        pairs = _pairs(design)
        low, high = clopper_pearson(round(value) * pairs, pairs, level=level)
        return replace(plain, low=low, high=high, interval="clopper-pearson").noting(
            f"perfect order: exact bound for {pairs} disjoint pairs of clusters"
        )
    reach = float(scipy.special.stdtrit(df, 0.5 + level / 2))
    low, high = logit_interval(value, variance, reach)
    estimate = replace(
        plain, low=low, high=high, interval="delong", se=float(np.sqrt(variance))
    )
    return _with_percentile(estimate, replicates)


def auc_difference(
    design: Design,
    first: ArrayLike,
    second: ArrayLike,
    *,
    replicates: np.ndarray | None = None,
    level: float = 0.95,
) -> tuple[Estimate, float | None]:
    """AUC of one score minus that of another over the same rows, and its p value.

    Paired DeLong with clusters: the variance of the difference of both scores'
    cluster components, t quantiles as in :func:`auc_estimate`. A perfect order has no
    variance: p is then at least that of its exact test (:func:`auc_test`), and two
    opposite perfect orders get the bounds of both exact intervals, each at half the
    error.

    Parameters
    ----------
    replicates
        Shape ``(B,)``: difference of both scores' replicates from the same weights.
    """
    n, clusters = len(design.member), design.n_clusters
    try:
        a, ours = _influence(design, np.asarray(first, dtype=np.float64))
        b, theirs = _influence(design, np.asarray(second, dtype=np.float64))
    except NotEstimableError as error:
        return Estimate.missing(error.what, n=n, clusters=clusters), None
    variance, df = _variance(design, ours - theirs)
    plain = Estimate(a - b, level=level, n=n, clusters=clusters)
    least = _perfect_p(design) if any(_perfect(each) for each in (a, b)) else 0.0
    if variance <= ZERO:
        if abs(a - b) < 1 - ZERO:
            return plain.noting("the two order all pairs alike: no spread"), None
        pairs = _pairs(design)
        reach = 2 * clopper_pearson(pairs, pairs, level=0.5 + level / 2)[0] - 1
        ends = sorted([a - b, (a - b) * max(reach, -1.0)])
        note = f"opposite perfect orders: exact bounds for {pairs} disjoint pairs of "
        note += "clusters"
        return replace(
            plain, low=ends[0], high=ends[1], interval="clopper-pearson"
        ).noting(note), least
    se = float(np.sqrt(variance))
    reach = float(scipy.special.stdtrit(df, 0.5 + level / 2)) * se
    estimate = replace(
        plain,
        low=max(-1.0, a - b - reach),
        high=min(1.0, a - b + reach),
        interval="delong",
        se=se,
    )
    p = max(least, float(2 * scipy.special.stdtr(df, -abs(a - b) / se)))
    return _with_percentile(estimate, replicates), p


def auc_test(design: Design, scores: ArrayLike) -> float:
    """Two-sided p value of an AUC of 0.5, from the clustered variance.

    Of a perfect order, that of the sign test which the exact bound of
    :func:`auc_estimate` belongs to: ``2 / 2^k`` for ``k`` disjoint pairs of clusters.

    Raises
    ------
    NotEstimableError
        As :func:`auc_estimate` would be missing, or without spread.
    """
    value, parts = _influence(design, np.asarray(scores, dtype=np.float64))
    if _perfect(value):
        return _perfect_p(design)
    variance, df = _variance(design, parts)
    if variance <= ZERO:
        raise NotEstimableError(NO_SPREAD)
    # On the logit scale, so that p < 0.05 where the 95 % interval leaves 0.5 out.
    distance = scipy.special.logit(value) * value * (1 - value) / np.sqrt(variance)
    return float(2 * scipy.special.stdtr(df, -abs(distance)))


def auc_components(design: Design, scores: ArrayLike) -> np.ndarray:
    """What each cluster moves an AUC by, on each side of each task: flat.

    Inner products of two scores' components are their AUCs' covariance, but for a
    factor of nearly 1 (DeLong et al. 1988).
    """
    return _influence(design, np.asarray(scores, dtype=np.float64))[1].ravel()


def auc_replicates(design: Design, scores: ArrayLike, weights: Weights) -> np.ndarray:
    """AUC, averaged over tasks, in every resample of clusters.

    Parameters
    ----------
    weights
        Shape ``(B, C)``, from :meth:`Design.draw`.

    Returns
    -------
    Shape ``(B,)``; NaN where a resample lacks a side. One sort, then O(B n).
    """
    values = checked(np.asarray(scores, dtype=np.float64))
    total = np.zeros(len(weights))
    count = 0
    for x, y in design.tasks:
        y = y[np.argsort(values[y], kind="stable")]
        ends = [
            np.searchsorted(values[y], values[x], side=side)
            for side in ("left", "right")
        ]
        used, of_x, of_y = renumbered(design, x, y)
        # Cell (j, c): members of cluster c with j non-members below, ties half each.
        place = scipy.sparse.csr_array(
            (np.full(2 * len(x), 0.5), (np.concatenate(ends), np.tile(of_x, 2))),
            (len(y) + 1, len(used)),
        )
        for columns, part in blocks(weights, used, len(y)):
            below = np.zeros((len(y) + 1, part.shape[1]))
            np.cumsum(part[of_y], axis=0, out=below[1:])
            above = place @ part
            with np.errstate(invalid="ignore"):
                total[columns] += np.einsum("jb,jb->b", below, above) / (
                    below[-1] * above.sum(axis=0)
                )
        count += 1
    return total / count


def renumbered(
    design: Design, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clusters that some rows come from, and the rows' places among them."""
    both = design.cluster[np.concatenate([x, y])]
    used, place = np.unique(both, return_inverse=True)
    return used, place[: len(x)], place[len(x) :]


def blocks(
    weights: Weights, used: np.ndarray, rows: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Slices of replicates with some clusters' weights, ``(C, b)`` in float64."""
    step = max(1, _CHUNK // max(rows, 1))
    for start in range(0, len(weights), step):
        part = slice(start, min(start + step, len(weights)))
        if isinstance(weights, Blocks):
            drawn = weights.drawn[part][:, weights.block[used]]
        else:
            drawn = weights[part][:, used]
        yield part, drawn.T.astype(np.float64, order="C")


def _influence(design: Design, scores: np.ndarray) -> tuple[float, np.ndarray]:
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
    found = []
    parts = np.zeros_like(held)
    clusters = (held > 0).sum(axis=0)
    for task, (x, y) in enumerate(design.tasks):
        for side, count in zip(
            ("members", "non-members"), clusters[2 * task : 2 * task + 2], strict=True
        ):
            if count < 2:
                what = (
                    f"only 1 cluster holds {side}" if count else f"there are no {side}"
                )
                raise NotEstimableError(f"{what}: an interval needs 2")
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


def _with_percentile(estimate: Estimate, replicates: np.ndarray | None) -> Estimate:
    if replicates is None:
        return estimate
    low, high = percentile_interval(replicates, level=estimate.level)
    if high - low <= ZERO:
        return estimate.noting("resamples agree: no percentile interval")
    return replace(estimate, parity_low=low, parity_high=high)
