"""The percentile interval of bootstrap replicates.

SPARK reports it. Where it decides and where it only stands beside another interval is
said in :mod:`~spark_audit.stats.intervals`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError


def percentile_interval(
    replicates: ArrayLike, *, level: float = 0.95
) -> tuple[float, float]:
    """Return the percentile interval of bootstrap replicates; NaN ones are dropped.

    Parameters
    ----------
    replicates
        Shape ``(B,)``.
    level
        Confidence level.

    Examples
    --------
    >>> low, high = percentile_interval(range(101), level=0.9)
    >>> round(low, 6), round(high, 6)
    (5.0, 95.0)
    """
    # NumPy sorts faster than it finds quantiles. NaN sorts last.
    values = np.sort(np.asarray(replicates, dtype=np.float64))
    values = values[: len(values) - np.count_nonzero(np.isnan(values))]
    if not len(values):
        raise NotEstimableError("no resample gives a value")

    low = _quantile_of_sorted(values, 0.5 - level / 2)
    high = _quantile_of_sorted(values, 0.5 + level / 2)
    return low, high


def _quantile_of_sorted(values: np.ndarray, share: float) -> float:
    """Return a quantile by linear interpolation, as ``numpy.quantile`` does.

    ``values``: shape ``(n,)``, rising; ``share``: from 0 to 1.
    """
    position = (len(values) - 1) * share
    below = math.floor(position)
    above = math.ceil(position)
    step = values[above] - values[below]
    return float(values[below] + (position - below) * step)
