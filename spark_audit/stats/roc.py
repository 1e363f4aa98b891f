"""How well a score tells members from non-members: AUC, TPR at a small FPR, chance.

A larger score speaks for membership; ties count one half. Rows are independent here;
``roc_clusters`` has the same for rows that come in clusters and tasks. What is
undefined raises ``NotEstimableError``; nothing is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.stats.intervals import NO_SPREAD

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


class Tost(NamedTuple):
    """Two one-sided tests: ``equivalent`` when ``[low, high]`` lies in the margin."""

    p: float
    low: float
    high: float
    equivalent: bool


# --- one row a cluster ----------------------------------------------------------------


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
    """Share of members above the strictest threshold that the budget allows.

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
        note = (
            f"not resolvable: an FPR of {fpr:g} needs {int(np.ceil(1 / fpr))} "
            f"non-members, there are {len(y)}"
        )
    elif k < COARSE:
        note = f"coarse: {k} of {len(y)} non-members set the threshold"
    return Tpr(
        float(np.mean(x > threshold)), threshold, float(np.mean(y > threshold)),
        k >= 1, note,
    )  # fmt: skip


def allowed(n: int, fpr: float) -> int:
    """How many of ``n`` non-members may be called members, ``floor(fpr n)``."""
    if not 0 < fpr < 1:
        raise ValueError("fpr must lie in (0, 1)")
    # 0.29 * 100 is 28.999999999999996.
    return int(np.floor(fpr * n + 1e-9))


def chance_band(n1: int, n0: int, fpr: float, *, level: float = 0.95) -> Band:
    """TPR at a budget of false positives when the score knows nothing, exactly.

    The members above the (k+1)-th largest of ``n0`` exchangeable non-members follow
    BetaBinomial(n1, k + 1, n0 - k).

    Parameters
    ----------
    n1, n0
        Independent members and non-members.
    """
    law = _chance(n1, n0, fpr)
    low, high = law.ppf([0.5 - level / 2, 0.5 + level / 2])
    return Band(float(law.mean()) / n1, float(low) / n1, float(high) / n1)


def tost(
    value: float,
    se: float,
    *,
    low: float,
    high: float,
    df: float = np.inf,
    alpha: float = 0.05,
) -> Tost:
    """Whether a figure lies inside a margin that was declared beforehand.

    Two one-sided t tests (Schuirmann 1987) against ``low`` and ``high``; ``[low,
    high]`` of the result is the ``1 - 2 alpha`` interval.
    """
    if not low < high or not se > 0:
        raise ValueError("tost needs low < high and a positive standard error")
    law = scipy.stats.t(df) if np.isfinite(df) else scipy.stats.norm()
    p = max(law.sf((value - low) / se), law.cdf((value - high) / se))
    reach = float(law.ppf(1 - alpha)) * se
    return Tost(float(p), value - reach, value + reach, bool(p < alpha))


def placements(x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """AUC; share of ``y`` below each ``x``; share of ``x`` above each ``y``."""
    above, below = _ranks(x, y) / len(y), 1 - _ranks(y, x) / len(x)
    return float(above.mean()), above, below


def _ranks(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How many others each value exceeds; ties count one half."""
    order = np.sort(others)
    below, upto = (order.searchsorted(values, side) for side in ("left", "right"))
    return np.asarray((below + upto) / 2)


def logit_interval(value: float, variance: float, reach: float) -> tuple[float, float]:
    """Interval on the logit scale: inside (0, 1) and around the value."""
    if not 0 < value < 1:
        raise NotEstimableError(NO_SPREAD)
    centre = scipy.special.logit(value)
    width = reach * np.sqrt(variance) / (value * (1 - value))
    low, high = scipy.special.expit([centre - width, centre + width])
    return float(low), float(high)


def _chance(n1: int, n0: int, fpr: float) -> scipy.stats.distributions.rv_frozen:
    if n1 < 1 or n0 < 1:
        raise NotEstimableError("a side is empty")
    k = allowed(n0, fpr)
    return scipy.stats.betabinom(n1, k + 1, n0 - k)


def _side(scores: ArrayLike, name: str) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError("scores must have one dimension")
    if not len(values):
        raise NotEstimableError(f"there is no {name}")
    return checked(values)


def checked(values: np.ndarray) -> np.ndarray:
    """The scores, refused when one is NaN; infinite ones can be ordered."""
    if np.isnan(values).any():
        raise NotEstimableError("a score is NaN")
    return values
