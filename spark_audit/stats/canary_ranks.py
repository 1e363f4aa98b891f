"""Ranks and exposure of canaries, and the ranks that chance gives.

A canary is ranked by its NLL among ``N`` candidates of which it is one; rank 1 is the
likeliest. A canary that is drawn uniformly from its candidates, and that a model never
saw, has a uniform rank. This file has exact moments and distributions of figures under
uniform ranks, smallest detectable effects, and tests of uniformity. A tied canary gets
the mean over random orders of the ties, which keeps the mean of a uniform rank.

In shapes, ``n`` are canaries and ``N`` the candidates of one canary. *Chance* or *null*
is the case that no canary was learned; memory gives small ranks and large exposures.
The audits ``canary`` and ``twins`` read these figures.
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
"""The figure of a canary that is averaged: its exposure in bits, or its rank itself."""

_GRID = 1 << 19
"""Points of the null distribution of a sum. For 50 canaries among 512 candidates, the
mean has steps of 0.00002 bits.
"""

_ROUNDING = 1e-12
"""Tail probabilities below this are rounding of the Fourier transform."""

STRONGEST_TILT = 50.0
"""The largest tilt per bit that is searched: all but one in 10^15 rank first."""


class CandidateRank(NamedTuple):
    """Rank of a candidate ahead of those tied with it, and how many these are."""

    rank: int
    ties: int


def candidate_rank(nll: ArrayLike, true_index: int) -> CandidateRank:
    """Return the rank of the true candidate and the number of its ties.

    Parameters
    ----------
    nll
        Shape ``(N,)``: nats, lower = more likely.
    true_index
        Index of the true candidate among them.

    Raises
    ------
    ValueError
        If an NLL is NaN, since a missing score must not look like memorisation.

    Examples
    --------
    >>> candidate_rank([5.0, 2.0, 3.0, 3.0], true_index=2)
    CandidateRank(rank=2, ties=1)
    """
    values = np.asarray(nll, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError("an NLL is NaN")
    if not 0 <= true_index < len(values):
        raise ValueError("the true one is not among the candidates")

    nll_of_true = values[true_index]
    n_likelier = int(np.sum(values < nll_of_true))
    n_equal = int(np.sum(values == nll_of_true))  # itself among them
    return CandidateRank(rank=1 + n_likelier, ties=n_equal - 1)


def exposure_bits(
    rank: ArrayLike,
    n_candidates: ArrayLike,
    *,
    ties: ArrayLike = 0,
) -> np.ndarray:
    """Return exposure in bits, ``log2 N - log2 rank``; N includes the canary.

    Carlini et al. (2019), "The Secret Sharer": between 0 and ``log2 N``. With ``ties``
    it is the mean over all ranks that random tie-breaking can give. The exposure of the
    mid-rank would be smaller under chance.

    Parameters
    ----------
    rank
        Shape ``(n,)``: ahead of ties, as :func:`candidate_rank` has it.
    n_candidates
        The number N, or shape ``(n,)``.
    ties
        Candidates with exactly the canary's NLL, itself not counted.

    Returns
    -------
    Shape ``(n,)``.

    Examples
    --------
    The first, the second and the last of 512 candidates:

    >>> exposure_bits([1, 2, 512], 512).tolist()
    [9.0, 8.0, 0.0]

    Tied over the ranks 1 and 2, a canary gets the mean of both:

    >>> round(float(exposure_bits(1, 512, ties=1)), 6)
    8.5
    """
    ranks, sizes = checked_ranks(rank, n_candidates)
    n_tied = np.asarray(ties, dtype=np.float64)
    checked_ranks(ranks + n_tied, sizes)

    # The mean of log2 over the tied ranks, from log2 of (rank + ties)! / (rank - 1)!.
    log_of_product = scipy.special.gammaln(ranks + n_tied + 1)
    log_of_product = log_of_product - scipy.special.gammaln(ranks)
    mean_of_logs = log_of_product / np.log(2) / (n_tied + 1)

    # Without ties the plain logarithm is exact.
    log_rank = np.where(n_tied > 0, mean_of_logs, np.log2(ranks))
    return np.asarray(np.log2(sizes) - log_rank)


def lower_tail_exposure(
    rank: ArrayLike,
    n_candidates: ArrayLike,
    *,
    ties: ArrayLike = 0,
) -> np.ndarray:
    """Return exposure from the other end, ``log2 N - log2(N + 1 - rank)``.

    It is large for a canary that is less likely than nearly all of its candidates: one
    that unlearning pushed below never-inserted strings stands out as much as a
    memorised one.

    Parameters
    ----------
    rank, n_candidates, ties
        Shape ``(n,)``, as for :func:`exposure_bits`.

    Examples
    --------
    >>> lower_tail_exposure([512, 1], 512).tolist()
    [9.0, 0.0]
    """
    ranks, sizes = checked_ranks(rank, n_candidates)
    rank_from_end = sizes + 1 - ranks - np.asarray(ties)
    return exposure_bits(rank_from_end, sizes, ties=ties)


def top_k_credit(rank: ArrayLike, *, k: int, ties: ArrayLike = 0) -> np.ndarray:
    """Return the chance that a canary is among the first k, ties broken at random.

    Shape ``(n,)``: 0 or 1 without ties. ``rank`` and ``ties`` are as for
    :func:`exposure_bits`.

    Examples
    --------
    >>> top_k_credit([1, 10, 11], k=10, ties=[0, 1, 0]).tolist()
    [1.0, 0.5, 0.0]
    """
    ranks = np.asarray(rank, dtype=np.float64)
    n_tied = np.asarray(ties, dtype=np.float64)

    # The canary gets one of the ranks from `ranks` to `ranks + n_tied`. Count those up
    # to k.
    n_among_first = k - ranks + 1
    return np.clip(n_among_first / (n_tied + 1), 0.0, 1.0)


def checked_ranks(
    rank: ArrayLike, n_candidates: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return ranks and numbers of candidates as float64 of one shape.

    Raises
    ------
    ValueError
        If a rank is not one of 1 to N.
    """
    ranks, sizes = np.broadcast_arrays(
        np.asarray(rank, dtype=np.float64),
        np.asarray(n_candidates, dtype=np.float64),
    )

    # A NaN fails the comparison too.
    if not np.all((ranks >= 1) & (ranks <= sizes)):
        raise ValueError("a rank is not between 1 and the number of candidates")
    return ranks, sizes


def null_moments(n_candidates: int, *, of: Of = "exposure") -> tuple[float, float]:
    """Return mean and standard deviation of a uniform rank among N, or its exposure.

    Examples
    --------
    >>> null_moments(3, of="rank")
    (2.0, 0.816496580927726)
    """
    values = _figure_of_each_rank(n_candidates, of)
    return float(values.mean()), float(values.std())


@dataclass(frozen=True)
class NullMean:
    """Distribution of a mean over n independent canaries with uniform ranks.

    ``probability[i]``, shape ``(points,)``, is the chance of the mean ``(first + i *
    step) / n``; ``first`` and ``step`` are those of the sum over canaries.
    """

    n: int
    first: float
    step: float
    probability: np.ndarray

    def above(self, value: float) -> float:
        """Return the one-sided p value: the chance of at least ``value``."""
        # A mean of mid-ranks may lie between two points; take the lower one, which has
        # the larger p.
        position = (value * self.n - self.first) / self.step
        first_point = max(math.floor(position + 1e-6), 0)

        chance = self.probability[first_point:].sum()
        return float(chance.clip(_ROUNDING, 1.0))

    def quantile(self, q: float) -> float:
        """Return the smallest value whose cumulated chance is at least ``q``."""
        cumulated = np.cumsum(self.probability)
        i = int(np.searchsorted(cumulated, q - _ROUNDING))
        i = min(i, len(self.probability) - 1)
        return (self.first + i * self.step) / self.n

    def band(self, level: float = 0.95) -> tuple[float, float]:
        """Return the central band of this confidence level."""
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)


def null_mean(n_candidates: ArrayLike, *, of: Of = "exposure") -> NullMean:
    """Return the exact null distribution of the mean rank or exposure of n canaries.

    It is computed by convolution (a power in the Fourier domain). For ranks it is
    exact, since they are integers. Exposures go on a grid of half a million points for
    the sum; each is divided between the two nearest points, which keeps the mean.

    Parameters
    ----------
    n_candidates
        Shape ``(n,)``: the size of each canary's set. They must be independent: pools
        that canaries share make their ranks dependent.
    of
        The figure that is averaged.

    Examples
    --------
    Two canaries among 3 candidates each: both rank first in one of nine cases.

    >>> law = null_mean([3, 3], of="rank")
    >>> (law.probability * 9).round(6).tolist()
    [1.0, 2.0, 3.0, 2.0, 1.0]
    >>> round(law.above(3.0), 4)
    0.1111
    """
    sizes = np.asarray(n_candidates, dtype=np.int64)
    if sizes.ndim != 1 or not len(sizes):
        raise ValueError("n_candidates must have shape (n,), n > 0")
    if sizes.min() < 2:
        raise ValueError("a rank needs at least 2 candidates")

    count_by_size = sorted(Counter(sizes.tolist()).items())
    return _null_mean(tuple(count_by_size), of)


@lru_cache(maxsize=32)
def _null_mean(count_by_size: tuple[tuple[int, int], ...], of: Of) -> NullMean:
    """Return the distribution for (number of candidates, number of canaries) pairs."""
    n = sum(count for _, count in count_by_size)

    # Steps of 1 keep ranks exact.
    least = 1.0
    step = 1.0
    if of == "exposure":
        least = 0.0
        most = sum(count * np.log2(size) for size, count in count_by_size)
        step = float(most) / _GRID

    # Distribution of one canary for each size, with the number of such canaries.
    laws = []
    for size, count in count_by_size:
        laws.append((_law_on_grid(size, of, least=least, step=step), count))

    # A sum of independent figures is a product in the Fourier domain. The transform is
    # long enough that nothing wraps around.
    length = sum(count * (len(law) - 1) for law, count in laws) + 1
    fast_length = scipy.fft.next_fast_len(length, real=True)
    spectrum = np.ones(fast_length // 2 + 1, dtype=np.complex128)
    for law, count in laws:
        spectrum *= scipy.fft.rfft(law, fast_length) ** count

    # Rounding leaves tiny negative chances.
    law_of_sum = scipy.fft.irfft(spectrum, fast_length)[:length]
    probability = np.clip(law_of_sum, 0.0, None)
    probability /= probability.sum()
    probability.flags.writeable = False  # it is shared by all who ask
    return NullMean(n=n, first=n * least, step=step, probability=probability)


def _law_on_grid(size: int, of: Of, *, least: float, step: float) -> np.ndarray:
    """Return the distribution of one canary's figure on points ``least + i * step``.

    Equal masses at real positions are divided between the neighbouring grid points.
    """
    position = (_figure_of_each_rank(size, of) - least) / step  # (N,), in steps
    lower_point = np.floor(position).astype(np.int64)
    share_of_upper = position - lower_point

    points = np.concatenate([lower_point, lower_point + 1])  # (2 N,)
    masses = np.concatenate([1 - share_of_upper, share_of_upper]) / size
    return np.bincount(points[masses > 0], masses[masses > 0])


def _figure_of_each_rank(size: int, of: Of) -> np.ndarray:
    """Return the figures of the ranks 1 to N, shape ``(N,)``."""
    if size < 2:
        raise ValueError("a rank needs at least 2 candidates")

    ranks = np.arange(1.0, size + 1)
    if of == "rank":
        return ranks
    return exposure_bits(ranks, size)


class TopK(NamedTuple):
    """Hits among the first k, held against chance.

    ``hits`` of n canaries are the ``rate``, a share with the exact interval from
    ``low`` to ``high``. ``null`` is the rate by chance; ``null_low`` and ``null_high``,
    which are counts of hits, the central 95 % of hits by chance. ``p`` is the chance of
    as many hits or more. With ties ``hits`` is the mean over random tie-breaking and
    may be fractional. ``p`` and ``low`` then use the next lower whole number, ``high``
    the next higher.
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
    """Return the number of canaries among the first k of N, compared with chance.

    Parameters
    ----------
    ranks, ties
        Shape ``(n,)``, as for :func:`exposure_bits`.
    k
        To be chosen before looking.
    n_candidates
        Candidates N that each ranks among.

    Raises
    ------
    ValueError
        If there is no canary, or ``k`` is not in 1..N.

    Examples
    --------
    Two of four canaries rank first among 20:

    >>> top_1 = top_k([1, 1, 7, 12], k=1, n_candidates=20)
    >>> top_1.hits, top_1.rate, top_1.null, round(top_1.p, 3)
    (2.0, 0.5, 0.05, 0.014)
    """
    checked, _ = checked_ranks(ranks, n_candidates)
    n = checked.size
    chance = _chance_of_top_k(k, n_candidates)
    if not n:
        raise ValueError("there is no rank")

    # Ties give fractional hits, so each limit takes the next whole number outwards.
    credit = top_k_credit(checked, k=k, ties=ties)  # (n,)
    hits = round(float(np.sum(credit)), 9)
    fewest = int(np.floor(hits))
    most = int(np.ceil(hits))
    low, _ = clopper_pearson(fewest, n)
    _, high = clopper_pearson(most, n)

    # The central 95% of Bin(n, chance).
    cumulated = scipy.special.bdtr(np.arange(n + 1), n, chance)
    null_low, null_high = np.searchsorted(cumulated, [0.025, 0.975]).tolist()

    p = 1.0
    if fewest > 0:
        p = float(scipy.special.bdtrc(fewest - 1, n, chance))

    return TopK(
        hits=hits,
        rate=hits / n,
        low=low,
        high=high,
        null=chance,
        null_low=null_low,
        null_high=null_high,
        p=p,
    )


def top_k_mde(n: int, *, k: int, n_candidates: int) -> float | None:
    """Return the smallest Top-k rate that a one-sided 5% test finds with 80% power.

    The test is the exact binomial one. ``None``: even n hits of n would not reject.

    Examples
    --------
    >>> round(top_k_mde(20, k=1, n_candidates=20), 3)
    0.259
    """
    # The chances of more than 0, 1, ..., n - 1 hits.
    tails = scipy.special.bdtrc(np.arange(n), n, _chance_of_top_k(k, n_candidates))
    rejecting = np.flatnonzero(tails <= 0.05)
    if not len(rejecting):
        return None

    # P[Bin(n, rate) >= hits] = 0.8 is a quantile of the beta distribution.
    hits = int(rejecting[0]) + 1
    return float(scipy.special.betaincinv(hits, n - hits + 1, 0.8))


def chance_mde(n: int, *, n_candidates: int, of: Of = "exposure") -> float:
    """Return the shift of the mean of n canaries that a 5% test finds with 80% power.

    The test is two-sided: ``(z_0.975 + z_0.8) SD / sqrt(n)`` with the standard
    deviation under chance.

    Examples
    --------
    >>> round(chance_mde(50, n_candidates=512), 2)
    0.56
    """
    if n < 1:
        raise ValueError("chance_mde needs at least 1 canary")

    _, sd = null_moments(n_candidates, of=of)
    z_of_both = scipy.special.ndtri([0.975, 0.8]).sum()
    return float(z_of_both / np.sqrt(n) * sd)


def exposure_mde(
    n: int,
    n_candidates: int,
    *,
    significance: float,
    power: float,
) -> float | None:
    """Return the smallest rise of the mean exposure that its exact test finds, bits.

    Parameters
    ----------
    n
        Canaries.
    n_candidates
        Candidates N that each ranks among.
    significance
        Largest p of the one-sided test that is a detection.
    power
        The chance with which it is found.

    Returns
    -------
    ``None`` if n canaries cannot reject chance even if all rank first.

    Notes
    -----
    Memory is modelled as a power of the rank (``P(rank) ~ rank**-s``), the family for
    which a test of the mean exposure is most powerful. The mean is approximated as
    normal under this model; under chance its exact distribution is used.

    Examples
    --------
    One canary among 8 cannot have a p of 1%:

    >>> print(exposure_mde(1, 8, significance=0.01, power=0.8))
    None
    >>> round(exposure_mde(50, 512, significance=0.05, power=0.8), 2)
    0.56
    """
    bits = _figure_of_each_rank(n_candidates, "exposure")  # (N,)
    null = null_mean([n_candidates] * n)
    if null.above(float(bits.max())) > significance:
        return None

    critical = null.quantile(1 - significance)
    z = float(scipy.special.ndtri(power))

    def moments(tilt: float) -> tuple[float, float]:
        """Return mean and standard deviation of one canary's exposure.

        The chance of a rank is in proportion to ``exp(tilt * exposure)``; 0 is chance.
        """
        chances = scipy.special.softmax(tilt * bits)
        mean = float(chances @ bits)
        sd = float(chances @ (bits - mean) ** 2) ** 0.5
        return mean, sd

    def shortfall(tilt: float) -> float:
        """Return by how much the mean is too small to be found with the power.

        Found: the mean of n canaries, less z standard errors, is above the critical
        value.
        """
        mean, sd = moments(tilt)
        return critical - mean + z * sd * float(n**-0.5)

    tilt = STRONGEST_TILT
    if shortfall(STRONGEST_TILT) < 0:
        tilt = scipy.optimize.brentq(shortfall, 0.0, STRONGEST_TILT)

    mean, _ = moments(tilt)
    return mean - float(bits.mean())


def uniformity_p(
    ranks: ArrayLike,
    n_candidates: ArrayLike,
    *,
    ties: ArrayLike = 0,
) -> float:
    """Return the two-sided p that ranks are uniform.

    Parameters
    ----------
    ranks, n_candidates, ties
        Shape ``(n,)``, as for :func:`exposure_bits`.

    Notes
    -----
    p is the smaller one of two, corrected by Bonferroni: that of the mean rank, and
    Kolmogorov-Smirnov's of the whole distribution. The mean uses mid-ranks, whose
    smaller spread under chance makes the test conservative. The distribution of
    mid-ranks is not uniform under chance, so the second test draws one of the tied
    ranks with a fixed seed. It compares quantiles ``(rank - 1/2) / N`` with the
    continuous uniform distribution.

    Examples
    --------
    Ranks that are spread evenly, and ranks that are all small:

    >>> uniformity_p([10, 30, 50, 70, 90], 100)
    1.0
    >>> round(uniformity_p([1, 2, 3, 4, 5], 100), 4)
    0.0
    """
    checked, sizes = checked_ranks(ranks, n_candidates)
    if not checked.size:
        raise ValueError("there is no rank")
    n_tied = np.broadcast_to(np.asarray(ties, dtype=np.int64), checked.shape)

    # Test the mean: a uniform rank among N has the variance (N^2 - 1) / 12.
    sd_of_sum = np.sqrt(np.sum((sizes**2 - 1) / 12))
    z = float(np.sum(checked + n_tied / 2 - (sizes + 1) / 2) / sd_of_sum)
    p_of_mean = 2 * float(scipy.special.ndtr(-abs(z)))

    # Test the whole distribution, with ties broken at random.
    ranks_drawn = checked + np.random.default_rng(0).integers(0, n_tied + 1)
    quantiles = ((ranks_drawn - 0.5) / sizes).ravel()
    p_of_distribution = float(scipy.stats.kstest(quantiles, "uniform").pvalue)

    return min(1.0, 2 * min(p_of_mean, p_of_distribution))


def _chance_of_top_k(k: int, n_candidates: int) -> float:
    """Return the chance of a uniform rank to be among the first k of N."""
    if not 1 <= k <= n_candidates:
        raise ValueError("k must lie between 1 and the number of candidates")
    return k / n_candidates
