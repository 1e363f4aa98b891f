"""What an interval could have shown: minimum detectable effects, clusters needed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import scipy

from spark_audit.results import Estimate

NOT_DETECTED = "not detected; effects below MDE cannot be excluded"


def mde(se: float, *, clusters: int, level: float = 0.95, power: float = 0.8) -> float:
    """Smallest effect that a two-sided t test over clusters finds with this power.

    The effect whose noncentral t distribution (``clusters - 1`` degrees of freedom,
    noncentrality effect / se) exceeds the critical value in either tail with
    probability ``power``. In the unit of ``se``.
    """
    _check(se, level, power)
    if clusters < 2:
        raise ValueError("mde needs at least 2 clusters")
    return _noncentrality(clusters - 1, level, power) * se


def mde_normal(se: float, *, level: float = 0.95, power: float = 0.8) -> float:
    """The same with a known standard error: ``(z_{1-a/2} + z_power) se``."""
    _check(se, level, power)
    return float(scipy.special.ndtri(0.5 + level / 2) + scipy.special.ndtri(power)) * se


def clusters_needed(
    sd: float,
    effect: float,
    *,
    level: float = 0.95,
    power: float = 0.8,
    normal: bool = False,
) -> int:
    """Fewest clusters whose minimum detectable effect is at most ``effect``.

    Parameters
    ----------
    sd
        Standard deviation over clusters, ``se * sqrt(clusters)`` of a pilot.
    normal
        Use :func:`mde_normal`, which needs about two clusters fewer.
    """
    _check(sd, level, power)
    if not (math.isfinite(effect) and effect > 0):
        raise ValueError("effect must be positive and finite")
    count = max(2, math.ceil((mde_normal(sd, level=level, power=power) / effect) ** 2))
    if normal:
        return count
    # The t version needs a few clusters more than the normal one, never fewer.
    while mde(sd / math.sqrt(count), clusters=count, level=level, power=power) > effect:
        count += 1
    return count


def with_mde(
    estimate: Estimate, *, power: float = 0.8, null: float | None = None
) -> Estimate:
    """The estimate with its minimum detectable effect, where it has an error.

    Parameters
    ----------
    null
        Value of no effect: an interval that holds it gets :data:`NOT_DETECTED` added
        to its note.
    """
    if estimate.se is None or estimate.se <= 0 or estimate.clusters < 2:
        return estimate
    found = replace(
        estimate,
        mde=mde(
            estimate.se, clusters=estimate.clusters, level=estimate.level, power=power
        ),
    )
    if null is None or found.low is None or found.high is None:
        return found
    return found.noting(NOT_DETECTED) if found.low <= null <= found.high else found


@lru_cache(maxsize=1024)
def _noncentrality(df: int, level: float, power: float) -> float:
    """Noncentrality at which a two-sided t test rejects with probability ``power``."""
    critical = float(scipy.special.stdtrit(df, 0.5 + level / 2))

    def missing(nc: float) -> float:
        # SciPy gives NaN for a tail below about 1e-15, which is nothing here.
        low, high = np.nan_to_num(scipy.special.nctdtr(df, nc, [-critical, critical]))
        return float(1 - high + low) - power

    # With 2 clusters the critical value is 12.7: the root grows with it.
    return float(
        scipy.optimize.brentq(missing, 0.0, 5.0 * (critical + 1.0), xtol=1e-12)
    )


def _check(spread: float, level: float, power: float) -> None:
    if not (math.isfinite(spread) and spread > 0):
        raise ValueError("the standard error or deviation must be positive and finite")
    if not 0 < level < 1 or not 1 - level < power < 1:
        raise ValueError("level must lie in (0, 1) and power in (1 - level, 1)")
