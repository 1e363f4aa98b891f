"""Lower bounds on the epsilon of differential privacy, from what an attack achieved.

Each says, at its confidence, that a training run is *not* epsilon-DP for any smaller
epsilon, under the randomisation it names. A bound of 0 proves nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special
from scipy.optimize import brentq

from spark_audit.stats.intervals import clopper_pearson


class GuessBound(NamedTuple):
    """Lower bounds of epsilon from guesses among candidates.

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
    low, _ = clopper_pearson(hits, n, level=1 - significance, side="lower")
    canary = 0.0
    # Odds of k in N are what eps 0 allows; above them the bound is positive.
    if low > k / n_candidates:
        odds = np.log(n_candidates - k) - np.log(k)
        canary = float(special.logit(low) + odds)
    return GuessBound(canary, canary / rows, canary / 2, canary / rows / 2)


def largest_exposure(epsilon: float, n_candidates: int) -> float:
    """Largest mean exposure, in bits, of a canary under epsilon-DP (replacement).

    Of all posteriors whose odds are at most ``e^eps`` the one with j candidates at the
    larger weight, at the best j.
    """
    if not epsilon >= 0 or n_candidates < 2:
        raise ValueError("epsilon must not be negative, and candidates at least 2")
    bits = np.log2(n_candidates) - np.log2(np.arange(1, n_candidates + 1))
    heavy = np.cumsum(bits)
    j = np.arange(1, n_candidates + 1)
    # e^-eps on the light ones: no overflow.
    light = np.exp(-epsilon)
    means = (heavy + light * (heavy[-1] - heavy)) / (j + light * (n_candidates - j))
    return float(means.max())


def one_run_bound(
    n: int,
    guesses: int,
    correct: int,
    *,
    delta: float = 0.0,
    significance: float = 0.05,
) -> float:
    """Lower bound of epsilon from one run (Steinke, Nasr and Jagielski 2023).

    n canaries were each included by a fair coin; the attack guessed ``guesses`` of the
    coins, a number fixed beforehand, and ``correct`` guesses were right. Add/remove
    adjacency, (epsilon, delta). With ``q = e^eps / (1 + e^eps)`` the p value of eps is

        ``P[Bin(r,q) >= v] + 2 n delta max_{1<=i<=v} P[v > Bin(r,q) >= v-i] / i``.

    Not for canaries that were all inserted.
    """
    _check(correct, guesses, significance)
    if guesses > n or not 0 <= delta < 1:
        raise ValueError("one_run_bound needs guesses <= n and 0 <= delta < 1")

    def p_value(epsilon: float) -> float:
        q = float(special.expit(epsilon))
        # tails[i] = P[Bin(r, q) >= correct - i].
        least = correct - np.arange(correct + 1)
        tails = np.where(
            least > 0, special.bdtrc(np.maximum(least - 1, 0), guesses, q), 1.0
        )
        if correct == 0 or delta == 0:
            return min(1.0, float(tails[0]))
        alpha = float(np.max((tails[1:] - tails[0]) / np.arange(1, correct + 1)))
        return min(1.0, float(tails[0]) + 2 * n * delta * alpha)

    if p_value(0.0) > significance:
        return 0.0
    high = 1.0
    while p_value(high) <= significance:
        high *= 2
    return float(brentq(lambda e: p_value(e) - significance, 0.0, high, xtol=1e-12))


def two_sided_bound(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    *,
    delta: float = 0.0,
    significance: float = 0.05,
) -> float:
    """Lower bound of epsilon from a membership attack with a fixed threshold.

    (eps, delta)-DP bounds ``TPR <= e^eps FPR + delta``, hence
    ``eps >= ln((TPR_low - delta) / FPR_high)`` with one-sided Clopper-Pearson limits,
    each at half the significance. Membership must have been drawn at random.
    """
    _check(true_positives, positives, significance)
    _check(false_positives, negatives, significance)
    if not 0 <= delta < 1:
        raise ValueError("delta must lie in [0, 1)")
    level = 1 - significance / 2
    tpr, _ = clopper_pearson(true_positives, positives, level=level, side="lower")
    _, fpr = clopper_pearson(false_positives, negatives, level=level, side="upper")
    return float(np.log((tpr - delta) / fpr)) if tpr - delta > fpr else 0.0


def _check(events: int, trials: int, significance: float) -> None:
    if not 0 <= events <= trials or trials < 1:
        raise ValueError("events must lie between 0 and trials, trials at least 1")
    if not 0 < significance < 1:
        raise ValueError("significance must lie in (0, 1)")
