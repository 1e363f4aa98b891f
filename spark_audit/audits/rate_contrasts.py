"""Contrasts of rates: their limits, and where interval and test disagree.

Audits call ``bounded`` on the contrasts of :mod:`~spark_audit.audits.ratio_rows`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spark_audit.results import Contrast

TESTS_DISAGREE = "the interval and the sign-flip test disagree: no change"


def bounded(contrasts: Sequence[Contrast], rates: Collection[str]) -> list[Contrast]:
    """Return the contrasts, with those of rates limited to [-1, 1].

    A note says if the interval excludes 0 and the sign-flip test does not agree.

    Parameters
    ----------
    rates
        Metrics that are rates.
    """
    within_limits = []
    for contrast in contrasts:
        if contrast.metric in rates:
            contrast = _noting_disagreement(_within_1(contrast))
        within_limits.append(contrast)
    return within_limits


def _within_1(contrast: Contrast) -> Contrast:
    """Return the contrast of a rate with its limits within [-1, 1].

    Without an interval it stays as it is. ``parity_low`` and ``parity_high`` are the
    limits by percentiles of the bootstrap.
    """
    if contrast.ends is None:
        return contrast

    limits: dict[str, float] = {}
    for field in ("low", "high", "parity_low", "parity_high"):
        limit = getattr(contrast, field)
        if limit is not None:
            limits[field] = min(1.0, max(-1.0, limit))
    return contrast.model_copy(update=limits)


def _noting_disagreement(contrast: Contrast) -> Contrast:
    """Return the contrast, with a note if interval and sign-flip test disagree.

    They disagree if the interval lies beside 0 and the test is not significant.
    """
    if contrast.ends is None:
        return contrast

    # A change may be claimed only if both show it: then the contrast has `moved`.
    low, high = contrast.ends
    is_beside_0 = low > 0 or high < 0
    if not is_beside_0 or contrast.moved:
        return contrast

    note = TESTS_DISAGREE
    if contrast.note:
        note = f"{contrast.note}; {TESTS_DISAGREE}"
    return contrast.model_copy(update={"note": note})
