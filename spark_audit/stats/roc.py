"""How well a score tells members from non-members: AUC, TPR at a small FPR, chance.

A larger score speaks for membership; ties count one half. Rows are independent here;
``roc_clusters`` has the same for rows that come in clusters and tasks. What is
undefined raises ``NotEstimableError``; nothing is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from spark_audit.errors import NotEstimableError
from spark_audit.stats.intervals import NO_SPREAD, clopper_pearson

COARSE = 10
"""With fewer false positives than this allowed, a TPR says little."""

_ZERO = 1e-12


class Auc(NamedTuple):
    """An AUC with its variance; ``low, high`` on the logit scale, Wald beside it."""

    value: float
    variance: float
    low: float
    high: float
    wald_low: float
    wald_high: float


class PairedAuc(NamedTuple):
    """Two AUCs over the same rows: difference is the first minus the second."""

    values: tuple[float, float]
    covariance: np.ndarray
    difference: float
    z: float
    p: float


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


class SplitTpr(NamedTuple):
    """Rates at a threshold from non-members that count in neither rate."""

    tpr: float
    tpr_low: float
    tpr_high: float
    fpr: float
    fpr_low: float
    fpr_high: float
    threshold: float


class Roc(NamedTuple):
    """Points of a ROC curve, one for each distinct score, from (0, 0) to (1, 1)."""

    fpr: np.ndarray
    tpr: np.ndarray
    thresholds: np.ndarray


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


def auc(
    members: ArrayLike,
    non_members: ArrayLike,
    *,
    weights: tuple[ArrayLike, ArrayLike] | None = None,
) -> float:
    """``P(member > non-member) + P(equal) / 2``.

    Parameters
    ----------
    members, non_members
        Shapes ``(m,)`` and ``(n,)``.
    weights
        Of both; whole numbers act as repeated rows.

    Raises
    ------
    NotEstimableError
        If a side is empty or without weight, or a score is NaN.
    """
    x, y = _side(members, "member"), _side(non_members, "non-member")
    w1, w0 = (
        (np.ones(len(x)), np.ones(len(y)))
        if weights is None
        else (np.asarray(w, dtype=np.float64) for w in weights)
    )
    if w1.shape != x.shape or w0.shape != y.shape:
        raise ValueError("weights must have the shapes of members and non-members")
    if np.any(w1 < 0) or np.any(w0 < 0):
        raise ValueError("weights must not be negative")
    total = float(w1.sum() * w0.sum())
    if not total > 0:
        raise NotEstimableError("a side has no weight")
    order = np.argsort(y, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(w0[order])])
    low, high = (np.searchsorted(y[order], x, side=s) for s in ("left", "right"))
    return float(w1 @ (below[low] + below[high]) / 2 / total)


def delong(members: ArrayLike, non_members: ArrayLike, *, level: float = 0.95) -> Auc:
    """AUC with the variance of DeLong et al. (1988) for independent rows.

    From midranks, as in Sun and Xu (2014), "Fast implementation of DeLong's algorithm".

    Raises
    ------
    NotEstimableError
        If a side has fewer than 2 rows, a score is NaN, or the variance is 0 (perfect
        separation, all scores equal): :func:`auc_estimate` handles these.
    """
    x, y = _side(members, "member"), _side(non_members, "non-member")
    value, variance = _paired([(x, y)])
    var = float(variance[0, 0])
    if var <= _ZERO:
        raise NotEstimableError(NO_SPREAD)
    reach = float(special.ndtri(0.5 + level / 2))
    wald = reach * np.sqrt(var)
    low, high = logit_interval(float(value[0]), var, reach)
    return Auc(
        float(value[0]),
        var,
        low,
        high,
        max(0.0, float(value[0] - wald)),
        min(1.0, float(value[0] + wald)),
    )


def paired_delong(members: ArrayLike, non_members: ArrayLike) -> PairedAuc:
    """Compare the AUCs of two scores of the same independent rows.

    Parameters
    ----------
    members, non_members
        Shapes ``(m, 2)`` and ``(n, 2)``: a column a score.

    Raises
    ------
    NotEstimableError
        As :func:`delong`; a variance of 0 concerns the difference.
    """
    x, y = np.asarray(members, np.float64), np.asarray(non_members, np.float64)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != 2 or y.shape[1] != 2:
        raise ValueError("members and non_members must have two columns")
    columns = [(_side(x[:, k], "member"), _side(y[:, k], "non-member")) for k in (0, 1)]
    values, covariance = _paired(columns)
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    if variance <= _ZERO:
        raise NotEstimableError("the two scores order all pairs alike")
    difference = float(values[0] - values[1])
    z = difference / np.sqrt(variance)
    return PairedAuc(
        (float(values[0]), float(values[1])),
        covariance,
        difference,
        float(z),
        float(2 * special.ndtr(-abs(z))),
    )


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


def split_tpr(
    members: ArrayLike,
    non_members: ArrayLike,
    fpr: float,
    *,
    seed: int,
    level: float = 0.95,
) -> SplitTpr:
    """TPR and FPR with exact intervals, at a threshold from half of the non-members.

    The other half and the members never saw the threshold, so Clopper-Pearson holds
    for independent rows. The achieved FPR is a figure too: it may exceed the budget.
    """
    x, y = _side(members, "member"), _side(non_members, "non-member")
    if len(y) < 2:
        raise NotEstimableError("1 non-member cannot be split")
    mixed = np.random.default_rng(seed).permutation(y)
    train, rest = mixed[: len(y) // 2], mixed[len(y) // 2 :]
    threshold = tpr_at_fpr(x, train, fpr).threshold
    rates = []
    for side in (x, rest):
        above = int(np.count_nonzero(side > threshold))
        low, high = clopper_pearson(above, len(side), level=level)
        rates.append((above / len(side), low, high))
    return SplitTpr(*rates[0], *rates[1], threshold)


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


def chance_p(tpr: float, n1: int, n0: int, fpr: float) -> float:
    """Probability of this TPR or a larger one when the score knows nothing."""
    return float(_chance(n1, n0, fpr).sf(np.ceil(tpr * n1 - 1e-9) - 1))


def roc_curve(members: ArrayLike, non_members: ArrayLike) -> Roc:
    """Every point of the ROC curve; a row counts as positive at ``>= threshold``."""
    x, y = _side(members, "member"), _side(non_members, "non-member")
    values = np.unique(np.concatenate([x, y]))[::-1]
    rates = [
        (len(side) - np.searchsorted(np.sort(side), values, side="left")) / len(side)
        for side in (y, x)
    ]
    fpr, tpr = (np.concatenate([[0.0], rate]) for rate in rates)
    return Roc(fpr, tpr, np.concatenate([[np.inf], values]))


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
    law = stats.t(df) if np.isfinite(df) else stats.norm()
    p = max(law.sf((value - low) / se), law.cdf((value - high) / se))
    reach = float(law.ppf(1 - alpha)) * se
    return Tost(float(p), value - reach, value + reach, bool(p < alpha))


def placements(x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """AUC; share of ``y`` below each ``x``; share of ``x`` above each ``y``."""
    m, n = len(x), len(y)
    ranks = stats.rankdata(np.concatenate([x, y]))
    above = (ranks[:m] - stats.rankdata(x)) / n
    below = 1 - (ranks[m:] - stats.rankdata(y)) / m
    return float(above.mean()), above, below


def _paired(
    columns: list[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """AUCs of several scores over the same independent rows, and their covariance."""
    m, n = len(columns[0][0]), len(columns[0][1])
    if m < 2 or n < 2:
        raise NotEstimableError("a variance needs 2 members and 2 non-members")
    found = [placements(x, y) for x, y in columns]
    covariance = np.atleast_2d(np.cov([above for _, above, _ in found])) / m
    covariance = (
        covariance + np.atleast_2d(np.cov([below for _, _, below in found])) / n
    )
    return np.array([value for value, _, _ in found]), covariance


def logit_interval(value: float, variance: float, reach: float) -> tuple[float, float]:
    """Interval on the logit scale: inside (0, 1) and around the value."""
    if not 0 < value < 1:
        raise NotEstimableError(NO_SPREAD)
    centre = special.logit(value)
    width = reach * np.sqrt(variance) / (value * (1 - value))
    low, high = special.expit([centre - width, centre + width])
    return float(low), float(high)


def _chance(n1: int, n0: int, fpr: float) -> stats.distributions.rv_frozen:
    if n1 < 1 or n0 < 1:
        raise NotEstimableError("a side is empty")
    k = allowed(n0, fpr)
    return stats.betabinom(n1, k + 1, n0 - k)


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
