"""Lower bounds of the epsilon of differential privacy, from the success of attacks.

Each bound says, at its confidence and under the randomisation that it names, that a
training run is *not* epsilon-DP for any smaller epsilon. A bound of 0 proves nothing.

There are two games. In :func:`candidate_guess_bound` each canary was drawn from N
candidates, and an attacker ranks them. In :func:`one_run_bound` (and
:func:`one_run_mu`, for Gaussian DP) fair coins chose what a run was given, and an
attacker guesses some of the coins. The audit ``canary`` and receipts play both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy

from spark_audit.stats.intervals import clopper_pearson

MOST_EPSILON = 256.0
"""Largest epsilon, or mu, that is searched for."""

BISECTIONS = 32
"""Halvings of the interval in which a bound lies."""

InverseCurve: TypeAlias = Callable[[float], float]
"""The inverse of ``1 - f``, ``f`` being a trade-off curve of two error rates.

``f(x)`` is the least rate of missed detections at a rate ``x`` of false alarms that a
DP guarantee allows. The inverse gives the ``x`` whose ``1 - f(x)`` is a given ``y``.
"""


class GuessBound(NamedTuple):
    """Lower bounds of epsilon from guesses.

    ``canary``: replacing one canary with all its copies; ``record``: replacing one
    row; ``*_add_remove``: the same for adding or removing, which halves a bound at
    delta 0. All are 0 or more; 0 proves nothing.
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
    """Return a lower bound of epsilon from Top-k hits of canaries among candidates.

    Parameters
    ----------
    hits
        Canaries ranked among the first k.
    n
        Canaries.
    n_candidates
        Candidates N that each canary was drawn from.
    k
        Number of guesses, chosen before looking at results.
    rows
        Largest number of rows that contain one canary (group privacy: a guarantee of
        eps for one record is one of ``rows * eps`` for the canary).
    significance
        One-sided significance. Divide it among bounds that must hold together: a k or a
        group of canaries that is picked after looking counts as all that were looked
        at.

    Raises
    ------
    ValueError
        If the numbers do not fit each other.

    Notes
    -----
    Each of n canaries must have been drawn uniformly and independently from its N
    candidates. Under epsilon-DP (delta 0, replacement) the posterior odds of two
    candidates are at most ``e^eps``, whatever the other canaries are. The true one is
    therefore among the first k with probability at most

        ``p_k(eps) = k e^eps / (k e^eps + N - k)``

    and hits are dominated by ``Bin(n, p_k(eps))``. The bound is the epsilon at which
    ``p_k`` reaches the one-sided Clopper-Pearson limit of the hit rate. The argument
    is the one of Steinke, Nasr and Jagielski (2023), for candidates instead of
    inclusion **[ours]**.

    Examples
    --------
    Nine of ten canaries rank first among 50 candidates:

    >>> bound = candidate_guess_bound(9, 10, n_candidates=50)
    >>> round(bound.canary, 2), round(bound.canary_add_remove, 2)
    (4.32, 2.16)

    As many hits as by chance prove nothing:

    >>> candidate_guess_bound(1, 50, n_candidates=50).canary
    0.0
    """
    _check_counts(hits, n, significance)
    if not 1 <= k < n_candidates or rows < 1:
        raise ValueError("candidate_guess_bound needs 1 <= k < n_candidates, rows >= 1")

    low, _ = clopper_pearson(hits, n, level=1 - 2 * significance)

    # Chance (k in N) is what eps 0 allows; a rate above it gives a positive bound.
    epsilon = 0.0
    if low > k / n_candidates:
        log_odds_of_miss = np.log(n_candidates - k) - np.log(k)
        epsilon = float(scipy.special.logit(low) + log_odds_of_miss)

    return GuessBound(
        canary=epsilon,
        record=epsilon / rows,
        canary_add_remove=epsilon / 2,
        record_add_remove=epsilon / rows / 2,
    )


def declared_guesses(coins: int) -> int:
    """Return the number of coins to guess: half of them, rounded up.

    It is fixed here before any result. The best bound over several numbers of guesses
    would not hold at its confidence: over ten, it exceeds a true epsilon of 0 far more
    often than in 5 % of cases.

    Examples
    --------
    >>> declared_guesses(100), declared_guesses(7)
    (50, 4)
    """
    return (coins + 1) // 2


def one_run_bound(
    n_correct: int,
    n_guesses: int,
    n_coins: int,
    *,
    delta: float = 0.0,
    rows: int = 1,
    significance: float = 0.05,
) -> GuessBound:
    """Return a lower bound of epsilon, from guesses at fair coins of one run.

    Each coin chose, independently, which of two data sets a run was given; the two
    differ by ``rows`` rows.

    Parameters
    ----------
    n_correct, n_guesses, n_coins
        Right guesses v, guesses r, and coins m. r was chosen before looking, as by
        :func:`declared_guesses`. The guessed coins were chosen without knowing how they
        fell.
    delta
        The delta of the unit that a bound is for: of a canary in ``canary``, of a
        record in ``record``.
    rows
        Rows g of a coin. By group privacy, (eps, delta)-DP of one record means for g
        records ``g eps`` and ``delta (e^(g eps) - 1) / (e^eps - 1)``.
    significance
        One-sided.

    Raises
    ------
    ValueError
        If the numbers do not fit each other.

    Notes
    -----
    The bound is the larger one of two. That is no second look, since both follow from
    upper bounds of the same probability, that of as many right guesses.

    - Steinke, Nasr and Jagielski (2023), "Privacy Auditing with One (1) Training Run"
      (arXiv 2305.08846): right guesses are dominated by ``Bin(r, q)``, ``q =
      e^eps / (1 + e^eps)``, up to ``2 m delta max_i P[v > Bin >= v - i] / i``.
    - Mahloujifar, Melis and Chaudhuri (2025), "Auditing f-Differential Privacy in One
      Run" (arXiv 2410.22235): their recursion, with the trade-off curve of
      (eps, delta)-DP. It is the tighter one where delta is large beside ``1 / coins``.

    Examples
    --------
    All of 100 guesses at 1000 coins are right:

    >>> round(one_run_bound(100, 100, 1000, delta=1e-5).canary, 2)
    3.49
    """
    _check_counts(n_correct, n_guesses, significance)
    _check_coins(n_guesses, n_coins, rows)
    if not 0 <= delta < 1:
        raise ValueError("delta must lie in [0, 1)")

    @cache
    def bound_of_unit(group_size: int) -> float:
        """Return the bound for one unit if a coin moves a group of units."""
        # Without a delta, groups only multiply epsilon.
        if group_size > 1 and not delta:
            return bound_of_unit(1) / group_size

        def is_refuted(epsilon: float) -> bool:
            """Return whether units cannot be (epsilon, delta)-DP."""
            delta_of_group = _delta_of_group(delta, epsilon, group_size)
            return _refutes_epsilon(
                n_correct,
                n_guesses,
                n_coins,
                epsilon=group_size * epsilon,
                delta=delta_of_group,
                significance=significance,
            )

        return _largest_refuted(is_refuted)

    # A coin replaces one canary, or all records that contain it. Replacing is removing
    # and adding, hence a group of twice the size.
    return GuessBound(
        canary=bound_of_unit(1),
        record=bound_of_unit(rows),
        canary_add_remove=bound_of_unit(2),
        record_add_remove=bound_of_unit(2 * rows),
    )


def _delta_of_group(delta: float, epsilon: float, group_size: int) -> float:
    """Return the delta of a group whose records are (epsilon, delta)-DP."""
    ratio = float(group_size)
    if epsilon:
        ratio = float(np.expm1(group_size * epsilon) / np.expm1(epsilon))
    return min(1.0, delta * ratio)


def _refutes_epsilon(
    n_correct: int,
    n_guesses: int,
    n_coins: int,
    *,
    epsilon: float,
    delta: float,
    significance: float,
) -> bool:
    """Return whether the right guesses are too unlikely under (epsilon, delta)."""
    p = one_run_p(n_correct, n_guesses, n_coins, epsilon=epsilon, delta=delta)
    if p <= significance:
        return True

    exp_of_plus = np.exp(epsilon)
    exp_of_minus = np.exp(-epsilon)

    def inverse_curve(y: float) -> float:
        """Return the x whose ``1 - f(x)`` is y, for (epsilon, delta)-DP."""
        # y = min(delta + e^eps x, 1 - e^-eps (1 - delta - x)), each solved for x.
        below_kink = exp_of_minus * (y - delta)
        above_kink = 1 - delta - exp_of_plus * (1 - y)
        return float(max(0.0, below_kink, above_kink))

    return _is_too_many(n_correct, n_guesses, n_coins, significance, inverse_curve)


def one_run_mu(
    n_correct: int,
    n_guesses: int,
    n_coins: int,
    *,
    rows: int = 1,
    significance: float = 0.05,
) -> float:
    """Return a lower bound of mu: no record is mu-Gaussian-DP for any smaller one.

    It works as :func:`one_run_bound`, by Mahloujifar's recursion with the curve of a
    Gaussian mechanism; g records have ``g mu``. For a Gaussian mechanism it is much
    tighter than (eps, delta). For other mechanisms it only refutes mu-Gaussian-DP.

    Raises
    ------
    ValueError
        If the numbers do not fit each other.

    Examples
    --------
    >>> one_run_mu(100, 100, 1000) > one_run_mu(90, 100, 1000) > 0
    True
    """
    _check_counts(n_correct, n_guesses, significance)
    _check_coins(n_guesses, n_coins, rows)

    def is_refuted(mu: float) -> bool:
        """Return whether records cannot be mu-Gaussian-DP."""

        def inverse_curve(y: float) -> float:
            # 1 - f(x) is Phi(Phi^-1(x) + mu) for one record.
            z = scipy.special.ndtri(min(y, 1.0)) - rows * mu
            return float(scipy.special.ndtr(z))

        return _is_too_many(n_correct, n_guesses, n_coins, significance, inverse_curve)

    return _largest_refuted(is_refuted)


def one_run_p(
    n_correct: int,
    n_guesses: int,
    n_coins: int,
    *,
    epsilon: float,
    delta: float = 0.0,
) -> float:
    """Return the chance of as many right guesses, or more, under (epsilon, delta)-DP.

    It is the upper bound of Steinke, Nasr and Jagielski (2023), see
    :func:`one_run_bound`.

    Examples
    --------
    Fair guesses: the chance of at least 8 heads of 10.

    >>> round(one_run_p(8, 10, 10, epsilon=0.0), 4)
    0.0547
    """
    if not n_correct:
        return 1.0

    # The largest chance of one right guess without delta.
    q = scipy.special.expit(epsilon)
    chance = scipy.special.bdtrc(n_correct - 1, n_guesses, q)  # of v or more

    # max_i P[v > Bin >= v - i] / i, from cumulated chances of v - 1, v - 2, ..., 0
    # right guesses.
    largest_ratio = 0.0
    if delta:
        fewer = np.arange(n_correct - 1, -1, -1)  # (v,)
        cumulated = np.cumsum(scipy.stats.binom.pmf(fewer, n_guesses, q))
        largest_ratio = float((cumulated / np.arange(1, n_correct + 1)).max())

    return float(min(1.0, chance + 2 * n_coins * delta * largest_ratio))


def _is_too_many(
    n_correct: int,
    n_guesses: int,
    n_coins: int,
    significance: float,
    inverse_curve: InverseCurve,
) -> bool:
    """Return whether the right guesses are less likely than the significance.

    Notes
    -----
    Mahloujifar, Melis and Chaudhuri (2025). Let ``p_j`` be the chance of j right
    guesses of r at m coins. For every i: ``sum_{j >= i} j p_j / m <= (1 - f)(sum_{j >=
    i - 1} (r - j) p_j / m)``. The loop counts down ``j = i -
    1``. Suppose that ``P[>= n_correct]`` was the significance. Going down from there,
    the recursion gives the least chances of fewer right guesses. If all together are
    more than 1, the supposition is wrong: so many right guesses have a smaller chance
    than the significance.
    """
    # The sums over j >= i of j p_j / m and of (r - j) p_j / m, at first for i =
    # n_correct, as if there were never more right guesses.
    sum_of_right = significance * n_correct / n_coins
    sum_of_wrong = significance * (n_guesses - n_correct) / n_coins

    for j in range(n_correct - 1, -1, -1):  # j is i - 1 of the inequality
        # The inequality asks for more wrong guesses: they come from p_j, which adds
        # j / (r - j) as much to the right ones.
        least_wrong = max(sum_of_wrong, inverse_curve(sum_of_right))
        sum_of_right += j / (n_guesses - j) * (least_wrong - sum_of_wrong)
        sum_of_wrong = least_wrong

        # Together they are the total chance times r / m.
        if sum_of_right + sum_of_wrong > n_guesses / n_coins:
            return True

    return False


def _largest_refuted(is_refuted: Callable[[float], bool]) -> float:
    """Return the largest refuted number, approached from below; 0: none is refuted.

    If a number is refuted, so are all smaller ones.
    """
    if not is_refuted(0.0):
        return 0.0

    # Double until a number is not refuted; then halve the interval.
    low = 0.0
    high = 1.0
    while is_refuted(high) and high < MOST_EPSILON:
        low = high
        high = 2 * high

    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if is_refuted(middle):
            low = middle
        else:
            high = middle
    return low


def _check_counts(events: int, trials: int, significance: float) -> None:
    """Refuse counts that do not fit each other, and a significance that is none.

    ``events``: hits or right guesses; ``trials``: canaries or guesses.
    """
    if not 0 <= events <= trials or trials < 1:
        raise ValueError("events must lie between 0 and trials, trials at least 1")
    if not 0 < significance < 1:
        raise ValueError("significance must lie in (0, 1)")


def _check_coins(n_guesses: int, n_coins: int, rows: int) -> None:
    """Refuse more guesses than coins, and coins that move no row."""
    if n_guesses > n_coins:
        raise ValueError("guesses must be at most as many as coins")
    if rows < 1:
        raise ValueError("rows of a coin must be at least 1")
