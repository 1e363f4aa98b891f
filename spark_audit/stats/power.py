"""What an interval could have shown: minimum detectable effects, clusters needed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import scipy

from spark_audit.stats.estimate import Estimate, Power, side_of

NOT_DETECTED = "not detected; effects below MDE cannot be excluded"


MAX_CLUSTERS_FOR_EXACT_POWER = 12
"""Clusters up to which the power of a sign flip is worked out from its patterns."""
POWER_SAMPLES = 2000
"""Normal samples whose power is counted there."""
POWER = 0.8


def smallest(test: Power, level: float) -> float | None:
    """Smallest effect that a test detects with 80% power at a level of significance.

    Parameters
    ----------
    level
        Largest p that is a detection, once the audit has corrected it (``test.over``).

    Returns
    -------
    In the unit of the test; ``None`` where not even the largest effect is detected.

    Notes
    -----
    Of a test that gives only multiples of its smallest p, the level is the largest
    of these that it may give.
    """
    level /= test.over
    if level < test.least_p:
        return None
    if test.least_p:
        level = test.least_p * math.floor(level / test.least_p * (1 + 1e-9))
    if test.test == "exposure":
        from spark_audit.stats.canary_ranks import exposure_mde

        return exposure_mde(test.n, test.size, significance=level, power=POWER)
    if test.test == "hits":
        hits = next((k for k, p in enumerate(test.ps, 1) if p < level), 0)
        if not hits:
            return None
        # P[Bin(n, rate) >= hits] = power is a quantile of the beta distribution.
        rate = scipy.special.betaincinv(hits, test.n - hits + 1, POWER)
        return float(rate) * (test.most or 1.0) - test.beyond
    if test.se is None:
        return None
    if test.df is None:
        effect = mde_normal(test.se, level=1 - level)
    elif test.test == "sign-flip" and test.n <= MAX_CLUSTERS_FOR_EXACT_POWER:
        effect = _flipped(test.n, level) * test.se
    else:
        effect = _noncentrality(test.df, 1 - level) * test.se
    effect += test.beyond
    if test.most is None or effect <= test.most:
        return effect
    # Where the smallest p is known, the largest effect gives it.
    return test.most if test.least_p else None


@lru_cache(maxsize=64)
def _flipped(clusters: int, level: float) -> float:
    """Shift that a sign flip of normal cluster means finds, in its standard errors.

    A pattern that flips the set S leaves the sum as large if the mean over S of noise
    plus shift is at most 0: the shift must exceed all but so many of these means, each
    taken negative, as the level allows of patterns.
    """
    patterns = np.arange(1, 1 << clusters)[:, None] >> np.arange(clusters) & 1
    allowed = int(level * 2 ** (clusters - 1) * (1 + 1e-9))
    noise = np.random.default_rng(0).standard_normal((POWER_SAMPLES, clusters))
    weights = (patterns / patterns.sum(axis=1, keepdims=True)).T
    # The pattern that flips nothing is one of those allowed.
    bars = [
        np.partition(-part @ weights, -allowed, axis=1)[:, -allowed]
        for part in np.array_split(noise, 40)
    ]
    return float(np.quantile(np.concatenate(bars), POWER)) * math.sqrt(clusters)


def mde(se: float, *, clusters: int, level: float = 0.95) -> float:
    """Smallest effect that a two-sided t test over clusters finds with 80% power.

    The effect whose noncentral t distribution (``clusters - 1`` degrees of freedom,
    noncentrality effect / se) exceeds the critical value in either tail with that
    probability. In the unit of ``se``.
    """
    return _noncentrality(clusters - 1, level) * se


def mde_normal(se: float, *, level: float = 0.95) -> float:
    """The same with a known standard error: ``(z_{1-a/2} + z_power) se``."""
    return float(scipy.special.ndtri([0.5 + level / 2, POWER]).sum()) * se


def clusters_needed(sd: float, effect: float) -> int:
    """Fewest clusters whose minimum detectable effect is at most ``effect``.

    Parameters
    ----------
    sd
        Standard deviation over clusters, ``se * sqrt(clusters)`` of a pilot.
    """
    count = max(2, math.ceil((mde_normal(sd) / effect) ** 2))
    # The t version needs a few clusters more than the normal one, never fewer.
    while mde(sd / math.sqrt(count), clusters=count) > effect:
        count += 1
    return count


def with_mde(estimate: Estimate, *, null: float | None = None) -> Estimate:
    """The estimate with its minimum detectable effect, where it has an error.

    Parameters
    ----------
    null
        Value of no effect: an interval that holds it gets :data:`NOT_DETECTED` added
        to its note.
    """
    if estimate.se is None or estimate.se <= 0 or estimate.clusters < 2:
        return estimate
    least = mde(estimate.se, clusters=estimate.clusters, level=estimate.level)
    found = replace(estimate, mde=least)
    around = null is not None and side_of(found, null) == 0
    return found.noting(NOT_DETECTED) if around else found


@lru_cache(maxsize=1024)
def _noncentrality(df: float, level: float) -> float:
    """Noncentrality at which a two-sided t test rejects with 80% power."""
    critical = float(scipy.special.stdtrit(df, 0.5 + level / 2))

    def missing(nc: float) -> float:
        # SciPy gives NaN for a tail below about 1e-15, which is nothing here.
        low, high = np.nan_to_num(scipy.special.nctdtr(df, nc, [-critical, critical]))
        return float(1 - high + low) - POWER

    # With 2 clusters the critical value is 12.7: the root grows with it.
    return float(
        scipy.optimize.brentq(missing, 0.0, 5.0 * (critical + 1.0), xtol=1e-12)
    )
