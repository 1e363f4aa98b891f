"""AUCs of rows that come in clusters and tasks, with their intervals.

The unit of every variance and resample is the cluster, and figures are averaged over
tasks. The variance of an AUC is that of Obuchowski (1997), "Nonparametric analysis
of clustered ROC curve data", which for clusters of one row is that of DeLong et al.
(1988). What cannot be estimated is an ``Estimate.missing`` with its reason.

In shapes, ``n`` are rows, ``C`` clusters, ``T`` tasks and ``B`` resamples. A *side* is
a task's members, or its non-members (*others*): of ``2 T`` sides, those of members
stand at even indices. :mod:`~spark_audit.stats.roc` has the figures of independent
rows, :mod:`~spark_audit.stats.clustered_tpr` the TPR of clustered ones, and
:mod:`~spark_audit.stats.roc_replicates` both in resamples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.stats import intervals
from spark_audit.stats.bootstrap import Weights, cluster_sums, draw_in_strata
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.roc import checked, placements

ZERO = 1e-12
"""Variances and distances of an AUC from 0 or 1 up to this size are rounding errors."""

MOST_PAIRS = 1000
"""Pairs of a sign test that count: with more, p would underflow."""


class TaskRows(NamedTuple):
    """Indices of the rows of one task, by side, each of shape ``(side,)``."""

    members: np.ndarray
    others: np.ndarray


@dataclass(frozen=True, eq=False)
class Design:
    """The side, cluster and task of each row.

    Parameters
    ----------
    member
        Shape ``(n,)``, bool.
    cluster, task
        Shape ``(n,)``, integer codes from 0. Figures are taken by task and averaged
        over tasks with equal weights; one task: all rows together.

    Examples
    --------
    Two mails of Ann are one cluster; Bob's and Cem's mails were held out:

    >>> design = Design.of([True, True, False, False], ["Ann", "Ann", "Bob", "Cem"])
    >>> design.cluster.tolist(), design.n_clusters
    ([0, 0, 1, 2], 3)
    """

    member: np.ndarray
    cluster: np.ndarray
    task: np.ndarray

    @classmethod
    def of(
        cls,
        member: ArrayLike,
        cluster: ArrayLike,
        task: ArrayLike | None = None,
    ) -> Design:
        """Return a design whose clusters and tasks are numbered in sorted order.

        Parameters
        ----------
        member
            Shape ``(n,)``: whether a row is a member.
        cluster, task
            Shape ``(n,)``: labels; without tasks all rows belong to one.
        """
        is_member = np.asarray(member, dtype=bool)
        if task is None:
            task = np.zeros(len(is_member))

        _, cluster_codes = np.unique(np.asarray(cluster), return_inverse=True)
        _, task_codes = np.unique(np.asarray(task), return_inverse=True)
        return cls(
            member=is_member,
            cluster=cluster_codes.astype(np.int64),
            task=task_codes.astype(np.int64),
        )

    def __post_init__(self) -> None:
        if not len(self.member) == len(self.cluster) == len(self.task):
            raise ValueError("member, cluster and task must have one row each")

    def take(self, rows: np.ndarray) -> Design:
        """Return the design of some of the rows.

        Their clusters are numbered anew from 0, in the same order, so that clusters
        without a row do not count. Tasks keep their codes.

        Parameters
        ----------
        rows
            Indices of rows, or a mask of shape ``(n,)``.
        """
        _, cluster_codes = np.unique(self.cluster[rows], return_inverse=True)
        return Design(
            member=self.member[rows],
            cluster=cluster_codes.astype(np.int64),
            task=self.task[rows],
        )

    @cached_property
    def n_clusters(self) -> int:
        """Number C of clusters: every code from 0 to the largest one has a row."""
        return int(self.cluster.max(initial=-1)) + 1

    @cached_property
    def n_tasks(self) -> int:
        """Number T of tasks: codes up to the largest one, also those without a row."""
        return int(self.task.max(initial=-1)) + 1

    @cached_property
    def rows_by_side(self) -> np.ndarray:
        """Number of rows of each cluster on each side, shape ``(C, 2 T)``."""
        side = 2 * self.task + ~self.member  # (n,), one more for non-members
        is_on_side = np.eye(2 * self.n_tasks)[side]  # (n, 2 T)
        return cluster_sums(is_on_side, self.cluster, self.n_clusters)

    @cached_property
    def clusters_by_side(self) -> np.ndarray:
        """Number of clusters with a row on each side, shape ``(2 T,)``."""
        count: np.ndarray = (self.rows_by_side > 0).sum(axis=0)
        return count

    @cached_property
    def smallest_side(self) -> int:
        """Clusters of the smallest side of any task, times the number of tasks.

        A figure is averaged over tasks, so that a row that is a cluster of its own on
        that side moves an AUC by up to ``1 / smallest_side``.

        >>> Design.of([True, True, False, False, False], range(5)).smallest_side
        2
        """
        sizes = self.clusters_by_side.reshape(-1, 2)  # (T, 2)
        used_sizes = sizes[sizes.any(axis=1)]  # of tasks with a row
        if not len(used_sizes):
            return 0
        return int(used_sizes.min()) * len(used_sizes)

    def draw(self, *, replicates: int, seed: int) -> Weights:
        """Return weights of the clusters in resamples drawn within task and side.

        ``replicates`` is their number B; elsewhere it is the figure in each of them.
        Clusters with rows of several tasks or of both sides form one further stratum.
        """
        is_present = self.rows_by_side > 0  # (C, 2 T)
        has_one_side = is_present.sum(axis=1) == 1

        # The stratum is the cluster's only side; -1 stands for several.
        stratum = np.where(has_one_side, is_present.argmax(axis=1), -1)  # (C,)
        return draw_in_strata(stratum, replicates=replicates, seed=seed)

    @cached_property
    def tasks(self) -> list[TaskRows]:
        """The rows of each task, by its code, for loops over tasks."""
        rows_by_task = []
        for code in range(self.n_tasks):
            is_in_task = self.task == code
            members = np.flatnonzero(is_in_task & self.member)
            others = np.flatnonzero(is_in_task & ~self.member)
            rows_by_task.append(TaskRows(members, others))
        return rows_by_task

    def missing(self, reason: str) -> Estimate:
        """Return a missing estimate for these rows, with the reason."""
        return Estimate.missing(reason, n=len(self.member), clusters=self.n_clusters)

    def point(self, value: float) -> Estimate:
        """Return an estimate for these rows, still without an interval.

        Its ``level`` (95%) is the confidence of all intervals that are added to it.
        """
        return Estimate(
            value,
            n=len(self.member),
            clusters=self.n_clusters,
            side_clusters=self.smallest_side,
        )


def auc_estimate(
    design: Design,
    scores: ArrayLike,
    *,
    replicates: np.ndarray | None = None,
) -> tuple[Estimate, float | None]:
    """Return the AUC, averaged over tasks, and its two-sided p value against 0.5.

    Parameters
    ----------
    design
        Members, clusters and tasks of ``n`` rows.
    scores
        Shape ``(n,)``: the larger, the likelier a member.
    replicates
        Shape ``(B,)``, the AUC in each resample, from
        :mod:`~spark_audit.stats.roc_replicates`: also the percentile interval.

    Returns
    -------
    estimate
        The AUC with its interval.
    p
        ``None`` where the estimate is missing or has no spread.

    Notes
    -----
    The clustered DeLong interval is taken on the logit scale with a t quantile, its
    degrees of freedom by Satterthwaite's formula over sides and tasks; p is below 0.05
    if the interval excludes 0.5. If the score separates the sides perfectly there is no
    variance. The bound is then exact for the largest number ``k`` of disjoint pairs of
    clusters, and p is that of their sign test, ``2 / 2^k``.

    Examples
    --------
    Six members and six others, each a cluster; members score higher in 29 of 36 pairs:

    >>> design = Design.of([True] * 6 + [False] * 6, range(12))
    >>> scores = [9, 8, 7, 6, 5, 2, 5.5, 4, 3, 1, 0, 6.5]
    >>> estimate, p = auc_estimate(design, scores)
    >>> round(estimate.value * 36, 6), estimate.interval
    (29.0, 'delong')
    """
    try:
        influence = _influence(design, scores)
    except NotEstimableError as error:
        return design.missing(error.what), None

    value = influence.auc
    estimate = design.point(value)
    if _is_perfect(value):
        return _perfect_auc(design, value)

    spread = _variance(design, influence.components)
    if spread.variance <= ZERO:
        return estimate.noting(intervals.NO_SPREAD), None

    # The logit scale keeps the interval inside of (0, 1). The delta method divides the
    # error by value (1 - value). An AUC of 0.5 is a logit of 0.
    se = float(np.sqrt(spread.variance))
    test = _t_test(
        float(scipy.special.logit(value)),
        se / (value * (1 - value)),
        spread.df,
        level=estimate.level,
    )
    low, high = scipy.special.expit([test.low, test.high]).tolist()

    estimate = replace(
        estimate,
        low=low,
        high=high,
        interval="delong",
        se=se,
        df=spread.df,
    )
    return intervals.with_percentile_interval(estimate, replicates), test.p


def _perfect_auc(design: Design, value: float) -> tuple[Estimate, float]:
    """Return an AUC of 0 or 1 with the exact interval of disjoint pairs, and p."""
    estimate = design.point(value)

    # The members win all disjoint pairs, or none.
    n_pairs = _disjoint_pairs(design)
    n_won = n_pairs if value > 0.5 else 0
    low, high = intervals.clopper_pearson(n_won, n_pairs, level=estimate.level)

    estimate = replace(
        estimate,
        low=low,
        high=high,
        interval="clopper-pearson",
    )
    note = f"perfect order: exact bound for {n_pairs} disjoint pairs of clusters"
    return estimate.noting(note), _p_of_perfect_order(design)


def auc_difference(
    design: Design,
    first: ArrayLike,
    second: ArrayLike,
    *,
    replicates: np.ndarray | None = None,
) -> tuple[Estimate, float | None]:
    """Return the AUC of one score minus that of another, and its p value.

    Parameters
    ----------
    design
        Members, clusters and tasks of ``n`` rows.
    first, second
        Shape ``(n,)``: two scores of the same rows; the second AUC is subtracted.
    replicates
        Shape ``(B,)``: difference of both scores' replicates from the same weights.

    Returns
    -------
    estimate
        The difference with its interval.
    p
        ``None`` where the estimate is missing or has no spread.

    Notes
    -----
    Paired DeLong with clusters: the variance of the difference of both scores' cluster
    components, t quantiles as in :func:`auc_estimate`. A perfect order has no variance,
    so p is at least that of its exact test. Two opposite perfect orders get the bounds
    of both exact intervals, each at half the error.

    Examples
    --------
    One score orders all nine pairs rightly, the other seven of them:

    >>> design = Design.of([True] * 3 + [False] * 3, range(6))
    >>> estimate, p = auc_difference(design, [6, 5, 4, 3, 2, 1], [6, 5, 2, 3, 4, 1])
    >>> round(estimate.value * 9, 6)
    2.0
    """
    try:
        of_first = _influence(design, first)
        of_second = _influence(design, second)
    except NotEstimableError as error:
        return design.missing(error.what), None

    difference = of_first.auc - of_second.auc
    estimate = design.point(difference)

    # With a perfect order the t test has too small a p, so use that of the exact test.
    least_p = 0.0
    if _is_perfect(of_first.auc) or _is_perfect(of_second.auc):
        least_p = _p_of_perfect_order(design)

    spread = _variance(design, of_first.components - of_second.components)
    if spread.variance <= ZERO:
        if abs(difference) < 1 - ZERO:
            return estimate.noting("the two order all pairs alike: no spread"), None
        return _opposite_perfect_orders(design, difference), least_p

    se = float(np.sqrt(spread.variance))
    test = _t_test(difference, se, spread.df, level=estimate.level)
    estimate = replace(
        estimate,
        low=max(-1.0, test.low),
        high=min(1.0, test.high),
        interval="delong",
        se=se,
        df=spread.df,
    )
    p = max(least_p, test.p)
    return intervals.with_percentile_interval(estimate, replicates), p


def _opposite_perfect_orders(design: Design, difference: float) -> Estimate:
    """Return a difference of 1 or -1 with the bounds of both exact intervals."""
    estimate = design.point(difference)

    # Each AUC gets half of the error: at a level of 95%, a one-sided bound at 98.75%.
    n_pairs = _disjoint_pairs(design)
    level_of_each = (1 + estimate.level) / 2
    least_auc, _ = intervals.clopper_pearson(n_pairs, n_pairs, level=level_of_each)

    # One AUC is at least least_auc, the other at most 1 - least_auc.
    least_difference = max(2 * least_auc - 1, -1.0)
    if difference > 0:
        low, high = least_difference, difference
    else:
        low, high = difference, -least_difference

    estimate = replace(
        estimate,
        low=low,
        high=high,
        interval="clopper-pearson",
    )
    return estimate.noting(
        f"opposite perfect orders: exact bounds for {n_pairs} disjoint pairs of "
        "clusters"
    )


class TTest(NamedTuple):
    """Ends of an interval, and the two-sided p value against 0."""

    low: float
    high: float
    p: float


def _t_test(value: float, se: float, df: float, *, level: float) -> TTest:
    """Return the interval and the p value of a value by Student's t.

    ``level``: confidence of the two-sided interval.
    """
    half_width = float(scipy.special.stdtrit(df, 0.5 + level / 2)) * se
    p = 2 * scipy.special.stdtr(df, -abs(value) / se)
    return TTest(low=value - half_width, high=value + half_width, p=float(p))


def auc_components(design: Design, scores: ArrayLike) -> np.ndarray:
    """Return the contribution of each cluster to an AUC, by side and task.

    The inner product of two scores' components is the covariance of their AUCs, up to a
    factor of nearly 1 (DeLong et al. 1988).

    Parameters
    ----------
    design
        Members, clusters and tasks of ``n`` rows.
    scores
        Shape ``(n,)``.

    Returns
    -------
    Shape ``(C * 2 T,)``: for each cluster, members and non-members of every task.

    Examples
    --------
    Member 0 is above all others, member 1 above half of them: the AUC is 0.75.

    >>> design = Design.of([True, True, False, False], range(4))
    >>> auc_components(design, [4.0, 2.0, 3.0, 1.0]).reshape(4, 2).sum(axis=1).tolist()
    [0.125, -0.125, -0.125, 0.125]
    """
    return _influence(design, scores).components.ravel()


class Influence(NamedTuple):
    """An AUC averaged over tasks, and how far each cluster lifts it on each side.

    ``components``: shape ``(C, 2 T)``; they sum to 0 over the clusters of a side.
    """

    auc: float
    components: np.ndarray


def _influence(design: Design, scores: ArrayLike) -> Influence:
    """Return the AUC averaged over tasks with its components by cluster and side.

    For a cluster on one side of a task, the component is
    ``(sum of its V - its rows * AUC) / rows of the whole side``, divided by the number
    of tasks. The AUC is that of the task. V is the share of the other side that scores
    below a member, or above a non-member.
    """
    values = _values_of_rows(design, scores)
    _check_two_clusters_a_side(design)

    aucs = []
    components = np.zeros_like(design.rows_by_side)  # (C, 2 T)
    for task, (members, others) in enumerate(design.tasks):
        placed = placements(values[members], values[others])
        aucs.append(placed.auc)

        # Members are at even indices, non-members at odd ones.
        components[:, 2 * task] = _components_of_side(
            design, members, placed.above - placed.auc
        )
        components[:, 2 * task + 1] = _components_of_side(
            design, others, placed.below - placed.auc
        )

    return Influence(
        auc=float(np.mean(aucs)),
        components=components / len(aucs),
    )


def _values_of_rows(design: Design, scores: ArrayLike) -> np.ndarray:
    """Return scores as float64, shape ``(n,)``; refuse scores without an order."""
    values = checked(scores)
    if values.shape != design.member.shape:
        raise ValueError("one score a row is needed")
    if not len(values):
        raise NotEstimableError("there is no row")
    if values.min() == values.max():
        raise NotEstimableError("all scores are equal: they order nothing")
    return values


def _check_two_clusters_a_side(design: Design) -> None:
    """Refuse a design with a side that has less than two clusters."""
    too_small = np.flatnonzero(design.clusters_by_side < 2)
    if not too_small.size:
        return

    first = too_small[0]
    side = ("members", "non-members")[first % 2]
    if design.clusters_by_side[first]:
        reason = f"only 1 cluster holds {side}"
    else:
        reason = f"there are no {side}"
    raise NotEstimableError(f"{reason}: an interval needs 2")


def _components_of_side(
    design: Design,
    rows: np.ndarray,
    deviations: np.ndarray,
) -> np.ndarray:
    """Return deviations summed by cluster, divided by the number of rows, ``(C,)``.

    ``rows``, ``deviations``: shape ``(side,)``, indices of the side's rows and how far
    the placement of each is from the AUC.
    """
    sums = cluster_sums(deviations, design.cluster[rows], design.n_clusters)
    component: np.ndarray = sums / len(rows)
    return component


class Spread(NamedTuple):
    """Variance of a mean of AUCs and its Satterthwaite degrees of freedom."""

    variance: float
    df: float


def _variance(design: Design, components: np.ndarray) -> Spread:
    """Return the variance of the mean AUC from components ``(C, 2 T)``."""
    clusters_of_side = design.clusters_by_side  # (2 T,)
    products = components.T @ components  # (2 T, 2 T)

    # The variance of each side, with its own number of clusters.
    variances = np.diag(products) * clusters_of_side / (clusters_of_side - 1)

    # Covariances of sides come only from clusters with rows on several sides.
    covariances = products.sum() - np.trace(products)
    n_clusters = design.n_clusters
    variance = float(variances.sum() + covariances * n_clusters / (n_clusters - 1))

    # Degrees of freedom by Satterthwaite, since sides differ in spread. The formula is
    # for independent variances: it has no term for the covariances of sides. Without
    # any spread they are 1, which no caller uses: there is no test then.
    squares = float(np.sum(variances**2 / (clusters_of_side - 1)))
    df = 1.0
    if squares > 0:
        df = float(variances.sum() ** 2 / squares)
    return Spread(variance=max(variance, 0.0), df=df)


def _is_perfect(auc: float) -> bool:
    """Return whether a score separates the sides, in either direction."""
    return auc <= ZERO or auc >= 1 - ZERO


def _disjoint_pairs(design: Design) -> int:
    """Return the number of disjoint pairs of a member and a non-member cluster.

    A cluster on both sides pairs with itself, so the smaller side of a task limits its
    pairs. The task with the fewest pairs counts.
    """
    return int(design.clusters_by_side.min())


def _p_of_perfect_order(design: Design) -> float:
    """Return p of the two-sided sign test where all disjoint pairs agree; never 0."""
    return 2 * 0.5 ** min(_disjoint_pairs(design), MOST_PAIRS)
