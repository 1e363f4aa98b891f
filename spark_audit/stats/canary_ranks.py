"""Ranks and exposure of canaries, and the ranks that chance gives.

A canary is ranked by its NLL among ``N`` candidates of which it is one; rank 1 is the
likeliest. Drawn uniformly from its candidates, a canary that a model never saw has a
uniform rank: exact moments and distributions of figures under it, what a test can
detect, and tests of uniformity. A canary that is tied with others gets what random
orders of them would give it on average: under chance its mean is that of a uniform
rank.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.stats.intervals import clopper_pearson

Of = Literal["exposure", "rank"]

_GRID = 1 << 19
"""Points of the null distribution of a sum: of 50 canaries among 512, the grid of their
mean has a step of 0.00002 bits."""

_ROUNDING = 1e-12
"""Tail probabilities below this are rounding of the Fourier transform."""


def candidate_rank(nll: ArrayLike, true_index: int) -> tuple[int, int]:
    """Rank of the true candidate, ties counted behind, and how many are tied with it.

    Parameters
    ----------
    nll
        Shape ``(N,)``: nats, lower = more likely.

    Raises
    ------
    ValueError
        If an NLL is NaN: a score that is none must not look like memorisation.
    """
    values = np.asarray(nll, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError("an NLL is NaN")
    if not 0 <= true_index < len(values):
        raise ValueError("the true one is not among the candidates")
    own = values[true_index]
    return 1 + int(np.sum(values < own)), int(np.sum(values == own)) - 1


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
        Ties counted behind, as :func:`candidate_rank` has it.
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
    """Return exposure from the other end, ``log2 N - log2(N + 1 - rank)``.

    Shape ``(n,)``: one per canary.

    A canary that a correction pushed below strings that were never there stands out as
    much as one that was memorised.
    """
    ranks, sizes = checked_ranks(rank, n_candidates)
    return exposure_bits(sizes + 1 - ranks - np.asarray(ties), sizes, ties=ties)


def top_k_credit(rank: ArrayLike, *, k: int, ties: ArrayLike = 0) -> np.ndarray:
    """Return the chance that a canary is among the first k, ties broken at random.

    Shape ``(n,)``: 0 or 1 without ties. ``rank`` and ``ties`` are as for
    :func:`exposure_bits`.
    """
    ranks, behind = (np.asarray(x, dtype=np.float64) for x in (rank, ties))
    return np.clip((k - ranks + 1) / (behind + 1), 0.0, 1.0)


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


def null_moments(n_candidates: int, *, of: Of = "exposure") -> tuple[float, float]:
    """Mean and standard deviation of a uniform rank among N, or of its exposure."""
    values = _values(n_candidates, of)
    return float(values.mean()), float(values.std())


@dataclass(frozen=True)
class NullMean:
    """Distribution of a mean over n independent canaries with uniform ranks.

    ``probability[i]`` is the chance of the value ``(first + i * step) / n``.
    """

    n: int
    first: float
    step: float
    probability: np.ndarray

    def above(self, value: float) -> float:
        """One-sided p value: the chance of at least ``value``."""
        # A mean of mid-ranks may lie between two points: the larger p value.
        place = math.floor((value * self.n - self.first) / self.step + 1e-6)
        return float(self.probability[max(place, 0) :].sum().clip(_ROUNDING, 1.0))

    def quantile(self, q: float) -> float:
        """Smallest value whose cumulated chance is at least ``q``."""
        i = int(np.searchsorted(np.cumsum(self.probability), q - _ROUNDING))
        i = min(i, len(self.probability) - 1)
        return (self.first + i * self.step) / self.n

    def band(self, level: float = 0.95) -> tuple[float, float]:
        """Central band of this level."""
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)


def null_mean(n_candidates: ArrayLike, *, of: Of = "exposure") -> NullMean:
    """Exact null distribution of the mean rank or mean exposure of n canaries.

    By convolution (a power in the Fourier domain). Ranks are integers, so theirs is
    exact; exposures are put on a grid of half a million points for the sum, each
    shared between the two nearest points so that no mean is moved.

    Parameters
    ----------
    n_candidates
        Shape ``(n,)``: the size of each canary's set. They must be independent: pools
        that canaries share make their ranks dependent.
    """
    sizes = np.asarray(n_candidates, dtype=np.int64)
    if sizes.ndim != 1 or not len(sizes):
        raise ValueError("n_candidates must have shape (n,), n > 0")
    if sizes.min() < 2:
        raise ValueError("a rank needs at least 2 candidates")
    return _null_mean(tuple(sorted(Counter(sizes.tolist()).items())), of)


@lru_cache(maxsize=32)
def _null_mean(counts: tuple[tuple[int, int], ...], of: Of) -> NullMean:
    n = sum(count for _, count in counts)
    # Steps of 1 keep ranks exact.
    least, step = 1.0, 1.0
    if of == "exposure":
        least, step = 0.0, float(sum(c * np.log2(size) for size, c in counts)) / _GRID
    parts = []
    for size, count in counts:
        # Equal masses at real positions, shared between the neighbouring grid points.
        position = (_values(size, of) - least) / step
        low = np.floor(position).astype(np.int64)
        share = position - low
        where, mass = np.r_[low, low + 1], np.r_[1 - share, share] / size
        parts.append((np.bincount(where[mass > 0], mass[mass > 0]), count))
    length = sum(count * (len(pmf) - 1) for pmf, count in parts) + 1
    fast = scipy.fft.next_fast_len(length, real=True)
    product = np.ones(fast // 2 + 1, dtype=np.complex128)
    for pmf, count in parts:
        product *= scipy.fft.rfft(pmf, fast) ** count
    probability = np.clip(scipy.fft.irfft(product, fast)[:length], 0.0, None)
    probability /= probability.sum()
    probability.flags.writeable = False
    return NullMean(n, n * least, step, probability)


def _values(size: int, of: Of) -> np.ndarray:
    """What a rank from 1 to the size gives, the rank itself or its exposure."""
    if size < 2:
        raise ValueError("a rank needs at least 2 candidates")
    ranks = np.arange(1.0, size + 1)
    return ranks if of == "rank" else exposure_bits(ranks, size)


class TopK(NamedTuple):
    """Hits among the first k, held against chance.

    ``p`` is the chance of as many hits or more; ``null_low`` and ``null_high`` the
    central 95 % of hits by chance; ``low`` and ``high`` the exact interval of the rate.
    ``hits`` is what breaking ties at random gives on average, not a whole number then:
    ``p`` and ``low`` are those of the next lower number, ``high`` of the next higher.
    """

    hits: float
    rate: float
    low: float
    high: float
    null: float
    null_low: int
    null_high: int
    p: float


def top_k(ranks: ArrayLike, *, k: int, n_candidates: int, ties: ArrayLike = 0) -> TopK:
    """How many of n canaries rank among the first k of N.

    Parameters
    ----------
    ranks, ties
        Shape ``(n,)``, as for :func:`exposure_bits`.

    Raises
    ------
    ValueError
        If there is no canary, or ``k`` is not in 1..N.
    """
    checked, _ = checked_ranks(ranks, n_candidates)
    n, chance = checked.size, _chance(k, n_candidates)
    if not n:
        raise ValueError("there is no rank")
    hits = round(float(np.sum(top_k_credit(checked, k=k, ties=ties))), 9)
    fewest, most = int(np.floor(hits)), int(np.ceil(hits))
    low, _ = clopper_pearson(fewest, n)
    _, high = clopper_pearson(most, n)
    cdf = scipy.special.bdtr(np.arange(n + 1), n, chance)
    null_low, null_high = np.searchsorted(cdf, [0.025, 0.975]).tolist()
    p = 1.0 if fewest == 0 else float(scipy.special.bdtrc(fewest - 1, n, chance))
    return TopK(hits, hits / n, low, high, chance, null_low, null_high, p)


def top_k_mde(n: int, *, k: int, n_candidates: int) -> float | None:
    """Smallest true Top-k rate that a one-sided binomial test at 5 % finds in 80 %.

    ``None`` where even n hits of n would not reject.
    """
    tails = scipy.special.bdtrc(np.arange(n), n, _chance(k, n_candidates))
    enough = np.flatnonzero(tails <= 0.05)
    if not len(enough):
        return None
    hits = int(enough[0]) + 1
    # P[Bin(n, rate) >= hits] = 0.8 is a quantile of the beta distribution.
    return float(scipy.special.betaincinv(hits, n - hits + 1, 0.8))


def chance_mde(n: int, *, n_candidates: int, of: Of = "exposure") -> float:
    """Shift of the mean of n canaries that a two-sided test finds in 80 %, at 5 %.

    ``(z_0.975 + z_0.8) SD / sqrt(n)`` with the standard deviation under chance.
    """
    if n < 1:
        raise ValueError("chance_mde needs at least 1 canary")
    _, sd = null_moments(n_candidates, of=of)
    return float(scipy.special.ndtri([0.975, 0.8]).sum() / np.sqrt(n) * sd)


def exposure_mde(
    n: int, n_candidates: int, *, significance: float, power: float
) -> float | None:
    """Smallest rise of the mean exposure that its exact one-sided test finds, bits.

    Memory of growing strength is taken to favour ranks by a power of the rank
    (``P(rank) ~ rank**-s``), the family that a test of the mean exposure is most
    powerful for; that mean is taken as normal under it, and as it is (exactly) under
    chance.

    Returns
    -------
    ``None`` where n canaries cannot reject chance even if all rank first.
    """
    bits = _values(n_candidates, "exposure")
    null = null_mean([n_candidates] * n)
    if null.above(float(bits.max())) > significance:
        return None
    bar, z = null.quantile(1 - significance), float(scipy.special.ndtri(power))

    def moments(tilt: float) -> tuple[float, float]:
        chance = scipy.special.softmax(tilt * bits)
        mean = float(chance @ bits)
        return mean, float(chance @ (bits - mean) ** 2) ** 0.5

    def short(tilt: float) -> float:
        mean, sd = moments(tilt)
        return bar - mean + z * sd * float(n**-0.5)

    # At a tilt of 50 a bit all rank first, but for one in 10^15.
    tilt = scipy.optimize.brentq(short, 0.0, 50.0) if short(50.0) < 0 else 50.0
    return moments(tilt)[0] - float(bits.mean())


def uniformity_p(
    ranks: ArrayLike, n_candidates: ArrayLike, *, ties: ArrayLike = 0
) -> float:
    """Two-sided p that ranks are uniform; ``ties`` as for :func:`exposure_bits`.

    The smaller of two, by Bonferroni: that of the mean rank, and Kolmogorov-Smirnov's
    of the whole distribution. The mean is that of mid-ranks, whose spread under chance
    is smaller: careful. The whole distribution of mid-ranks is not uniform under
    chance, so there each canary takes one of the ranks that it is tied over, drawn with
    a fixed seed; quantiles ``(rank - 1/2) / N`` are compared with the continuous
    uniform distribution.
    """
    checked, sizes = checked_ranks(ranks, n_candidates)
    if not checked.size:
        raise ValueError("there is no rank")
    behind = np.broadcast_to(np.asarray(ties, dtype=np.int64), checked.shape)
    drawn = checked + np.random.default_rng(0).integers(0, behind + 1)
    sd = np.sqrt(np.sum((sizes**2 - 1) / 12))
    z = float(np.sum(checked + behind / 2 - (sizes + 1) / 2) / sd)
    ks = scipy.stats.kstest(((drawn - 0.5) / sizes).ravel(), "uniform")
    return min(1.0, 2 * min(2 * float(scipy.special.ndtr(-abs(z))), float(ks.pvalue)))


def _chance(k: int, n_candidates: int) -> float:
    if not 1 <= k <= n_candidates:
        raise ValueError("k must lie between 1 and the number of candidates")
    return k / n_candidates
