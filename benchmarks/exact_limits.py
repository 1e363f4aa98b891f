"""Exact limits of a share, after Clopper and Pearson.

They are SciPy's: what is counted of the tool does not rest on the tool's own intervals.
"""

from __future__ import annotations

from scipy.stats import binomtest


def limits(found: int, n: int) -> tuple[float, float]:
    """Return the exact one-sided 95% limits of ``found`` of ``n``, lower and upper.

    Each is a limit of its own: together they are an interval of 90%.
    """
    interval = binomtest(found, n).proportion_ci(confidence_level=0.90, method="exact")
    return float(interval.low), float(interval.high)
