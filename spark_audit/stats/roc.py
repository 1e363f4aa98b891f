"""ROC figures of a membership score: AUC, TPR at a small FPR, and chance.

A larger score speaks for membership; ties count one half. This file treats rows as
independent; :mod:`~spark_audit.stats.clustered_roc` has clusters and tasks. Undefined
figures raise ``NotEstimableError``. A *side* is the members (rows trained on), or the
non-members.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError

COARSE = 10
"""A TPR is called coarse if its budget allows fewer false positives than this."""


class Tpr(NamedTuple):
    """True positive rate at a budget of false positives.

    Attributes
    ----------
    value
        The true positive rate: the share of members above the threshold.
    threshold
        The score that must be exceeded.
    fpr
        The false positive rate achieved: the share of non-members above the threshold.
        It is at most the budget.
    resolvable
        Whether the budget allows at least one false positive. If not, the threshold is
        the largest score of a non-member.
    note
        Starts with ``not resolvable`` or ``coarse``, with the reason; else empty.
    """

    value: float
    threshold: float
    fpr: float
    resolvable: bool
    note: str


class Band(NamedTuple):
    """The TPR of a random score: its mean and central interval of 95%."""

    mean: float
    low: float
    high: float


class Placements(NamedTuple):
    """An AUC, and the contribution of each row to it.

    Ties count one half. The mean of either array is the AUC.

    Attributes
    ----------
    above
        Shape ``(m,)``: for each member, the share of non-members that it is above.
    below
        Shape ``(n,)``: for each non-member, the share of members that it is below.
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
    ValueError
        If the scores have not one dimension.

    Examples
    --------
    Of four pairs, two are ordered rightly and one is tied:

    >>> auc([3.0, 1.0], [1.0, 2.0])
    0.625
    """
    member_scores = _scores_of_side(members, "member")
    other_scores = _scores_of_side(non_members, "non-member")
    return placements(member_scores, other_scores).auc


def tpr_at_fpr(members: ArrayLike, non_members: ArrayLike, budget: float) -> Tpr:
    """Return the share of members above the strictest threshold that the budget allows.

    Parameters
    ----------
    members, non_members
        Shapes ``(m,)`` and ``(n,)``: scores.
    budget
        Budget of false positives, a share.

    Raises
    ------
    NotEstimableError
        If a side is empty or a score is NaN.
    ValueError
        If ``budget`` is not in (0, 1), or the scores have not one dimension.

    Notes
    -----
    With ``k = floor(budget n)``, the threshold is the (k+1)-th largest score of a
    non-member. A row must exceed it to be called a member, and a row that ties with it
    is not called one. At most k non-members exceed it, so the achieved rate is never
    above ``budget``. Nothing is interpolated.

    Examples
    --------
    Of ten non-members, one may be called a member: the second largest is the threshold.

    >>> tpr_at_fpr([9.5, 8.0, 12.0], range(1, 11), budget=0.1)[:3]
    (0.6666666666666666, 9.0, 0.1)
    """
    member_scores = _scores_of_side(members, "member")
    other_scores = _scores_of_side(non_members, "non-member")
    n = len(other_scores)
    k = allowed(n, budget)

    # In rising order, the (k+1)-th largest is at n - 1 - k.
    index = n - 1 - k
    threshold = float(np.partition(other_scores, index)[index])

    note = ""
    if k < 1:
        # The tolerance is for rounding, as in allowed(): 1 / (1 / 49) is
        # 49.00000000000001.
        n_needed = int(np.ceil(1 / budget - 1e-9))
        note = (
            f"not resolvable: an FPR of {budget:g} needs {n_needed} non-members, "
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


def allowed(n: int, budget: float) -> int:
    """Return the number of non-members that may be called members, ``floor(budget n)``.

    Parameters
    ----------
    n
        Number of non-members.
    budget
        Budget of false positives, a share.

    Raises
    ------
    ValueError
        If ``budget`` is not in (0, 1).

    Examples
    --------
    >>> allowed(100, 0.29)
    29
    """
    if not 0 < budget < 1:
        raise ValueError("budget must lie in (0, 1)")

    # The tolerance is for rounding: 0.29 * 100 is 28.999999999999996.
    return int(np.floor(budget * n + 1e-9))


def chance_band(n_members: int, n_non_members: int, budget: float) -> Band:
    """Return the TPR of a random score at a budget; exact for scores without ties.

    Of m members and n non-members with exchangeable scores, the number of members above
    the (k+1)-th largest non-member follows BetaBinomial(m, k + 1, n - k).

    Parameters
    ----------
    n_members, n_non_members
        Numbers of independent members and non-members.
    budget
        Budget of false positives, a share.

    Raises
    ------
    NotEstimableError
        If a side is empty.
    ValueError
        If ``budget`` is not in (0, 1).

    Examples
    --------
    A budget of 10% lets nine of 99 non-members exceed the threshold. The mean is not
    the budget, but 10 of 100:

    >>> chance_band(50, 99, 0.1)
    Band(mean=0.1, low=0.02, high=0.22)
    """
    if n_members < 1 or n_non_members < 1:
        raise NotEstimableError("a side is empty")

    k = allowed(n_non_members, budget)
    law = scipy.stats.betabinom(n_members, k + 1, n_non_members - k)
    low, high = law.ppf([0.025, 0.975])
    return Band(
        mean=float(law.mean()) / n_members,
        low=float(low) / n_members,
        high=float(high) / n_members,
    )


def placements(members: np.ndarray, non_members: np.ndarray) -> Placements:
    """Return the AUC and the placement of each row among the scores of the other side.

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
    above = _number_exceeded(members, non_members) / len(non_members)  # (m,)
    below = 1 - _number_exceeded(non_members, members) / len(members)  # (n,)
    return Placements(auc=float(above.mean()), above=above, below=below)


def _number_exceeded(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how many others each value exceeds, shape ``(values,)``; ties count half.

    Parameters
    ----------
    values, others
        Shapes ``(values,)`` and ``(others,)``.
    """
    rising = np.sort(others)
    n_smaller = rising.searchsorted(values, "left")
    n_smaller_or_equal = rising.searchsorted(values, "right")
    return np.asarray((n_smaller + n_smaller_or_equal) / 2)


def _scores_of_side(scores: ArrayLike, name: str) -> np.ndarray:
    """Return the scores of one side as float64, shape ``(n,)``; refuse an empty side.

    Parameters
    ----------
    name
        How an error names a row of this side.
    """
    values = checked(scores)
    if values.ndim != 1:
        raise ValueError("scores must have one dimension")
    if not len(values):
        raise NotEstimableError(f"there is no {name}")
    return values


def checked(scores: ArrayLike) -> np.ndarray:
    """Return scores of any shape as float64, and refuse NaN.

    Infinite scores are kept, since they can be ordered.

    Raises
    ------
    NotEstimableError
        If a score is NaN.
    """
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise NotEstimableError("a score is NaN")
    return values
