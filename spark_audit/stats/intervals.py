"""Estimates with intervals from per-cluster sums.

Decisions use the cluster jackknife with t quantiles (CV3); the percentile bootstrap
interval stands beside it for parity with SPARK; rates with few events get the
Korn-Graubard interval. No interval has zero width: where the data give no spread, the
estimate says so and has none. The primitives raise ``NotEstimableError``; the
functions that return an ``Estimate`` give ``Estimate.missing`` with the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.stats.bootstrap import Weights, weighted_sums
from spark_audit.stats.estimate import Estimate

Statistic = Callable[[np.ndarray], np.ndarray]
"""A smooth function of summed columns: shape ``(..., J)`` to ``(...)``."""

NO_SPREAD = "all clusters agree: no spread to form an interval from"
FEW_EVENTS = 10
"""With fewer events or non-events than this, a rate gets the exact interval."""

_ZERO = 1e-12
"""Standard errors up to this share of the value (or of 1) are rounding."""


def ratio(sums: np.ndarray) -> np.ndarray:
    """The statistic ``sums[..., 0] / sums[..., 1]``."""
    return np.asarray(sums[..., 0] / sums[..., 1])


def left_out(sums: np.ndarray, statistic: Statistic) -> tuple[float, np.ndarray]:
    """A statistic of the column totals, and without each cluster in turn.

    Parameters
    ----------
    sums
        Shape ``(C, J)``: per-cluster sums. A row of zeros is a cluster without data:
        leaving it out changes nothing.

    Returns
    -------
    value
        On all clusters.
    values
        Shape ``(C,)``.

    Raises
    ------
    NotEstimableError
        If fewer than 2 clusters hold data, or a value is not finite.
    """
    if not np.isfinite(sums).all():
        raise NotEstimableError("a sum is NaN or infinite")
    clusters = int(sums.any(axis=1).sum())
    if clusters < 2:
        raise NotEstimableError(_too_few(clusters))
    totals = sums.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(totals))
        values = statistic(totals - sums)
    if not np.isfinite(value):
        raise NotEstimableError("the statistic is undefined on these data")
    if not np.isfinite(values).all():
        raise NotEstimableError("the statistic is undefined without one cluster")
    return value, values


def _too_few(clusters: int) -> str:
    one = "only 1 cluster holds data, an interval needs 2"
    return one if clusters else "no cluster holds data"


def percentile_interval(
    replicates: ArrayLike, *, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of bootstrap replicates; NaN replicates are dropped."""
    values = np.asarray(replicates, dtype=np.float64)
    if not len(kept := values[~np.isnan(values)]):
        raise NotEstimableError("no resample gives a value")
    low, high = np.quantile(kept, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def clopper_pearson(x: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Exact binomial interval for ``x`` events in ``n`` trials, each real-valued.

    Either end by itself is the bound of one side at ``(1 + level) / 2``.
    """
    if not 0 <= x <= n or n <= 0:
        raise ValueError("clopper_pearson needs 0 <= x <= n and n > 0")
    tail = (1 - level) / 2
    low = scipy.special.betaincinv(x, n - x + 1, tail) if x > 0 else 0.0
    high = scipy.special.betainccinv(x + 1, n - x, tail) if x < n else 1.0
    return float(low), float(high)


def effective_trials(rate: Estimate, n: float) -> float:
    """Independent trials that tell as much of a rate as ``n`` clustered ones do.

    Korn and Graubard (1998) with the degrees-of-freedom adjustment that survey
    software uses: ``min(n, p(1-p)/V (t_{n-1}/t)^2)`` with V the jackknife variance and
    t the quantile of the rate's own interval, ``t_{C-1}`` where nothing is stratified.
    """
    share, low, se = rate.value, rate.low, rate.se
    assert share is not None
    assert low is not None
    assert se is not None
    reach = scipy.special.stdtrit(n - 1, 0.5 + rate.level / 2) * se
    return float(min(n, share * (1 - share) / se**2 * (reach / (share - low)) ** 2))


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
    """Estimate of a smooth function of summed columns.

    Parameters
    ----------
    sums
        Shape ``(C, J)``: per-cluster sums; a row of zeros is a cluster without data.
    statistic
        Maps totals ``(..., J)`` to values ``(...)``.
    n
        What was averaged (tokens, spans).
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
    With the jackknife-t interval; without one, and saying so, where all clusters
    agree; missing where fewer than 2 clusters hold data.
    """
    held = sums[sums.any(axis=1)]
    clusters = len(held)
    try:
        value, values = left_out(held, statistic)
    except NotEstimableError as error:
        return Estimate.missing(error.what, n=n, clusters=clusters)
    squares = (values - value) ** 2
    # The cluster jackknife, centred at the value (CV3).
    factor = (clusters - 1) / clusters if scale is None else scale
    variance, freedom = np.sum(factor * squares), clusters - 1 if df is None else df
    if strata is not None:
        _, stratum, count = np.unique(
            strata[sums.any(axis=1)], return_inverse=True, return_counts=True
        )
        own = (count - 1) / count * np.bincount(stratum, squares)
        variance, weight = own.sum(), np.sum(own**2 / np.maximum(count - 1, 1))
        freedom = variance**2 / weight if weight else freedom
    se, plain = float(np.sqrt(variance)), Estimate(value, n=n, clusters=clusters)
    if se <= _ZERO * max(1.0, abs(value)):
        return plain.noting(NO_SPREAD)
    reach = float(scipy.special.stdtrit(freedom, 0.5 + plain.level / 2)) * se
    low, high = bounds or (-np.inf, np.inf)
    low, high = max(value - reach, low), min(value + reach, high)
    estimate = replace(
        plain,
        low=low,
        high=high,
        interval="jackknife-t",
        se=se,
        df=float(freedom),
    )
    return with_parity(estimate, replicates)


class Estimand(NamedTuple):
    """A smooth function of per-cluster sums: what :func:`estimate_of` takes.

    Of a ``rate`` they are events and trials.
    """

    sums: np.ndarray
    statistic: Statistic
    n: int
    bounds: tuple[float, float] | None = None
    rate: bool = False

    def plus(self, constant: float) -> Estimand:
        """The same function and a constant."""
        statistic = self.statistic
        return self._replace(statistic=lambda sums: statistic(sums) + constant)

    def minus(self, other: Estimand) -> Estimand:
        """Its difference from another one, paired by cluster."""
        width = self.sums.shape[1]

        def statistic(sums: np.ndarray) -> np.ndarray:
            own, others = sums[..., :width], sums[..., width:]
            return np.asarray(self.statistic(own) - other.statistic(others))

        return Estimand(np.hstack([self.sums, other.sums]), statistic, self.n)

    def estimate(self, replicates: np.ndarray | None = None) -> Estimate:
        """Its estimate; ``replicates`` give the percentile interval."""
        if self.rate:
            return rate_estimate(*self.sums.T, replicates=replicates)
        return estimate_of(
            self.sums,
            self.statistic,
            n=self.n,
            replicates=replicates,
            bounds=self.bounds,
        )


K = TypeVar("K")


def replicates_of(
    estimands: Mapping[K, Estimand | Estimate], weights: Weights
) -> dict[K, np.ndarray]:
    """Each estimand in every resample, shape ``(B,)``; of all in one product.

    Parameters
    ----------
    weights
        The same resamples for all, so that differences are paired.
    """
    parts = {k: one for k, one in estimands.items() if isinstance(one, Estimand)}
    if not parts:
        return {}
    # Before columns are compared: many rows would take longer than all else.
    sums = [weights.block_sums(one.sums) for one in parts.values()]
    # Checkpoints share most columns: what is counted, and figures of the reference.
    distinct, places = np.unique(np.hstack(sums), axis=1, return_inverse=True)
    # Each sum in one piece of memory, as the statistics read it.
    totals = weighted_sums(weights.drawn, distinct).T.copy()
    # NumPy 2.0.0 gives the places a second axis.
    columns, found = iter(places.ravel()), dict[K, np.ndarray]()
    with np.errstate(divide="ignore", invalid="ignore"):
        for key, one in parts.items():
            own = [*islice(columns, one.sums.shape[1])]
            found[key] = one.statistic(totals[own].T)
    return found


def estimates_of(
    estimands: Mapping[K, Estimand | Estimate], drawn: Mapping[K, np.ndarray]
) -> dict[K, Estimate]:
    """Estimates with the intervals that their replicates give; others as they are."""
    return {
        key: one.estimate(drawn.get(key)) if isinstance(one, Estimand) else one
        for key, one in estimands.items()
    }


def ratio_estimate(
    num: ArrayLike,
    den: ArrayLike,
    *,
    replicates: np.ndarray | None = None,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """Estimate of a ratio of sums, ``sum num / sum den``, over clusters.

    Parameters
    ----------
    num, den
        Shape ``(C,)``: per-cluster sums, ``den >= 0``; a cluster with ``den`` 0 holds
        no data.
    replicates
        Also give the percentile interval, see :func:`estimate_of`.
    bounds
        Limits of the range, such as ``(0, 1)``.
    """
    sums = np.column_stack([num, den]).astype(np.float64)
    total = float(sums[:, 1].sum())
    count = round(total) if np.isfinite(total) else 0
    return estimate_of(sums, ratio, n=count, replicates=replicates, bounds=bounds)


def rate_estimate(
    events: ArrayLike, trials: ArrayLike, *, replicates: np.ndarray | None = None
) -> Estimate:
    """Estimate of a rate over clusters; its interval never has zero width.

    Jackknife-t clipped to [0, 1]; with fewer than :data:`FEW_EVENTS` events or
    non-events, or where all clusters agree, Korn and Graubard's: Clopper and Pearson's
    at the effective number of trials, or as many as clusters where all or none are
    events. Conservative, and never of zero width.

    Parameters
    ----------
    events, trials
        Shape ``(C,)``: per-cluster counts (or credits), ``0 <= events <= trials``.
    replicates
        Also give the percentile interval, see :func:`estimate_of`.
    """
    found = ratio_estimate(events, trials, replicates=replicates)
    if found.value is None:
        return found
    happened, tried = float(np.sum(events)), float(np.sum(trials))
    n = effective_trials(found, tried) if found.se else tried
    if found.value in (0.0, 1.0):
        # Their variance is 0 for want of events.
        n = float(found.clusters)
    return rate_limits(found, happened, tried, n)


def rate_limits(
    rate: Estimate, events: float, trials: float, effective: float
) -> Estimate:
    """A rate with its interval in [0, 1], exact where the events are few or alike.

    Parameters
    ----------
    effective
        Independent trials of the exact interval.
    """
    few = min(events, trials - events) < FEW_EVENTS
    if not few and rate.low is not None and rate.high is not None:
        return replace(rate, low=max(rate.low, 0.0), high=min(rate.high, 1.0))
    share = min(max(rate.value or 0.0, 0.0), 1.0)
    low, high = clopper_pearson(share * effective, effective)
    note = "" if rate.note == NO_SPREAD else rate.note
    return replace(rate, low=low, high=high, interval="korn-graubard", note=note)


def median_estimate(
    values: ArrayLike, clusters: ArrayLike, *, replicates: np.ndarray
) -> Estimate:
    """Median of the pooled values with the percentile interval over clusters.

    Parameters
    ----------
    values, clusters
        Shape ``(n,)``: observations and their cluster codes.
    replicates
        Shape ``(B,)``, from ``median_replicates``.
    """
    pooled, held = np.asarray(values, dtype=np.float64), len(np.unique(clusters))
    if not np.isfinite(pooled).all():
        return Estimate.missing("a value is NaN or infinite", clusters=held)
    if held < 2:
        return Estimate.missing(_too_few(held), n=len(pooled), clusters=held)
    estimate = Estimate(float(np.median(pooled)), n=len(pooled), clusters=held)
    estimate = with_parity(estimate, replicates)
    if estimate.parity_low is None or estimate.parity_high is None:
        return estimate
    return estimate.between(estimate.parity_low, estimate.parity_high).noting(
        "percentile interval, conservative for discrete values"
    )


def with_parity(estimate: Estimate, replicates: np.ndarray | None) -> Estimate:
    """Add the percentile interval, or the reason why there is none.

    Without replicates the estimate stays as it is.
    """
    if replicates is None:
        return estimate
    kept = replicates[np.isfinite(replicates)]
    if dropped := len(replicates) - len(kept):
        estimate = estimate.noting(
            f"{dropped} of {len(replicates)} resamples give no value and were dropped"
        )
    if not len(kept):
        return estimate
    low, high = percentile_interval(kept, level=estimate.level)
    if high - low <= _ZERO * max(1.0, abs(high)):
        return estimate.noting("resamples agree: no percentile interval")
    return replace(estimate, parity_low=low, parity_high=high)
