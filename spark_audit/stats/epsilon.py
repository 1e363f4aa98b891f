"""Lower bounds on the epsilon of differential privacy, from what an attack achieved.

Each says, at its confidence, that a training run is *not* epsilon-DP for any smaller
epsilon, under the randomisation it names. A bound of 0 proves nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

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


def _check(events: int, trials: int, significance: float) -> None:
    if not 0 <= events <= trials or trials < 1:
        raise ValueError("events must lie between 0 and trials, trials at least 1")
    if not 0 < significance < 1:
        raise ValueError("significance must lie in (0, 1)")
