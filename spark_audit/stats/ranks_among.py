"""Canaries among candidates: ranks, exposure, chance values, tests of uniformity.

A canary is ranked by its NLL among ``N`` candidates of which it is one; rank 1 is the
likeliest. Drawn uniformly from its candidates, a canary that a model never saw has a
uniform rank: everything here is measured against that. A canary that is tied with
others gets what random orders of them would give it on average: under chance its mean
is that of a uniform rank. No bound on privacy is here
(:mod:`spark_audit.stats.epsilon`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike


class Ranks(NamedTuple):
    """Ranks of true candidates, shape ``(n,)`` each: ties counted behind, half, before.

    ``low`` is optimistic for an attacker and thus careful about privacy.
    """

    low: np.ndarray
    mid: np.ndarray
    high: np.ndarray


def candidate_ranks(nll: ArrayLike, true_index: ArrayLike) -> Ranks:
    """Rank of the true candidate of every set, in the caller's order.

    ``low = 1 + #(NLL < true)``, ``high = low + #(others with exactly the true NLL)``,
    ``mid`` between them.

    Parameters
    ----------
    nll
        Shape ``(n, N)`` or ``(N,)``: nats, lower = more likely.
    true_index
        Shape ``(n,)`` or a number: which candidate is the true one.

    Raises
    ------
    ValueError
        If an NLL is NaN: a score that is none must not look like memorisation.
    """
    table, true = _sets(nll, true_index)
    low = 1 + np.sum(table < true, axis=1)
    high = low + np.sum(table == true, axis=1) - 1
    return Ranks(low, (low + high) / 2, high)


def exposure_bits(
    rank: ArrayLike, n_candidates: ArrayLike, *, ties: ArrayLike = 0
) -> np.ndarray:
    """Exposure in bits, ``log2 N - log2 rank``, the canary inside the N.

    Carlini et al. (2019), "The Secret Sharer": between 0 and ``log2 N``. With ``ties``
    it is the mean over all ranks that breaking them can give. The exposure of the
    mid-rank is no such mean: under chance it is smaller than that of a uniform rank.

    Parameters
    ----------
    rank
        Ties counted behind (``Ranks.low``).
    ties
        Candidates with exactly the canary's NLL, itself not counted.
    """
    ranks, sizes = checked_ranks(rank, n_candidates)
    behind = np.asarray(ties, dtype=np.float64)
    checked_ranks(ranks + behind, sizes)
    # log2 of (rank + ties)! / (rank - 1)!, over as many ranks.
    span = scipy.special.gammaln(ranks + behind + 1) - scipy.special.gammaln(ranks)
    mean_log = np.where(behind > 0, span / np.log(2) / (behind + 1), np.log2(ranks))
    return np.asarray(np.log2(sizes) - mean_log)


def lower_tail_exposure(
    rank: ArrayLike, n_candidates: ArrayLike, *, ties: ArrayLike = 0
) -> np.ndarray:
    """The same from the other end, ``log2 N - log2(N + 1 - rank)``.

    A canary that a correction pushed below strings that were never there stands out as
    much as one that was memorised.
    """
    ranks, sizes = checked_ranks(rank, n_candidates)
    return exposure_bits(sizes + 1 - ranks - np.asarray(ties), sizes, ties=ties)


def top_k_credit(rank: ArrayLike, *, k: int, ties: ArrayLike = 0) -> np.ndarray:
    """Chance that a canary is among the first k when its ties are broken at random.

    0 or 1 without ties. ``rank`` and ``ties`` as for :func:`exposure_bits`.
    """
    ranks, behind = (np.asarray(x, dtype=np.float64) for x in (rank, ties))
    return np.clip((k - ranks + 1) / (behind + 1), 0.0, 1.0)


class Extrapolated(NamedTuple):
    """An exposure from a fitted distribution: an estimate, not a count.

    ``ks`` is the largest distance between the fit and the references, ``clipped``
    whether the fit was asked too far out and the exposure stops at ``log2(10 N)``.
    """

    exposure: float
    ks: float
    clipped: bool


def extrapolated_exposure(nll: float, references: ArrayLike) -> Extrapolated:
    """Exposure beyond ``log2 N`` from a skew-normal fitted to the references' NLL.

    ``-log2 F(nll)`` with F fitted by maximum likelihood (Carlini et al. 2019). Where F
    is below ``1 / (10 N)``, N references and the secret, the fit says nothing any more
    and the value is clipped there.
    """
    pool = _finite_or_inf(references)
    if pool.ndim != 1 or len(pool) < 20 or not np.isfinite(pool).all():
        raise ValueError("an extrapolation needs at least 20 finite references")
    if np.isnan(nll):
        raise ValueError("an NLL is NaN")
    if np.ptp(pool) == 0:
        raise ValueError("the references do not vary")
    # On one scale: the optimiser's steps are absolute.
    centre, scale = float(pool.mean()), float(pool.std())
    scaled = np.sort((pool - centre) / scale)
    fitted = scipy.stats.skewnorm(*scipy.stats.skewnorm.fit(scaled))
    ks = float(scipy.stats.ks_1samp(scaled, fitted.cdf).statistic)
    least = 1 / (10 * (len(pool) + 1))
    share = float(fitted.cdf((nll - centre) / scale))
    return Extrapolated(float(-np.log2(max(share, least))), ks, share < least)


def posterior_bits(nll_sum: ArrayLike, true_index: ArrayLike) -> np.ndarray:
    """Bits gained about the true candidate: ``log2(N q_true)``, shape ``(n,)``.

    ``q = softmax(-NLL summed over the string)`` is the posterior of an attacker who
    knows the candidates; 0 for a model that tells nothing, at most ``log2 N``, and
    negative where the model favours others.
    """
    table, true = _sets(nll_sum, true_index)
    surprise = -true[:, 0] - scipy.special.logsumexp(-table, axis=1)
    return np.asarray(np.log2(table.shape[1]) + surprise / np.log(2))


def _sets(nll: ArrayLike, true_index: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """NLL as ``(n, N)`` and the true ones as ``(n, 1)``."""
    table = np.atleast_2d(_finite_or_inf(nll))
    index = np.atleast_1d(np.asarray(true_index))
    if table.ndim != 2 or index.shape != (len(table),) or index.dtype.kind not in "iu":
        raise ValueError("nll must have one row, and true_index one integer, a set")
    if np.any((index < 0) | (index >= table.shape[1])):
        raise ValueError("a true_index is not among the candidates")
    return table, np.take_along_axis(table, index[:, None], axis=1)


def _finite_or_inf(nll: ArrayLike) -> np.ndarray:
    values = np.asarray(nll, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError("an NLL is NaN")
    return values


def checked_ranks(
    rank: ArrayLike, n_candidates: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 of one shape; refused where a rank is not one of 1..N."""
    ranks, sizes = np.broadcast_arrays(
        np.asarray(rank, dtype=np.float64), np.asarray(n_candidates, dtype=np.float64)
    )
    # A NaN fails the comparison too.
    if not np.all((ranks >= 1) & (ranks <= sizes)):
        raise ValueError("a rank is not between 1 and the number of candidates")
    return ranks, sizes
