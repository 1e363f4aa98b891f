"""Estimates with intervals from per-cluster sums.

Decisions use the cluster jackknife with t quantiles (CV3). The percentile bootstrap
interval is added for parity with SPARK. Rates with few events get the Korn-Graubard
interval. No interval has zero width: if the data have no spread, the estimate has no
interval and says so. The primitives raise ``NotEstimableError``; the functions that
return an ``Estimate`` give ``Estimate.missing`` with the same words.

In shapes, ``C`` are clusters, ``J`` summed columns and ``B`` resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.stats.bootstrap import Weights, weighted_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.percentiles import percentile_interval

Statistic = Callable[[np.ndarray], np.ndarray]
"""A smooth function of summed columns: shape ``(..., J)`` to ``(...)``."""

NO_SPREAD = "all clusters agree: no spread to form an interval from"

FEW_EVENTS = 10
"""With fewer events or non-events than this, a rate gets the exact interval."""

_ZERO = 1e-12
"""Standard errors up to this share of the value (or of 1) are rounding."""


def ratio(sums: np.ndarray) -> np.ndarray:
    """Return the statistic ``sums[..., 0] / sums[..., 1]``, shape ``(...)``."""
    return np.asarray(sums[..., 0] / sums[..., 1])


def left_out(sums: np.ndarray, statistic: Statistic) -> tuple[float, np.ndarray]:
    """Return a statistic of the column totals, and without each cluster in turn.

    Parameters
    ----------
    sums
        Shape ``(C, J)``: per-cluster sums. A row of zeros is a cluster without data:
        leaving it out changes nothing.
    statistic
        Maps totals ``(..., J)`` to values ``(...)``.

    Returns
    -------
    value
        The statistic on all clusters.
    values_without_one
        Shape ``(C,)``: the statistic without each cluster.

    Raises
    ------
    NotEstimableError
        If fewer than 2 clusters hold data, or a value is not finite.

    Examples
    --------
    >>> value, without_one = left_out(np.array([[1.0, 1.0], [3.0, 1.0]]), ratio)
    >>> value, without_one.tolist()
    (2.0, [3.0, 1.0])
    """
    if not np.isfinite(sums).all():
        raise NotEstimableError("a sum is NaN or infinite")
    n_clusters = int(sums.any(axis=1).sum())
    if n_clusters < 2:
        raise NotEstimableError(_too_few(n_clusters))

    totals = sums.sum(axis=0)  # (J,)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(totals))
        values_without_one = statistic(totals - sums)  # (C,)

    if not np.isfinite(value):
        raise NotEstimableError("the statistic is undefined on these data")
    if not np.isfinite(values_without_one).all():
        raise NotEstimableError("the statistic is undefined without one cluster")
    return value, values_without_one


def _too_few(n_clusters: int) -> str:
    """Return the reason why one cluster or none gives no interval."""
    if n_clusters:
        return "only 1 cluster holds data, an interval needs 2"
    return "no cluster holds data"


def clopper_pearson(x: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Return the exact binomial interval for ``x`` events in ``n`` trials.

    Both may be real numbers. Each end by itself is a one-sided bound at ``(1 + level) /
    2``.

    Examples
    --------
    No event in ten trials, and the rule of three:

    >>> low, high = clopper_pearson(0, 10)
    >>> low, round(high, 3)
    (0.0, 0.308)
    >>> round(clopper_pearson(0, 100, level=0.9)[1], 3)
    0.03
    """
    if not 0 <= x <= n or n <= 0:
        raise ValueError("clopper_pearson needs 0 <= x <= n and n > 0")

    # Quantiles of beta distributions (Clopper and Pearson 1934).
    tail = (1 - level) / 2
    low = 0.0
    high = 1.0
    if x > 0:
        low = float(scipy.special.betaincinv(x, n - x + 1, tail))
    if x < n:
        high = float(scipy.special.betainccinv(x + 1, n - x, tail))
    return low, high


def effective_trials(rate: Estimate, n: float) -> float:
    """Return the number of independent trials that are worth ``n`` clustered ones.

    Korn and Graubard (1998) with the degrees-of-freedom adjustment that survey
    software uses: ``min(n, p(1-p)/V (t_{n-1}/t)^2)`` with V the jackknife variance and
    t the quantile of the rate's own interval, ``t_{C-1}`` where nothing is stratified.
    That quantile is read off the distance from ``rate.value`` to ``rate.low``, so the
    interval must not be clipped.

    Examples
    --------
    Two clusters in three have 8 of 10 events, the third has 2: much less than 30
    independent trials.

    >>> rate = ratio_estimate([8, 8, 2], [10, 10, 10])
    >>> round(effective_trials(rate, 30), 2)
    1.36
    """
    share = rate.value
    assert share is not None
    assert rate.low is not None
    assert rate.se is not None

    # Ratio of the half width with n - 1 degrees of freedom to the actual one.
    half_width_of_n = scipy.special.stdtrit(n - 1, 0.5 + rate.level / 2) * rate.se
    adjustment = (half_width_of_n / (share - rate.low)) ** 2
    return float(min(n, share * (1 - share) / rate.se**2 * adjustment))


def estimate_of(
    sums: np.ndarray,
    statistic: Statistic,
    *,
    n: int,
    replicates: np.ndarray | None = None,
    bounds: tuple[float, float] | None = None,
    df: float | None = None,
    scale: np.ndarray | None = None,
    strata: np.ndarray | None = None,
) -> Estimate:
    """Return the estimate of a smooth function of summed columns.

    Parameters
    ----------
    sums
        Shape ``(C, J)``: per-cluster sums; a row of zeros is a cluster without data.
    statistic
        Maps totals ``(..., J)`` to values ``(...)``.
    n
        Number of averaged units (tokens, spans).
    replicates
        Shape ``(B,)``: the statistic in each resample, for the percentile interval.
    bounds
        Limits of the statistic's range; the decision interval is clipped to them.
    df
        Degrees of freedom; default: clusters with data minus 1.
    scale
        Shape ``(C,)``: weight of each cluster with data in the jackknife variance;
        default: ``(C - 1) / C``.
    strata
        Shape ``(C,)``: stratum of each cluster, for ``V = sum_h (C_h - 1) / C_h
        sum_{c in h} (value_(c) - value)^2`` with degrees of freedom by Satterthwaite's
        approximation, as strata differ in spread.

    Returns
    -------
    The estimate with the jackknife-t interval. If all clusters agree it has none, with
    a note; with data in fewer than 2 clusters it is missing.

    Examples
    --------
    The mean of four clusters of one token each has the usual standard error:

    >>> sums = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [6.0, 1.0]])
    >>> mean = estimate_of(sums, ratio, n=4)
    >>> mean.value, round(mean.se, 4), mean.df
    (3.0, 1.0801, 3.0)
    """
    has_data = sums.any(axis=1)  # (C,)
    sums_with_data = sums[has_data]
    n_clusters = len(sums_with_data)

    try:
        value, values_without_one = left_out(sums_with_data, statistic)
    except NotEstimableError as error:
        return Estimate.missing(error.what, n=n, clusters=n_clusters)

    # The cluster jackknife, centred at the value (CV3).
    squares = (values_without_one - value) ** 2
    if strata is not None:
        spread = _stratified_variance(squares, strata[has_data])
    else:
        if scale is None:
            scale = np.array((n_clusters - 1) / n_clusters)
        spread = JackknifeVariance(np.sum(scale * squares), df=None)

    freedom = spread.df
    if freedom is None:
        freedom = n_clusters - 1 if df is None else df

    estimate = Estimate(value, n=n, clusters=n_clusters)
    se = float(np.sqrt(spread.variance))
    if se <= _ZERO * max(1.0, abs(value)):
        return estimate.noting(NO_SPREAD)

    half_width = float(scipy.special.stdtrit(freedom, 0.5 + estimate.level / 2)) * se
    least, most = bounds or (-np.inf, np.inf)
    estimate = replace(
        estimate,
        low=max(value - half_width, least),
        high=min(value + half_width, most),
        interval="jackknife-t",
        se=se,
        df=float(freedom),
    )
    return with_percentile_interval(estimate, replicates)


class JackknifeVariance(NamedTuple):
    """A variance, and its degrees of freedom; ``None``: those of the caller."""

    variance: float
    df: float | None


def _stratified_variance(squares: np.ndarray, strata: np.ndarray) -> JackknifeVariance:
    """Return the stratified jackknife variance of clusters with data.

    Degrees of freedom by Satterthwaite's approximation; ``None`` where no stratum has
    a spread. ``squares``, ``strata``: shape ``(C,)``.
    """
    _, stratum, n_clusters = np.unique(strata, return_inverse=True, return_counts=True)
    # For each stratum h: (C_h - 1) / C_h times its squares.
    variances = (n_clusters - 1) / n_clusters * np.bincount(stratum, squares)

    variance = variances.sum()
    squares_by_df = np.sum(variances**2 / np.maximum(n_clusters - 1, 1))
    df = variance**2 / squares_by_df if squares_by_df else None
    return JackknifeVariance(variance, df=df)


class Estimand(NamedTuple):
    """A smooth function of per-cluster sums, as :func:`estimate_of` takes it.

    The sums of a ``rate`` are events and trials.
    """

    sums: np.ndarray
    statistic: Statistic
    n: int
    bounds: tuple[float, float] | None = None
    rate: bool = False

    def plus(self, constant: float) -> Estimand:
        """Return the same function with a constant added."""
        statistic = self.statistic
        return self._replace(statistic=lambda sums: statistic(sums) + constant)

    def minus(self, subtrahend: Estimand) -> Estimand:
        """Return this function minus another one, paired by cluster.

        The difference is no rate and has no bounds; ``n`` is that of this function.
        """
        width = self.sums.shape[1]

        def difference(sums: np.ndarray) -> np.ndarray:
            """Return differences ``(...)`` of sums ``(..., J + J')``."""
            first = self.statistic(sums[..., :width])
            second = subtrahend.statistic(sums[..., width:])
            return np.asarray(first - second)

        columns = np.hstack([self.sums, subtrahend.sums])  # (C, J + J')
        return Estimand(columns, difference, self.n)

    def estimate(self, replicates: np.ndarray | None = None) -> Estimate:
        """Return its estimate; ``replicates`` ``(B,)`` give the percentile interval."""
        if self.rate:
            events, trials = self.sums.T
            return rate_estimate(events, trials, replicates=replicates)

        return estimate_of(
            self.sums,
            self.statistic,
            n=self.n,
            replicates=replicates,
            bounds=self.bounds,
        )


KeyT = TypeVar("KeyT")


def replicates_of(
    estimands: Mapping[KeyT, Estimand | Estimate], weights: Weights
) -> dict[KeyT, np.ndarray]:
    """Return each estimand in every resample, shape ``(B,)``, from one matrix product.

    Parameters
    ----------
    estimands
        Estimands by any key; existing estimates have no replicates.
    weights
        The same resamples for all, so that differences are paired.

    Examples
    --------
    Two ratios of two clusters, the first of which is drawn twice:

    >>> weights = Weights(drawn=np.array([[2, 0]]), column=np.arange(2))
    >>> first = Estimand(np.array([[1.0, 2.0], [3.0, 2.0]]), ratio, n=4)
    >>> second = Estimand(np.array([[2.0, 2.0], [3.0, 2.0]]), ratio, n=4)
    >>> replicates = replicates_of({"a": first, "b": second}, weights)
    >>> {key: values.tolist() for key, values in replicates.items()}
    {'a': [0.5], 'b': [1.0]}
    """
    resampled = {
        key: estimand
        for key, estimand in estimands.items()
        if isinstance(estimand, Estimand)
    }
    if not resampled:
        return {}

    # Sum blocks before comparing columns, since comparing many rows would take longest.
    sums = [weights.block_sums(estimand.sums) for estimand in resampled.values()]

    # Checkpoints share many columns, such as counts and figures of the reference, so
    # resample each distinct column once.
    distinct, index_of_column = np.unique(np.hstack(sums), axis=1, return_inverse=True)

    # NumPy 2.0.0 returns these indices with a second axis.
    index_of_column = index_of_column.ravel()

    # Keep each sum contiguous in memory, as the statistics read it.
    totals = weighted_sums(weights.drawn, distinct).T.copy()  # (distinct, B)

    replicates = {}
    first = 0
    for key, estimand in resampled.items():
        end = first + estimand.sums.shape[1]
        columns = index_of_column[first:end].tolist()
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates[key] = estimand.statistic(totals[columns].T)
        first = end
    return replicates


def estimates_of(
    estimands: Mapping[KeyT, Estimand | Estimate], replicates: Mapping[KeyT, np.ndarray]
) -> dict[KeyT, Estimate]:
    """Return estimates with the intervals that their replicates give.

    Parameters
    ----------
    estimands
        Estimands by any key; existing estimates stay unchanged.
    replicates
        By the same keys, each of shape ``(B,)``, from :func:`replicates_of`.
    """
    estimates = {}
    for key, estimand in estimands.items():
        if isinstance(estimand, Estimand):
            estimates[key] = estimand.estimate(replicates.get(key))
        else:
            estimates[key] = estimand
    return estimates


def ratio_estimate(
    num: ArrayLike,
    den: ArrayLike,
    *,
    replicates: np.ndarray | None = None,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """Return the estimate of a ratio of sums, ``sum num / sum den``, over clusters.

    Parameters
    ----------
    num, den
        Shape ``(C,)``: per-cluster sums, ``den >= 0``; a cluster with ``den`` 0 holds
        no data.
    replicates
        Also give the percentile interval, see :func:`estimate_of`.
    bounds
        Limits of the range, such as ``(0, 1)``.

    Examples
    --------
    Three clusters of 10, 20 and 30 tokens:

    >>> mean = ratio_estimate([5.0, 12.0, 13.0], [10, 20, 30])
    >>> mean.value, round(mean.se, 4), mean.n
    (0.5, 0.068, 60)
    """
    sums = np.column_stack([num, den]).astype(np.float64)  # (C, 2)

    total = float(sums[:, 1].sum())
    count = 0
    if np.isfinite(total):
        count = round(total)

    return estimate_of(sums, ratio, n=count, replicates=replicates, bounds=bounds)


def rate_estimate(
    events: ArrayLike,
    trials: ArrayLike,
    *,
    replicates: np.ndarray | None = None,
) -> Estimate:
    """Return the estimate of a rate over clusters, with an interval of positive width.

    The interval is jackknife-t, clipped to [0, 1]. With fewer than :data:`FEW_EVENTS`
    events or non-events, or if all clusters agree, it is Korn and Graubard's: Clopper
    and Pearson's at the effective number of trials. If all or no trials are events,
    each cluster counts as one trial. That interval is conservative.

    Parameters
    ----------
    events, trials
        Shape ``(C,)``: per-cluster counts (or credits), ``0 <= events <= trials``.
    replicates
        Also give the percentile interval, see :func:`estimate_of`.

    Examples
    --------
    No event in five clusters of four trials: as many trials as clusters.

    >>> rate = rate_estimate([0, 0, 0, 0, 0], [4, 4, 4, 4, 4])
    >>> rate.value, rate.interval, round(rate.high, 3)
    (0.0, 'korn-graubard', 0.522)
    """
    rate = ratio_estimate(events, trials, replicates=replicates)
    if rate.value is None:
        return rate

    n_events = float(np.sum(events))
    n_trials = float(np.sum(trials))
    n_effective = n_trials
    if rate.value in (0.0, 1.0):
        # The variance is 0 because there are too few events.
        n_effective = float(rate.clusters)
    elif rate.se:
        n_effective = effective_trials(rate, n_trials)

    return rate_limits(rate, n_events, n_trials, n_effective)


def rate_limits(
    rate: Estimate, events: float, trials: float, effective: float
) -> Estimate:
    """Return a rate with its interval in [0, 1], exact where events are few or alike.

    Parameters
    ----------
    rate
        The rate, with the interval of the jackknife if there is one.
    events, trials
        Counts over all clusters.
    effective
        Independent trials of the exact interval.
    """
    is_few = min(events, trials - events) < FEW_EVENTS
    if not is_few and rate.low is not None and rate.high is not None:
        return replace(rate, low=max(rate.low, 0.0), high=min(rate.high, 1.0))

    share = min(max(rate.value or 0.0, 0.0), 1.0)
    low, high = clopper_pearson(share * effective, effective)

    # The exact interval exists even if the jackknife has none.
    note = rate.note
    if note == NO_SPREAD:
        note = ""
    return replace(rate, low=low, high=high, interval="korn-graubard", note=note)


def median_estimate(
    values: ArrayLike,
    clusters: ArrayLike,
    *,
    replicates: np.ndarray,
) -> Estimate:
    """Return the median of the pooled values, with the percentile interval.

    Parameters
    ----------
    values, clusters
        Shape ``(n,)``: observations and their cluster codes.
    replicates
        Shape ``(B,)``, from ``median_replicates``: the median in each resample of
        clusters.

    Examples
    --------
    >>> median = median_estimate(
    ...     [1.0, 2.0, 9.0], [0, 1, 2], replicates=np.array([1.0, 2.0, 2.0, 9.0])
    ... )
    >>> median.value, median.interval
    (2.0, 'percentile')
    """
    pooled = np.asarray(values, dtype=np.float64)
    n_clusters = len(np.unique(clusters))
    if not np.isfinite(pooled).all():
        return Estimate.missing("a value is NaN or infinite", clusters=n_clusters)
    if n_clusters < 2:
        reason = _too_few(n_clusters)
        return Estimate.missing(reason, n=len(pooled), clusters=n_clusters)

    median = Estimate(float(np.median(pooled)), n=len(pooled), clusters=n_clusters)
    median = with_percentile_interval(median, replicates)
    if median.parity_low is None or median.parity_high is None:
        return median

    median = median.decided_by_percentiles(median.parity_low, median.parity_high)
    return median.noting("percentile interval, conservative for discrete values")


def with_percentile_interval(
    estimate: Estimate, replicates: np.ndarray | None
) -> Estimate:
    """Return the estimate with the percentile interval, or a note on its absence.

    It stands beside the deciding interval, for parity with SPARK. Without replicates
    the estimate stays as it is.

    Parameters
    ----------
    replicates
        Shape ``(B,)``: the figure in each resample; what is not finite is dropped.
    """
    if replicates is None:
        return estimate

    finite = replicates[np.isfinite(replicates)]
    n_dropped = len(replicates) - len(finite)
    if n_dropped:
        estimate = estimate.noting(
            f"{n_dropped} of {len(replicates)} resamples give no value and were dropped"
        )
    if not len(finite):
        return estimate

    low, high = percentile_interval(finite, level=estimate.level)
    if high - low <= _ZERO * max(1.0, abs(high)):
        return estimate.noting("resamples agree: no percentile interval")
    return replace(estimate, parity_low=low, parity_high=high)
