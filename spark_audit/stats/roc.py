"""ROC figures of a membership score: AUC, TPR at a small FPR, and chance.

A larger score speaks for membership; ties count one half. This file treats rows as
independent; :mod:`~spark_audit.stats.clustered_roc` has clusters and tasks. Undefined
figures raise ``NotEstimableError``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError

COARSE = 10
"""A TPR says little if fewer false positives than this are allowed."""


class Tpr(NamedTuple):
    """True positive rate at a budget of false positives.

    ``threshold`` is the score that must be exceeded, ``fpr`` the rate achieved by it,
    ``note`` empty, ``coarse`` or ``not resolvable`` with the reason.
    """

    value: float
    threshold: float
    fpr: float
    resolvable: bool
    note: str


class Band(NamedTuple):
    """The TPR of a random score: its mean and central interval."""

    mean: float
    low: float
    high: float


class Placements(NamedTuple):
    """An AUC, and the contribution of each row to it.

    ``above``: shape ``(m,)``, the share of non-members that each member exceeds.
    ``below``: shape ``(n,)``, the share of members that exceed each non-member.
    """

    auc: float
    above: np.ndarray
    below: np.ndarray


def auc(members: ArrayLike, non_members: ArrayLike) -> float:
    """Return ``P(member > non-member) + P(equal) / 2``.

    Parameters
    ----------
    members, non_members
        Shapes ``(m,)`` and ``(n,)``: scores.

    Raises
    ------
    NotEstimableError
        If a side is empty or a score is NaN.

    Examples
    --------
    Of four pairs, two are ordered rightly and one is tied:

    >>> auc([3.0, 1.0], [1.0, 2.0])
    0.625
    """
    member_scores = _scores_of_side(members, "member")
    other_scores = _scores_of_side(non_members, "non-member")
    return placements(member_scores, other_scores).auc


def tpr_at_fpr(members: ArrayLike, non_members: ArrayLike, fpr: float) -> Tpr:
    """Return the share of members above the strictest threshold that the budget allows.

    Parameters
    ----------
    members, non_members
        Shapes ``(m,)`` and ``(n,)``: scores.
    fpr
        Budget of false positives, a share.

    Raises
    ------
    NotEstimableError
        If a side is empty or a score is NaN.

    Notes
    -----
    With ``k = floor(fpr n)``, the threshold is the (k+1)-th largest non-member score
    and a row must exceed it: at most k non-members do, so the achieved rate is never
    above ``fpr``, and what ties with the threshold counts as a non-member. Nothing is
    interpolated.

    Examples
    --------
    Of ten non-members, one may be called a member: the second largest is the threshold.

    >>> tpr_at_fpr([9.5, 8.0, 12.0], range(1, 11), fpr=0.1)[:3]
    (0.6666666666666666, 9.0, 0.1)
    """
    member_scores = _scores_of_side(members, "member")
    other_scores = _scores_of_side(non_members, "non-member")
    n = len(other_scores)

    # In rising order, the (k+1)-th largest is at n - 1 - k.
    k = allowed(n, fpr)
    index = n - 1 - k
    threshold = float(np.partition(other_scores, index)[index])

    note = ""
    if k < 1:
        # The tolerance of allowed(): 1 / (1 / 49) is 49.00000000000001.
        n_needed = int(np.ceil(1 / fpr - 1e-9))
        note = (
            f"not resolvable: an FPR of {fpr:g} needs {n_needed} non-members, "
            f"there are {n}"
        )
    elif k < COARSE:
        note = f"coarse: {k} of {n} non-members set the threshold"

    return Tpr(
        value=float(np.mean(member_scores > threshold)),
        threshold=threshold,
        fpr=float(np.mean(other_scores > threshold)),
        resolvable=k >= 1,
        note=note,
    )


def allowed(n: int, fpr: float) -> int:
    """Return the number of non-members that may be called members, ``floor(fpr n)``.

    Examples
    --------
    >>> allowed(100, 0.29)
    29
    """
    if not 0 < fpr < 1:
        raise ValueError("fpr must lie in (0, 1)")

    # The tolerance is for rounding: 0.29 * 100 is 28.999999999999996.
    return int(np.floor(fpr * n + 1e-9))


def chance_band(n1: int, n0: int, fpr: float) -> Band:
    """Return the exact TPR of a random score at a budget.

    The members above the (k+1)-th largest of ``n0`` exchangeable non-members follow
    BetaBinomial(n1, k + 1, n0 - k).

    Parameters
    ----------
    n1, n0
        Independent members and non-members.
    fpr
        Budget of false positives, a share.

    Examples
    --------
    With 99 non-members and a budget of 10%, nine may be exceeded. The mean is not the
    budget, but 10 of 100:

    >>> chance_band(50, 99, 0.1)
    Band(mean=0.1, low=0.02, high=0.22)
    """
    if n1 < 1 or n0 < 1:
        raise NotEstimableError("a side is empty")

    k = allowed(n0, fpr)
    law = scipy.stats.betabinom(n1, k + 1, n0 - k)
    low, high = law.ppf([0.025, 0.975])
    return Band(
        mean=float(law.mean()) / n1,
        low=float(low) / n1,
        high=float(high) / n1,
    )


def placements(members: np.ndarray, non_members: np.ndarray) -> Placements:
    """Return the AUC and the placement of each row among the other side.

    Parameters
    ----------
    members, non_members
        Shapes ``(m,)`` and ``(n,)``: scores, without NaN.

    Examples
    --------
    >>> placed = placements(np.array([3.0, 1.0]), np.array([1.0, 2.0]))
    >>> placed.above.tolist(), placed.below.tolist()
    ([1.0, 0.25], [0.75, 0.5])
    """
    above = _number_below(members, non_members) / len(non_members)
    below = 1 - _number_below(non_members, members) / len(members)
    return Placements(auc=float(above.mean()), above=above, below=below)


def _number_below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how many others each value exceeds; ties count one half."""
    ordered = np.sort(others)
    below = ordered.searchsorted(values, "left")
    up_to = ordered.searchsorted(values, "right")
    return np.asarray((below + up_to) / 2)


def _scores_of_side(scores: ArrayLike, name: str) -> np.ndarray:
    """Return scores as float64, shape ``(n,)``, at least one."""
    values = checked(scores)
    if values.ndim != 1:
        raise ValueError("scores must have one dimension")
    if not len(values):
        raise NotEstimableError(f"there is no {name}")
    return values


def checked(scores: ArrayLike) -> np.ndarray:
    """Return scores of any shape as float64; infinite ones can be ordered.

    Raises
    ------
    NotEstimableError
        If a score is NaN.
    """
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise NotEstimableError("a score is NaN")
    return values
