"""Trend of the change of trained identifiers over their dose.

The dose of an identifier is the number of trained rows that contain it. Memory grows
with it, while a drift of the whole model moves all doses equally. The trend is a
weighted regression within the strata of :mod:`~spark_audit.stats.memory_contrast`; in
shapes, ``s`` are occurrences of identifiers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.stats.balance import effective_clusters
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import estimate_of
from spark_audit.stats.memory_contrast import (
    NONE_HELD_OUT,
    Sides,
    sums_by_stratum,
)


def dose_trend(change: ArrayLike, sides: Sides, dose: ArrayLike) -> Estimate:
    """Return the change of trained identifiers for each doubling of their dose.

    It is the slope on log2 of the dose in nats per token, weighted by tokens, within
    strata. Below 0, identifiers in more rows became likelier. Memory gives a slope;
    drift gives none.

    Parameters
    ----------
    change
        Shape ``(s,)``, as in :func:`spark_audit.stats.memory_contrast.memory`.
    sides
        Sides of the occurrences; those never trained on are left out.
    dose
        Shape ``(s,)``: number of trained rows that contain the identifier.

    Examples
    --------
    Identifiers of 1, 2 and 4 rows moved by 0, 0.5 and 1.1 nats; there are two
    held-out identifiers of their type:

    >>> from spark_audit.stats.memory_contrast import Sides
    >>> trained = [True, True, True, False, False]
    >>> sides = Sides.of(trained, clusters=list("abcde"), strata=[[0] * 5])
    >>> trend = dose_trend([0.0, -0.5, -1.1, 0.0, 0.0], sides, dose=[1, 2, 4, 0, 0])
    >>> round(trend.value, 2)
    -0.55
    """
    change = np.asarray(change, np.float64)  # (s,), nats
    tokens = np.asarray(sides.tokens, np.float64)  # (s,)

    is_used = (sides.cells >= 0) & sides.trained
    if not is_used.any():
        return Estimate.missing(NONE_HELD_OUT)

    doublings = np.log2(np.maximum(np.asarray(dose, np.float64), 1.0))  # (s,)
    if np.ptp(doublings[is_used]) == 0:
        return Estimate.missing("all identifiers stand in equally many trained rows")

    # The order is that of _slope_within_strata.
    columns = [
        tokens,
        tokens * doublings,
        tokens * doublings**2,
        change,
        change * doublings,
    ]
    table = sums_by_stratum(columns, sides, is_used)  # (clusters, 5 * strata)

    cluster_tokens, cluster_doublings, *_ = np.split(table, 5, axis=1)
    stratum_tokens = cluster_tokens.sum(axis=0)  # (strata,)
    mean_doublings = cluster_doublings.sum(axis=0) / np.where(
        stratum_tokens > 0, stratum_tokens, 1.0
    )

    # The weight of a cluster in a slope grows with the distance of its doses from the
    # mean. The effective number of clusters counts these weights.
    distance = cluster_doublings - mean_doublings * cluster_tokens  # (clusters, strata)
    leverage = (distance**2).sum(axis=1)  # (clusters,)
    if not leverage.any():
        return Estimate.missing("identifiers of one kind stand in equally many rows")

    return estimate_of(
        table,
        _slope_within_strata,
        n=round(float(stratum_tokens.sum())),
        df=max(effective_clusters(leverage) - 1, 1.0),
    )


def _slope_within_strata(totals: np.ndarray) -> np.ndarray:
    """Return the slope of the change on doublings, pooled within strata.

    From sums ``(..., 5 * strata)`` to ``(...)``. The sums are those of tokens n, of
    tokens times doublings d and times their squares dd, of the change y, and of the
    change times doublings yd.
    """
    n, d, dd, y, yd = np.split(totals, 5, axis=-1)  # each (..., strata)
    n = np.where(n > 0, n, 1.0)

    # Sums of products about the means of each stratum.
    covariance = (yd - y * d / n).sum(-1)
    variance = (dd - d * d / n).sum(-1)
    return np.asarray(covariance / variance)
