"""What chance gives where canaries are ranked, and tests against it.

A canary that a model never saw has a uniform rank among its ``N`` candidates: exact
moments and distributions of figures under it, what a test can detect, and tests of
uniformity. Ranks and ties are those of :mod:`spark_audit.stats.ranks_among`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.stats.intervals import clopper_pearson
from spark_audit.stats.ranks_among import checked_ranks, exposure_bits, top_k_credit

Of = Literal["exposure", "lower-tail exposure", "rank"]

_GRID = 1 << 19
"""Points of the null distribution of a sum: of 50 canaries among 512, the grid of their
mean has a step of 0.00002 bits."""

_ROUNDING = 1e-12
"""Tail probabilities below this are rounding of the Fourier transform."""


# --- what chance gives ----------------------------------------------------------------


class NullMoments(NamedTuple):
    """Mean and standard deviation of one canary's figures under a uniform rank."""

    rank_mean: float
    rank_sd: float
    exposure_mean: float
    exposure_sd: float


def null_moments(n_candidates: int) -> NullMoments:
    """Exact moments of a uniform rank among N and of its exposure.

    Mean rank ``(N+1)/2``, variance ``(N^2-1)/12``; mean exposure
    ``log2 N - log2(N!)/N``, its variance that of ``log2 rank``.
    """
    n = _size(n_candidates)
    mean_log = float(scipy.special.gammaln(n + 1)) / (n * np.log(2))
    spread = np.mean(np.log2(np.arange(1, n + 1)) ** 2) - mean_log**2
    rank = (n + 1) / 2, float(np.sqrt((n**2 - 1) / 12))
    exposure = float(np.log2(n) - mean_log), float(np.sqrt(max(spread, 0.0)))
    return NullMoments(*rank, *exposure)


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
        return self._tail(self._from_above, math.floor(self._place(value) + 1e-6))

    def below(self, value: float) -> float:
        """One-sided p value: the chance of at most ``value``."""
        return self._tail(self._cumulated, math.ceil(self._place(value) - 1e-6))

    def two_sided(self, value: float) -> float:
        """Twice the smaller of both, at most 1."""
        return min(1.0, 2 * min(self.above(value), self.below(value)))

    def quantile(self, q: float) -> float:
        """Smallest value whose cumulated chance is at least ``q``."""
        i = int(np.searchsorted(self._cumulated, q - _ROUNDING))
        i = min(i, len(self.probability) - 1)
        return (self.first + i * self.step) / self.n

    def band(self, level: float = 0.95) -> tuple[float, float]:
        """Central band of this level."""
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    @cached_property
    def _cumulated(self) -> np.ndarray:
        return np.cumsum(self.probability)

    @cached_property
    def _from_above(self) -> np.ndarray:
        return np.cumsum(self.probability[::-1])[::-1]

    def _place(self, value: float) -> float:
        return (value * self.n - self.first) / self.step

    @staticmethod
    def _tail(chances: np.ndarray, i: int) -> float:
        return float(chances[max(0, min(i, len(chances) - 1))].clip(_ROUNDING, 1.0))


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
    counts = Counter(_size(int(size)) for size in sizes)
    return _null_mean(tuple(sorted(counts.items())), of)


@lru_cache(maxsize=32)
def _null_mean(counts: tuple[tuple[int, int], ...], of: Of) -> NullMean:
    n = sum(count for _, count in counts)
    reach = sum(count * (s - 1 if of == "rank" else np.log2(s)) for s, count in counts)
    # Steps of 1 keep ranks exact.
    step = 1.0 if of == "rank" else float(reach) / _GRID
    parts = [(_on_grid(_values(size, of) / step), count) for size, count in counts]
    length = sum(count * (len(pmf) - 1) for pmf, count in parts) + 1
    fast = scipy.fft.next_fast_len(length, real=True)
    product = np.ones(fast // 2 + 1, dtype=np.complex128)
    for pmf, count in parts:
        product *= scipy.fft.rfft(pmf, fast) ** count
    probability = np.clip(scipy.fft.irfft(product, fast)[:length], 0.0, None)
    probability /= probability.sum()
    probability.flags.writeable = False
    return NullMean(n, float(n) if of == "rank" else 0.0, step, probability)


def _values(size: int, of: Of) -> np.ndarray:
    ranks = np.arange(1, size + 1)
    return ranks - 1.0 if of == "rank" else exposure_bits(ranks, size)


def _on_grid(position: np.ndarray) -> np.ndarray:
    """Equal masses at real positions, shared between the neighbouring grid points."""
    low = np.floor(position).astype(np.int64)
    share = position - low
    where = np.concatenate([low, low + 1])
    mass = np.concatenate([1 - share, share]) / len(position)
    return np.bincount(where[mass > 0], mass[mass > 0])


# --- tests ----------------------------------------------------------------------------


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


def top_k(
    ranks: ArrayLike,
    *,
    k: int,
    n_candidates: int,
    ties: ArrayLike = 0,
) -> TopK:
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


class TopKMde(NamedTuple):
    """Fewest hits that reject chance, and the true rate that gives them."""

    hits: int
    rate: float


def top_k_mde(
    n: int,
    *,
    k: int,
    n_candidates: int,
    significance: float = 0.05,
    power: float = 0.8,
) -> TopKMde | None:
    """Smallest true Top-k rate that a one-sided binomial test finds with this power.

    ``None`` where even n hits of n would not reject.
    """
    tails = scipy.special.bdtrc(np.arange(n), n, _chance(k, n_candidates))
    enough = np.flatnonzero(tails <= significance)
    if not len(enough):
        return None
    hits = int(enough[0]) + 1
    # P[Bin(n, rate) >= hits] = power is a quantile of the beta distribution.
    return TopKMde(hits, float(scipy.special.betaincinv(hits, n - hits + 1, power)))


class ChanceMde(NamedTuple):
    """Smallest distances from chance that a two-sided test finds, of n canaries."""

    ranks: float
    bits: float


def chance_mde(
    n: int, *, n_candidates: int, level: float = 0.95, power: float = 0.8
) -> ChanceMde:
    """Minimum detectable shift of the mean rank and of the mean exposure.

    ``(z_{1-a/2} + z_power) SD / sqrt(n)`` with the standard deviations under chance.
    """
    if n < 1:
        raise ValueError("chance_mde needs at least 1 canary")
    z = float(scipy.special.ndtri([0.5 + level / 2, power]).sum())
    reach = z / np.sqrt(n)
    moments = null_moments(n_candidates)
    return ChanceMde(float(reach * moments.rank_sd), float(reach * moments.exposure_sd))


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


class Uniformity(NamedTuple):
    """Tests that ranks are uniform, two-sided.

    ``z`` and ``z_p``: mean rank (rank sum); ``ks`` and ``cvm``: whole distribution
    (Kolmogorov-Smirnov, Cramer-von Mises).
    """

    z: float
    z_p: float
    ks: float
    ks_p: float
    cvm: float
    cvm_p: float


def uniformity(
    ranks: ArrayLike, n_candidates: ArrayLike, *, ties: ArrayLike = 0
) -> Uniformity:
    """Test ranks against uniform ones; ``ties`` as for :func:`exposure_bits`.

    Quantiles ``(rank - 1/2) / N`` are compared with the continuous uniform
    distribution. ``z`` is negative where canaries are likelier than candidates. It is
    that of mid-ranks, whose spread under chance is smaller: careful. The whole
    distribution of mid-ranks is not uniform under chance, so there each canary takes
    one of the ranks that it is tied over, drawn with a fixed seed.
    """
    checked, sizes = checked_ranks(ranks, n_candidates)
    behind = np.broadcast_to(np.asarray(ties, dtype=np.int64), checked.shape)
    drawn = checked + np.random.default_rng(0).integers(0, behind + 1)
    quantiles = ((drawn - 0.5) / sizes).ravel()
    if not len(quantiles):
        raise ValueError("there is no rank")
    sd = np.sqrt(np.sum((sizes**2 - 1) / 12))
    z = float(np.sum(checked + behind / 2 - (sizes + 1) / 2) / sd) if sd else 0.0
    ks = scipy.stats.kstest(quantiles, "uniform")
    # One value has no Cramer-von Mises p value in SciPy.
    cvm, cvm_p = float(1 / 12 + (quantiles[0] - 0.5) ** 2), float(ks.pvalue)
    if len(quantiles) > 1:
        test = scipy.stats.cramervonmises(quantiles, "uniform")
        cvm, cvm_p = float(test.statistic), float(test.pvalue)
    z_p, ks_p = float(2 * scipy.special.ndtr(-abs(z))), float(ks.pvalue)
    return Uniformity(z, z_p, float(ks.statistic), ks_p, cvm, cvm_p)


class Trend(NamedTuple):
    """Spearman's rank correlation with a two-sided permutation p value."""

    rho: float
    p: float


def dose_trend(
    dose: ArrayLike, values: ArrayLike, *, replicates: int = 9999, seed: int
) -> Trend | None:
    """Whether a figure rises or falls with the dose.

    Parameters
    ----------
    dose, values
        Shape ``(n,)``.

    Returns
    -------
    ``None`` where one of both does not vary. ``p = (1 + hits) / (1 + replicates)``.
    """
    x, y = (
        scipy.stats.rankdata(np.asarray(side, dtype=np.float64))
        for side in (dose, values)
    )
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.sqrt(np.sum(x**2) * np.sum(y**2)))
    if norm == 0:
        return None
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(y, (replicates, 1)), axis=1) @ x
    observed = float(x @ y)
    # Equal sums in another order differ by rounding.
    hits = int(np.sum(np.abs(shuffled) >= abs(observed) - 1e-9 * norm))
    return Trend(observed / norm, (1 + hits) / (1 + replicates))


def _size(n_candidates: int) -> int:
    if n_candidates < 2:
        raise ValueError("a rank needs at least 2 candidates")
    return n_candidates


def _chance(k: int, n_candidates: int) -> float:
    if not 1 <= k <= n_candidates:
        raise ValueError("k must lie between 1 and the number of candidates")
    return k / n_candidates
