"""How much of a string a model gives back: ranks, exposure, extraction, and chance.

A canary is ranked by its NLL among ``N`` candidates of which it is one; rank 1 is the
likeliest. Drawn uniformly from its candidates, a canary that a model never saw has a
uniform rank: exact moments and distributions of figures under it, what a test can
detect, and tests of uniformity. A canary that is tied with others gets what random
orders of them would give it on average: under chance its mean is that of a uniform
rank.

Of a span whose true prefix is known, ``p_z`` is the chance that sampling gives exactly
its tokens, ``n_p`` in how many tries it comes at least once with probability p:
(n, p)-discoverable extraction, Hayes et al. (2024), "Measuring memorization through
probabilistic discoverable extraction". A text can be tokenised in several ways and
``p_z`` counts one: a lower bound of the chance of the text.

Lower bounds on the epsilon of differential privacy follow from what an attack achieved.
Each says, at its confidence, that a training run is *not* epsilon-DP for any smaller
epsilon, under the randomisation it names. A bound of 0 proves nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, NamedTuple, TypeAlias

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


# --- ranks of canaries ----------------------------------------------------------------


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


# --- what chance gives ----------------------------------------------------------------


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


# --- sampled extraction ---------------------------------------------------------------


def top_k_logp(
    nll: ArrayLike, rank: ArrayLike, mass_logp: ArrayLike, *, k: ArrayLike
) -> np.ndarray:
    """Log probability of tokens under top-k sampling, from columns of a token table.

    At temperature T it is that of ``nll / T`` and of the log of the likeliest tokens'
    probabilities to the power of 1 / T, summed. Top-p sampling is that of as many
    tokens as each nucleus has.

    Parameters
    ----------
    nll
        Shape ``(n,)``: nats, over the whole vocabulary.
    rank
        Shape ``(n,)``: strict-greater ranks; a token that ties with the k-th can be
        drawn.
    mass_logp
        Shape ``(n,)``: log of the probability of the k likeliest tokens together.
    k
        One for all tokens, or shape ``(n,)``.

    Returns
    -------
    Shape ``(n,)``, nats; ``-inf`` where the rank is above k.
    """
    logp = -np.asarray(nll, dtype=np.float64)
    if np.isnan(logp).any():
        raise ValueError("an NLL is NaN")
    # Rounding of float32 columns must not make a probability larger than 1.
    inside = np.minimum(logp - np.asarray(mass_logp, dtype=np.float64), 0.0)
    return np.asarray(np.where(np.asarray(rank) <= k, inside, -np.inf))


def n_p(logp: ArrayLike, *, p: float = 0.5) -> np.ndarray:
    """Fewest tries after which a span came at least once with probability p.

    ``ceil(ln(1-p) / ln(1-p_z))``, at least 1, from ``log p_z`` so that nothing
    underflows: the number is finite down to ``log p_z`` of -700 and infinite where the
    span cannot be drawn.

    Parameters
    ----------
    logp
        ``log p_z``, nats, of any shape.
    """
    if not 0 < p < 1:
        raise ValueError("p must lie in (0, 1)")
    values = np.asarray(logp, dtype=np.float64)
    if np.isnan(values).any() or np.any(values > 0):
        raise ValueError("a log probability is NaN or above 0")
    with np.errstate(divide="ignore", over="ignore"):
        tries = np.log1p(-p) / np.log1p(-np.exp(values))
    return np.asarray(np.maximum(np.ceil(tries), 1.0))


# --- bounds of epsilon ----------------------------------------------------------------


MOST_EPSILON = 256.0
"""No bound is looked for beyond."""


class GuessBound(NamedTuple):
    """Lower bounds of epsilon from guesses.

    ``canary``: replacing one canary with all its copies; ``record``: replacing one
    row; ``*_add_remove``: the same for adding or removing, which halves a bound.
    """

    canary: float
    record: float
    canary_add_remove: float
    record_add_remove: float


def candidate_guess_bound(
    hits: int,
    n: int,
    *,
    n_candidates: int,
    k: int = 1,
    rows: int = 1,
    significance: float = 0.05,
) -> GuessBound:
    """Lower bound of epsilon from Top-k hits of canaries among their candidates.

    Each of n canaries must have been drawn uniformly and independently from its N
    candidates. Under epsilon-DP (delta 0, replacement) the posterior odds of two
    candidates are at most ``e^eps`` whatever the other canaries are, so that the true
    one is among the k first with probability at most

        ``p_k(eps) = k e^eps / (k e^eps + N - k)``

    and hits are dominated by ``Bin(n, p_k(eps))``. The bound is the epsilon at which
    ``p_k`` reaches the one-sided Clopper-Pearson limit of the hit rate. The argument
    is the one of Steinke, Nasr and Jagielski (2023), for candidates instead of
    inclusion **[ours]**.

    Parameters
    ----------
    hits
        Canaries ranked among the first k.
    n
        Canaries.
    k
        To be chosen before looking.
    rows
        Most rows that one of the canaries stands in (group privacy: what holds for
        one record at eps holds for the canary at ``rows * eps``).
    significance
        One-sided. To be divided among bounds that are to hold together: a k or a
        group of canaries picked after looking is one of all that were looked at.

    Raises
    ------
    ValueError
        If the numbers do not fit each other.
    """
    _check(hits, n, significance)
    if not 1 <= k < n_candidates or rows < 1:
        raise ValueError("candidate_guess_bound needs 1 <= k < n_candidates, rows >= 1")
    low, _ = clopper_pearson(hits, n, level=1 - 2 * significance)
    canary = 0.0
    # Odds of k in N are what eps 0 allows; above them the bound is positive.
    if low > k / n_candidates:
        odds = np.log(n_candidates - k) - np.log(k)
        canary = float(scipy.special.logit(low) + odds)
    return GuessBound(canary, canary / rows, canary / 2, canary / rows / 2)


# --- one run, from coin flips ---------------------------------------------------------


def declared_guesses(coins: int) -> int:
    """How many coins are guessed: half, rounded up, those that tell most.

    Fixed here before any result. The best of several numbers of guesses is no bound at
    its confidence: of ten, it is above a true epsilon of 0 far more often than in 5 %.
    """
    return (coins + 1) // 2


def one_run_bound(
    correct: int,
    guesses: int,
    coins: int,
    *,
    delta: float = 0.0,
    rows: int = 1,
    significance: float = 0.05,
) -> GuessBound:
    """Lower bound of epsilon at a delta, from guesses at fair coins of one run.

    Each coin chose, independently, which of two data sets a run was given; the two
    differ by ``rows`` rows. The bound is the larger of two, and no second look for
    that: both come from upper bounds of the same probability, of as many right guesses.

    - Steinke, Nasr and Jagielski (2023), "Privacy Auditing with One (1) Training Run"
      (arXiv 2305.08846): right guesses are dominated by ``Bin(r, q)``, ``q =
      e^eps / (1 + e^eps)``, up to ``2 m delta max_i P[v > Bin >= v - i] / i``.
    - Mahloujifar, Melis and Chaudhuri (2025), "Auditing f-Differential Privacy in One
      Run" (arXiv 2410.22235): their recursion, with the trade-off curve of
      (eps, delta)-DP. It is the tighter one where delta is large beside ``1 / coins``.

    Parameters
    ----------
    correct, guesses, coins
        v of r guesses at m coins. r was chosen before looking, as by
        :func:`declared_guesses`, and which coins by a rule that does not know how they
        fell.
    delta
        Of a record.
    rows
        Group privacy: what is (eps, delta)-DP for one record is so for g records at ``g
        eps`` and ``delta (e^(g eps) - 1) / (e^eps - 1)``.
    significance
        One-sided.

    Raises
    ------
    ValueError
        If the numbers do not fit each other.
    """
    _check(correct, guesses, significance)
    if guesses > coins or rows < 1 or not 0 <= delta < 1:
        raise ValueError("one_run_bound needs guesses <= coins, rows >= 1, delta < 1")

    @cache
    def bound(group: int) -> float:
        if group > 1 and not delta:
            return bound(1) / group

        def told(epsilon: float) -> bool:
            ratio = np.expm1(group * epsilon) / np.expm1(epsilon) if epsilon else group
            epsilon, of = group * epsilon, min(1.0, delta * float(ratio))
            up, down = np.exp(epsilon), np.exp(-epsilon)

            def curve(y: float) -> float:
                return float(max(0.0, down * (y - of), 1 - of - up * (1 - y)))

            count = correct, guesses, coins
            p = one_run_p(*count, epsilon=epsilon, delta=of)
            return p <= significance or _too_many(*count, significance, curve)

        return _largest(told)

    return GuessBound(bound(1), bound(rows), bound(2), bound(2 * rows))


def one_run_mu(
    correct: int, guesses: int, coins: int, *, rows: int = 1, significance: float = 0.05
) -> float:
    """Lower bound of mu: the run is not mu-Gaussian-DP a record for any smaller one.

    As :func:`one_run_bound`, by Mahloujifar's recursion with the curve of a Gaussian
    mechanism, of which g records have ``g mu``. Of a mechanism of that kind it is much
    tighter than (eps, delta); of any other it refutes no more than it says.
    """
    _check(correct, guesses, significance)

    def told(mu: float) -> bool:
        def inverse(y: float) -> float:
            z = scipy.special.ndtri(min(y, 1.0)) - rows * mu
            return float(scipy.special.ndtr(z))

        return _too_many(correct, guesses, coins, significance, inverse)

    return _largest(told)


def one_run_p(
    correct: int, guesses: int, coins: int, *, epsilon: float, delta: float = 0.0
) -> float:
    """Chance of as many right guesses under (epsilon, delta)-DP, or more (Steinke)."""
    if not correct:
        return 1.0
    q = scipy.special.expit(epsilon)
    beta, alpha = scipy.special.bdtrc(correct - 1, guesses, q), 0.0
    if delta:
        mass = scipy.stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, q)
        alpha = float((np.cumsum(mass) / np.arange(1, correct + 1)).max())
    return float(min(1.0, beta + 2 * coins * delta * alpha))


Curve: TypeAlias = Callable[[float], float]


def _too_many(
    correct: int, guesses: int, coins: int, chance: float, inverse: Curve
) -> bool:
    """Whether so many right guesses are less likely than ``chance`` under a curve.

    ``inverse`` is that of ``1 - f``. For every i, with p the law of the number of
    right guesses: ``sum_{j >= i} j p_j / m <= (1 - f)(sum_{j >= i - 1} (r - j) p_j /
    m)``. Going down from the least that ``P[>= correct] = chance`` asks for, the law
    must hold more than 1 in all.
    """
    right = chance * correct / coins
    wrong = chance * (guesses - correct) / coins
    for i in range(correct - 1, -1, -1):
        needed = max(wrong, inverse(right))
        right += i / (guesses - i) * (needed - wrong)
        wrong = needed
        if right + wrong > guesses / coins:
            return True
    return False


def _largest(told: Callable[[float], bool]) -> float:
    """The largest number up to which ``told`` holds, from below; 0 if it never does."""
    if not told(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while told(high) and high < MOST_EPSILON:
        low, high = high, 2 * high
    for _ in range(32):
        middle = (low + high) / 2
        low, high = (middle, high) if told(middle) else (low, middle)
    return low


def _check(events: int, trials: int, significance: float) -> None:
    if not 0 <= events <= trials or trials < 1:
        raise ValueError("events must lie between 0 and trials, trials at least 1")
    if not 0 < significance < 1:
        raise ValueError("significance must lie in (0, 1)")
