"""Permutation test of the memory contrast: trained against held-out identifiers.

The test asks whether trained identifiers changed more than held-out ones of their
stratum, if chance had decided which cluster is trained on. Clusters of a stratum are
dealt to the two sides again and again, and p is the share of deals that differ at least
as much as the data. The contrast itself stands in
:mod:`~spark_audit.stats.memory_contrast`; the audits ``matched``, ``twins`` and
``extract`` use both.

In shapes, ``s`` are occurrences, ``U`` the units of a stratum (its clusters that can be
dealt), and ``B`` deals, each of which gives every unit a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.memory_contrast import Sides

MOST_DEALS_OF_LOT = 1000
"""Most deals that are drawn at once: between lots the test may stop."""

MOST_CELLS_OF_LOT = 2**21
"""Most units times deals of one lot, which limits memory."""

EXCEEDANCES_TO_STOP = 200
"""Stop after this many deals as extreme as the observed value: p is then above 0.02,
and its relative error is a tenth (Besag and Clifford, 1991)."""


class StratumUnits(NamedTuple):
    """Clusters of one stratum that can be dealt to either side.

    ``weight``: the stratum's share of trained tokens. ``is_trained``: shape ``(U,)``
    as in the data, or ``(B, U)`` for B deals. ``change`` (nats), ``tokens``: shape
    ``(U,)``, sums over a cluster's occurrences in the stratum.
    """

    weight: float
    is_trained: np.ndarray
    change: np.ndarray
    tokens: np.ndarray


def permutation_p(
    change: ArrayLike, sides: Sides, *, seed: int, replicates: int = 9999
) -> float | None:
    """Return the two-sided permutation p of no difference, if chance dealt the sides.

    Within each stratum clusters are dealt anew to both sides; the number on each side
    stays. The statistic is the difference over its standard error, which allows sides
    of unequal spread if there are many clusters. A cluster that lies on both sides of a
    stratum is left out.

    Parameters
    ----------
    change
        Shape ``(s,)``: nats, as in
        :func:`~spark_audit.stats.memory_contrast.memory`.
    sides
        Side, cluster and stratum of each occurrence.
    replicates
        Most deals that are drawn. Fewer are drawn if p is clearly large
        (:data:`EXCEEDANCES_TO_STOP`).

    Returns
    -------
    ``None`` if no stratum has clusters of both sides to deal, or if both sides changed
    equally.

    Examples
    --------
    Three against three clusters can be dealt in 20 ways; 2 are as extreme:

    >>> change = [-5.0, -6.0, -7.0, 1.0, 2.0, 3.0]
    >>> trained = [True, True, True, False, False, False]
    >>> sides = Sides.of(trained, clusters=list("abcdef"), strata=[[0] * 6])
    >>> p = permutation_p(change, sides, seed=0)
    >>> 0.09 < p < 0.11, least_p(sides)
    (True, 0.05)
    """
    strata = _strata_to_deal(change, sides)

    # The data are one deal, of shape (1, U).
    as_it_is = [units._replace(is_trained=units.is_trained[None]) for units in strata]
    observed = _absolute_t(as_it_is)[0]
    if not observed > 0:  # also 0 where there is no stratum to deal
        return None

    largest = max(len(units.change) for units in strata)
    deals_of_lot = min(MOST_DEALS_OF_LOT, max(1, MOST_CELLS_OF_LOT // largest))

    rng = np.random.default_rng(seed)
    n_exceeding = 0
    n_drawn = 0
    while n_drawn < replicates and n_exceeding < EXCEEDANCES_TO_STOP:
        n_deals = min(deals_of_lot, replicates - n_drawn)
        dealt_anew = [_dealt_anew(units, n_deals, rng) for units in strata]

        # Count ties despite rounding.
        t = _absolute_t(dealt_anew)  # (n_deals,)
        n_exceeding += int((t >= observed * (1 - 1e-12)).sum())
        n_drawn += n_deals

    # The data count as one deal, so p is never 0.
    return (1 + n_exceeding) / (1 + n_drawn)


def least_p(sides: Sides, *, replicates: int = 9999) -> float:
    """Return the smallest p that :func:`permutation_p` can give.

    A few clusters can be dealt in a few ways only. If nothing can be dealt, it is 1.
    """
    no_change = np.zeros(len(sides.tokens))
    n_ways_by_stratum = [
        scipy.special.comb(len(units.is_trained), units.is_trained.sum())
        for units in _strata_to_deal(no_change, sides)
    ]
    return float(max(1 / np.prod(n_ways_by_stratum), 1 / (1 + replicates)))


def _strata_to_deal(change: ArrayLike, sides: Sides) -> list[StratumUnits]:
    """Return the strata that have clusters of either side to deal.

    Clusters on both sides are left out.
    """
    is_used = sides.cells >= 0  # (s,)
    n_tokens = np.asarray(sides.tokens, np.float64)

    # A unit is a cluster within a stratum.
    keys = np.stack([sides.cells, sides.clusters], axis=1)[is_used]
    units, unit_of_occurrence = np.unique(keys, axis=0, return_inverse=True)
    stratum_of_unit = units[:, 0]

    columns = [
        change,
        n_tokens,
        sides.trained,
        np.ones(len(n_tokens)),
        n_tokens * sides.trained,
    ]
    table = np.stack(columns, axis=1)[is_used]  # (used occurrences, 5)
    sums = cluster_sums(table, unit_of_occurrence.ravel())  # (units, 5)
    change_sums, tokens, n_trained, n_occurrences, trained_tokens = sums.T

    is_on_one_side = (n_trained == 0) | (n_trained == n_occurrences)

    strata = []
    for stratum in np.unique(stratum_of_unit):
        is_inside = stratum_of_unit == stratum
        can_be_dealt = is_inside & is_on_one_side

        # With all units on one side there is only one way to deal them.
        n_units_trained = np.count_nonzero(n_trained[can_be_dealt])
        if not 0 < n_units_trained < can_be_dealt.sum():
            continue

        weight = float(trained_tokens[is_inside].sum() / trained_tokens.sum())
        strata.append(
            StratumUnits(
                weight=weight,
                is_trained=n_trained[can_be_dealt] > 0,
                change=change_sums[can_be_dealt],
                tokens=tokens[can_be_dealt],
            )
        )
    return strata


def _dealt_anew(
    units: StratumUnits, n_deals: int, rng: np.random.Generator
) -> StratumUnits:
    """Return the units with ``is_trained`` of shape ``(n_deals, U)``, by chance."""
    n_trained = units.is_trained.sum()
    order = rng.random((n_deals, len(units.is_trained))).argsort(1)  # (n_deals, U)
    return units._replace(is_trained=order < n_trained)


def _absolute_t(strata: Sequence[StratumUnits]) -> np.ndarray:
    """Return ``|t|`` of the weighted difference of two sides, shape ``(B,)``.

    t is the weighted mean over strata of (trained minus held-out), over its standard
    error. Each stratum has ``is_trained`` of shape ``(B, U)``.
    """
    difference = np.zeros(1)  # becomes (B,)
    variance = np.zeros(1)

    for units in strata:
        is_trained = units.is_trained.astype(np.float64)  # (B, U)
        trained = _mean_of_side(is_trained, units)
        held_out = _mean_of_side(1.0 - is_trained, units)

        difference = difference + units.weight * (trained.mean - held_out.mean)
        variance = variance + units.weight**2 * trained.variance
        variance = variance + units.weight**2 * held_out.variance

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.abs(difference) / np.sqrt(variance), posinf=np.inf)


class SideMean(NamedTuple):
    """Mean change per token of one side in each deal, and its variance: ``(B,)``."""

    mean: np.ndarray
    variance: np.ndarray


def _mean_of_side(is_on_side: np.ndarray, units: StratumUnits) -> SideMean:
    """Return the mean of a side in each deal.

    ``is_on_side``: shape ``(B, U)``, 1 or 0.
    """
    # Products of x (change) and n (tokens) whose sums over the side are needed. One
    # matrix product serves all deals.
    x = units.change
    n = units.tokens
    products = np.stack([x, n, x**2, x * n, n**2], axis=1)  # (U, 5)
    sum_x, sum_n, sum_xx, sum_xn, sum_nn = (is_on_side @ products).T  # each (B,)

    # The linearised variance of a ratio of sums over clusters: sum (x - mean n)^2,
    # divided by (sum n)^2, with the correction k / (k - 1) for k units.
    mean = sum_x / sum_n
    squares = np.maximum(sum_xx - 2 * mean * sum_xn + mean**2 * sum_nn, 0.0)
    n_units = is_on_side.sum(axis=1)
    variance = squares / sum_n**2 * n_units / np.maximum(n_units - 1, 1)
    return SideMean(mean=mean, variance=variance)
