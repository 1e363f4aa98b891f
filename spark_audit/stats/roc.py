"""How well a score tells members from non-members: AUC, TPR at a small FPR, chance.

A larger score speaks for membership; ties count one half. Rows are independent here:
:mod:`~spark_audit.stats.clustered_roc` has clusters and tasks. What is undefined
raises ``NotEstimableError``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError

COARSE = 10
"""With fewer false positives than this allowed, a TPR says little."""


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
    """What scores without any signal give: mean and central interval of the TPR."""

    mean: float
    low: float
    high: float


def auc(members: ArrayLike, non_members: ArrayLike) -> float:
    """``P(member > non-member) + P(equal) / 2``.

    Parameters
    ----------
    members, non_members
        Shapes ``(m,)`` and ``(n,)``.

    Raises
    ------
    NotEstimableError
        If a side is empty or a score is NaN.
    """
    x, y = _side(members, "member"), _side(non_members, "non-member")
    return placements(x, y)[0]


def tpr_at_fpr(members: ArrayLike, non_members: ArrayLike, fpr: float) -> Tpr:
    """Return the share of members above the strictest threshold that the budget allows.

    Scores have the shapes ``(n_members,)`` and ``(n_non_members,)``.

    With ``k = floor(fpr n)``, the threshold is the (k+1)-th largest non-member score
    and a row must exceed it: at most k non-members do, so the achieved rate is never
    above ``fpr``, and what ties with the threshold counts as a non-member. Nothing is
    interpolated.

    Raises
    ------
    NotEstimableError
        If a side is empty or a score is NaN.
    """
    x, y = _side(members, "member"), _side(non_members, "non-member")
    k = allowed(len(y), fpr)
    threshold = float(np.partition(y, len(y) - 1 - k)[len(y) - 1 - k])
    note = ""
    if k < 1:
        needed = f"an FPR of {fpr:g} needs {int(np.ceil(1 / fpr))} non-members"
        note = f"not resolvable: {needed}, there are {len(y)}"
    elif k < COARSE:
        note = f"coarse: {k} of {len(y)} non-members set the threshold"
    above, false = (float(np.mean(side > threshold)) for side in (x, y))
    return Tpr(above, threshold, false, k >= 1, note)


def allowed(n: int, fpr: float) -> int:
    """How many of ``n`` non-members may be called members, ``floor(fpr n)``."""
    if not 0 < fpr < 1:
        raise ValueError("fpr must lie in (0, 1)")
    # 0.29 * 100 is 28.999999999999996.
    return int(np.floor(fpr * n + 1e-9))


def chance_band(n1: int, n0: int, fpr: float) -> Band:
    """TPR at a budget of false positives when the score knows nothing, exactly.

    The members above the (k+1)-th largest of ``n0`` exchangeable non-members follow
    BetaBinomial(n1, k + 1, n0 - k).

    Parameters
    ----------
    n1, n0
        Independent members and non-members.
    """
    if n1 < 1 or n0 < 1:
        raise NotEstimableError("a side is empty")
    k = allowed(n0, fpr)
    law = scipy.stats.betabinom(n1, k + 1, n0 - k)
    low, high = law.ppf([0.025, 0.975])
    return Band(float(law.mean()) / n1, float(low) / n1, float(high) / n1)


def placements(x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the AUC, the share of ``y`` below each ``x``, and of ``x`` above ``y``.

    Shapes ``(n,)`` and ``(m,)``.
    """
    above, below = _ranks(x, y) / len(y), 1 - _ranks(y, x) / len(x)
    return float(above.mean()), above, below


def _ranks(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How many others each value exceeds; ties count one half."""
    order = np.sort(others)
    below, upto = (order.searchsorted(values, side) for side in ("left", "right"))
    return np.asarray((below + upto) / 2)


def _side(scores: ArrayLike, name: str) -> np.ndarray:
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
