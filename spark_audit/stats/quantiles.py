"""Quantiles of values that stand in clusters, with their intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import rate_estimate


def quantile_estimate(
    values: ArrayLike, clusters: ArrayLike, *, share: float
) -> Estimate:
    """Return the least value that at least a share of the values do not exceed.

    Parameters
    ----------
    values, clusters
        Shape ``(n,)``: observations, and their cluster codes, from 0 without gaps.
    share
        The quantile: 0.5 is the lower median.

    Notes
    -----
    The interval is Woodruff's (1952): the limits of the share of values up to the
    quantile, over clusters, are looked up among the values. It has no limits where all
    values between them are the same.

    Examples
    --------
    >>> median = quantile_estimate(
    ...     np.arange(1.0, 41.0), clusters=np.arange(40), share=0.5
    ... )
    >>> median.value, median.low, median.high
    (20.0, 14.0, 27.0)
    """
    pooled = np.asarray(values, dtype=np.float64)  # (n,)
    codes = np.asarray(clusters)  # (n,)
    quantile = _value_at(pooled, share)

    # How well the share of values up to the quantile is known.
    is_within = pooled <= quantile  # (n,), bool
    counts = np.stack([is_within, np.ones(len(pooled))], axis=1)  # (n, 2)
    events, trials = cluster_sums(counts, codes).T  # each (clusters,)
    rate = rate_estimate(events, trials)
    if rate.value is None or rate.low is None or rate.high is None:
        return replace(rate, n=len(pooled))

    estimate = Estimate(
        quantile, n=len(pooled), clusters=rate.clusters, level=rate.level
    )
    low = _value_at(pooled, share - (rate.value - rate.low))
    high = _value_at(pooled, share + (rate.high - rate.value))
    if high <= low:
        return estimate.noting("values agree: no interval")
    return replace(estimate, low=low, high=high, interval=rate.interval)


def _value_at(values: np.ndarray, share: float) -> float:
    """Return the least value that at least a share of ``values`` do not exceed."""
    share = min(max(share, 0.0), 1.0)
    return float(np.quantile(values, share, method="inverted_cdf"))
