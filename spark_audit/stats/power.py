"""Power: minimum detectable effects, and the number of clusters that is needed.

``significance`` is the largest p that counts as a detection (alpha), and ``level`` the
confidence level of an interval. For the same test, ``level = 1 - significance``. All
effects are detected with the chance :data:`POWER`.

:func:`mde` is for one figure, at a fixed level. :func:`smallest` is for a finding, once
the tests of the whole report are counted. A new kind of test is a value of
:class:`~spark_audit.stats.estimate.Power`'s ``test`` and a branch of :func:`smallest`;
what a test can exclude stands beside it, in :mod:`~spark_audit.stats.at_most`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import scipy

from spark_audit.stats.estimate import Estimate, Power, side_of

NOT_DETECTED = "not detected; effects below MDE cannot be excluded"

POWER = 0.8
"""Chance with which a test detects its smallest detectable effect."""

MAX_CLUSTERS_FOR_EXACT_POWER = 12
"""Most clusters for computing the power of a sign flip from its patterns."""

POWER_SAMPLES = 2000
"""Number of normal samples for estimating the power of a sign flip."""

POWER_SAMPLE_LOTS = 40
"""Number of lots of these samples, which limits memory."""


def smallest(test: Power, significance: float) -> float | None:
    """Return the smallest effect that a test detects with the chance :data:`POWER`.

    Parameters
    ----------
    test
        The test, with the inputs of its power.
    significance
        Largest p that is a detection, once the audit has corrected p over its own
        tests (``test.n_tests``).

    Returns
    -------
    The effect in the unit of the test; ``None``: not even the largest is detected.

    Notes
    -----
    A test may give only multiples of its smallest p (``test.least_p``). Its
    significance is then the largest multiple up to ``significance``.

    Examples
    --------
    A mean with a standard error of 0.1 over 21 clusters, at 5%:

    >>> from spark_audit.stats.estimate import Power
    >>> round(smallest(Power(test="t", se=0.1, df=20), 0.05), 3)
    0.295

    The smallest p of a sign flip of 6 clusters is 1/32, which no longer counts when
    the 5% are divided among 10 tests:

    >>> flip = Power(test="sign-flip", se=0.1, df=5, n=6, least_p=1 / 32)
    >>> print(smallest(flip, 0.05 / 10))
    None
    """
    significance_of_test = significance / test.n_tests
    if significance_of_test < test.least_p:
        return None

    if test.least_p:
        # A little more than 1, so that rounding does not lose the last multiple.
        multiples = math.floor(significance_of_test / test.least_p * (1 + 1e-9))
        significance_of_test = test.least_p * multiples

    if test.test == "exposure":
        # Imported here because only canaries need it.
        from spark_audit.stats.canary_ranks import exposure_mde

        return exposure_mde(
            test.n, test.size, significance=significance_of_test, power=POWER
        )

    if test.test == "hits":
        return _smallest_number_of_hits(test, significance_of_test)

    return _smallest_mean(test, significance_of_test)


def _smallest_number_of_hits(test: Power, significance: float) -> float | None:
    """Return the smallest expected number of hits (or their rate) that is detected.

    It is in the unit of ``test.largest_effect``, the figure if all trials are hits;
    without that, a share. ``None``: not even the most hits are detected.
    """
    # test.ps holds the p of 1, 2, ... hits; the first small enough one decides.
    hits_needed = 0
    for hits, p in enumerate(test.ps, start=1):
        if p < significance:
            hits_needed = hits
            break
    if not hits_needed:
        return None

    # P[Bin(n, rate) >= hits] = power is a quantile of the beta distribution.
    rate = scipy.special.betaincinv(hits_needed, test.n - hits_needed + 1, POWER)
    value_of_all_hits = test.largest_effect or 1.0
    return float(rate) * value_of_all_hits - test.tolerance


def _smallest_mean(test: Power, significance: float) -> float | None:
    """Return the smallest mean that a t test, or a sign flip, detects.

    ``None``: the error is unknown, or no possible effect is detected. A sign flip of
    more clusters than :data:`MAX_CLUSTERS_FOR_EXACT_POWER` counts as a t test.
    """
    if test.se is None:
        return None

    is_exact = test.test == "sign-flip" and test.n <= MAX_CLUSTERS_FOR_EXACT_POWER
    if test.df is None:
        effect = mde_normal(test.se, level=1 - significance)
    elif is_exact:
        effect = _shift_for_sign_flip(test.n, significance) * test.se
    else:
        effect = _noncentrality(test.df, level=1 - significance) * test.se

    # The test subtracts the possible value without a leak, so add it.
    effect += test.tolerance

    if test.largest_effect is None or effect <= test.largest_effect:
        return effect
    # A test with a known smallest p gives it at the largest effect.
    return test.largest_effect if test.least_p else None


@lru_cache(maxsize=64)
def _shift_for_sign_flip(n_clusters: int, significance: float) -> float:
    """Return the shift that a sign flip of normal cluster means detects.

    The unit is the standard error of the mean over clusters. The chance to detect it
    is estimated from :data:`POWER_SAMPLES` samples with a fixed seed.

    A pattern that flips the set S leaves the sum as large if the mean over S of noise
    plus shift is at most 0. The shift must therefore exceed the negated mean over S for
    all sets except the number of patterns that the significance allows.
    """
    # All non-empty sets of clusters, as rows of 0 and 1.
    is_flipped = np.arange(1, 1 << n_clusters)[:, None] >> np.arange(n_clusters) & 1
    n_flipped = is_flipped.sum(axis=1, keepdims=True)  # (sets, 1)
    mean_over_set = (is_flipped / n_flipped).T  # (clusters, sets)

    # One side of the test has half of the 2^C patterns. The pattern without a flip is
    # one of the allowed ones.
    n_allowed = int(significance * 2 ** (n_clusters - 1) * (1 + 1e-9))

    noise = np.random.default_rng(0).standard_normal((POWER_SAMPLES, n_clusters))
    shifts_needed = []
    for samples in np.array_split(noise, POWER_SAMPLE_LOTS):
        negated_means = -samples @ mean_over_set  # (samples of the lot, sets)
        ordered = np.partition(negated_means, -n_allowed, axis=1)
        shifts_needed.append(ordered[:, -n_allowed])

    # The noise has an SD of 1, so a standard error is 1 / sqrt(clusters).
    shift = float(np.quantile(np.concatenate(shifts_needed), POWER))
    return shift * math.sqrt(n_clusters)


def mde(se: float, *, clusters: int, level: float = 0.95) -> float:
    """Return the smallest effect that a two-sided t test over clusters detects.

    Parameters
    ----------
    se
        Standard error of the mean over clusters.
    clusters
        Number of clusters, at least 2.
    level
        Confidence level of the interval that belongs to the test.

    Returns
    -------
    In the unit of ``se``.

    Notes
    -----
    The effect whose noncentral t distribution (``clusters - 1`` degrees of freedom,
    noncentrality effect / se) exceeds the critical value in either tail with a chance
    of :data:`POWER`.

    Examples
    --------
    >>> round(mde(0.1, clusters=10), 3)
    0.315

    With few clusters it is much larger than the one of a normal test:

    >>> round(mde(0.1, clusters=3), 3), round(mde_normal(0.1), 3)
    (0.565, 0.28)
    """
    return _noncentrality(clusters - 1, level=level) * se


def mde_normal(se: float, *, level: float = 0.95) -> float:
    """Return the smallest effect that a two-sided test with a known error detects.

    ``(z_{1-a/2} + z_power) se``, with ``a = 1 - level``.

    Parameters
    ----------
    se
        Standard error, taken as known.
    level
        Confidence level of the interval that belongs to the test.

    Examples
    --------
    >>> round(mde_normal(1.0), 4)
    2.8016
    """
    z_of_both = scipy.special.ndtri([0.5 + level / 2, POWER])
    return float(z_of_both.sum()) * se


def clusters_needed(sd: float, effect: float) -> int:
    """Return the fewest clusters whose minimum detectable effect is small enough.

    Parameters
    ----------
    sd
        Standard deviation over clusters, ``se * sqrt(clusters)`` of a pilot.
    effect
        The effect that is to be detected, in the unit of ``sd``.

    Examples
    --------
    Half a standard deviation takes 34 clusters:

    >>> clusters_needed(1.0, 0.5)
    34
    """
    # The t test never needs fewer clusters than the normal one, so start there.
    count = max(2, math.ceil((mde_normal(sd) / effect) ** 2))
    while mde(sd / math.sqrt(count), clusters=count) > effect:
        count += 1
    return count


def with_mde(estimate: Estimate, *, null: float | None = None) -> Estimate:
    """Return the estimate with its minimum detectable effect, if it has an error.

    The effect is that of a two-sided t test over the estimate's clusters at its level.

    Parameters
    ----------
    null
        Value of no effect: an interval that holds it gets :data:`NOT_DETECTED` added
        to its note.

    Examples
    --------
    >>> estimate = Estimate(0.1, low=-0.1, high=0.3, se=0.08, clusters=8)
    >>> estimate = with_mde(estimate, null=0.0)
    >>> round(estimate.mde, 3), estimate.note == NOT_DETECTED
    (0.262, True)
    """
    if estimate.se is None or estimate.se <= 0 or estimate.clusters < 2:
        return estimate

    effect = mde(estimate.se, clusters=estimate.clusters, level=estimate.level)
    estimate_with_mde = replace(estimate, mde=effect)

    if null is not None and side_of(estimate, null) == 0:
        return estimate_with_mde.noting(NOT_DETECTED)
    return estimate_with_mde


@lru_cache(maxsize=1024)
def _noncentrality(df: float, *, level: float) -> float:
    """Return the noncentrality at which a two-sided t test has :data:`POWER`."""
    critical = float(scipy.special.stdtrit(df, 0.5 + level / 2))

    def power_in_excess(noncentrality: float) -> float:
        """Return the chance of a detection, less the wanted one."""
        tails = scipy.special.nctdtr(df, noncentrality, [-critical, critical])
        # SciPy gives NaN for a tail below about 1e-15, which counts as 0 here.
        below_lower, below_upper = np.nan_to_num(tails)
        return float(1 - below_upper + below_lower) - POWER

    # With 2 clusters the critical value is 12.7: the root grows with it.
    largest = 5.0 * (critical + 1.0)
    return float(scipy.optimize.brentq(power_in_excess, 0.0, largest, xtol=1e-12))
