"""Lower bounds of the epsilon of differential privacy, from what an attack achieved.

Each says, at its confidence, that a training run is *not* epsilon-DP for any smaller
epsilon, under the randomisation it names. A bound of 0 proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy

from spark_audit.stats.intervals import clopper_pearson

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
