"""What a figure could still be: an interval's end at the significance of a claim.

The smallest detectable effect belongs to the design and is fixed before the data. It
does not say what the data exclude: two checkpoints with the same errors have the same
smallest effect, even if one moved towards a leak and the other away from it. A test
that found nothing leaves an interval open, the set of effects that it does not reject
at its significance (Hoenig and Heisey 2001, "The Abuse of Power", The American
Statistician 55:19-24). Its end in the direction of a leak is called "at most" here.

The significance of that test is that of Holm's first step, as for
:func:`spark_audit.stats.power.smallest`: 0.05 divided by the primary tests of the
report and by the tests of the audit itself. Every effect outside of the interval would
have led to a claim.

``significance`` is here the largest p that is a claim (alpha), ``level`` the confidence
of an interval. Each function says whether its significance is that of a two-sided or of
a one-sided test.

An audit attaches the inputs to its finding (:func:`t_bound`, or a ``Bound`` of its
own); the report calls :func:`at_most` once its tests are counted. A new kind of test is
a value of :class:`~spark_audit.stats.estimate.Bound`'s ``test`` and a branch of
:func:`_end_towards_leak`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.stats.estimate import Bound, RateSide
from spark_audit.stats.intervals import FEW_EVENTS, clopper_pearson, rate_estimate

GRID_OF_SUM = 1 << 13
"""Points of the distribution of a sum of exposures. For 12 canaries among 128
candidates, the mean has steps of 0.001 bits.
"""

MAX_TILT = 20.0
"""The strongest memory among tilted chances, per bit of exposure.

The chance of a rank is in proportion to ``exp(tilt * exposure)``. At this tilt the
second rank, one bit lower, is ``exp(20)`` times less likely than the first, so that
practically all canaries rank first.
"""

ERROR_OF_ONE_END = 0.025
"""Chance that one end of an interval of 95% misses: half of the error of 5%."""


def at_most(bound: Bound, significance: float) -> float:
    """Return the value that a figure could still have, in the direction of a leak.

    Parameters
    ----------
    bound
        The figure, its test and its errors.
    significance
        Largest p that is a claim, for a p that the audit has corrected over its own
        tests (``bound.n_tests``). The tests ``t``, ``hits`` and ``rates`` are
        two-sided, ``exposure`` is one-sided.

    Returns
    -------
    In the unit of the figure. It lies between the value of no effect (a figure that
    moved away from a leak hides none) and ``bound.worst_value``, the figure where the
    leak is largest: below the value of no effect if the direction is -1.

    Notes
    -----
    With ``a = significance / n_tests``, by the test that decides:

    ``t``
        ``value + direction * (t_{df, 1 - a/2} se + tolerance)``: the effects that the
        two-sided test of Student's t does not reject. ``tolerance`` is the possible
        deviation without a leak. The test subtracts it, so it is added here.
    ``exposure``
        see :func:`exposure_at_most`.
    ``hits``
        Clopper and Pearson's (1934) upper limit, the inversion of the exact binomial
        test.
    ``rates``
        see :func:`rates_at_most`.

    Examples
    --------
    A mean of 0.1 with a standard error of 0.05 over 21 clusters, one test at 5%:

    >>> mean = Bound(test="t", value=0.1, se=0.05, df=20)
    >>> round(at_most(mean, 0.05), 4)
    0.2043

    None of 20 came back, and the report has 10 tests:

    >>> none_of_20 = Bound(test="hits", value=0, n=20, worst_value=20)
    >>> round(at_most(none_of_20, 0.05 / 10), 2)
    5.18
    """
    # The audit itself corrects p over several tests.
    significance_of_test = significance / bound.n_tests
    end = _end_towards_leak(bound, significance_of_test)

    # A leak is the distance from no effect, above 0 in the direction of a leak.
    leak = bound.direction * (end - bound.no_effect)
    largest_leak = math.inf
    if bound.worst_value is not None:
        largest_leak = bound.direction * (bound.worst_value - bound.no_effect)

    # If `worst_value` lies away from a leak, largest_leak is below 0, and the result is
    # `worst_value`.
    possible_leak = min(max(leak, 0.0), largest_leak)
    return bound.no_effect + bound.direction * possible_leak


def _end_towards_leak(bound: Bound, significance: float) -> float:
    """Return the end of the interval of the test that decides, in the figure's unit.

    Only a ``t`` test may have a leak below the value of no effect. In the other tests a
    leak is always above it (``Bound`` refuses a direction of -1), so their upper limit
    is the end.

    Parameters
    ----------
    significance
        Of this test: one-sided for ``exposure``, else two-sided.
    """
    if bound.test == "exposure":
        return exposure_at_most(
            bound.value,
            bound.n,
            bound.size,
            significance=significance,
        )

    if bound.test == "hits":
        return _hits_at_most(bound, significance)

    if bound.test == "rates":
        largest_share = rates_at_most(bound.rates, significance=significance)
        return largest_share * _scale_of_share(bound)

    # The t test subtracts what may be there without a leak, so add it.
    se = bound.se or 0.0
    half_width = t_quantile(significance, bound.df) * se + bound.tolerance
    return bound.value + bound.direction * half_width


def _hits_at_most(bound: Bound, significance: float) -> float:
    """Return the upper limit of a count or share of hits, in the figure's unit."""
    scale = _scale_of_share(bound)

    # Without a trial, no share of hits is excluded.
    if bound.n == 0:
        return scale

    n_hits = bound.value / scale * bound.n
    _, largest_share = clopper_pearson(n_hits, bound.n, level=1 - significance)
    return scale * largest_share


def _scale_of_share(bound: Bound) -> float:
    """Return what a share of 1 is in the figure's unit.

    It is the number of trials for a count and 100 for a percentage, both of which have
    it as ``worst_value``. It is 1 for a share, whose ``worst_value`` is 1 or missing.
    """
    # Without a trial the largest count is 0, which is no scale. The count is 0, too, so
    # that any other scale serves.
    if bound.worst_value is None or bound.worst_value == 0:
        return 1.0
    return bound.worst_value


def t_quantile(significance: float, df: float | None) -> float:
    """Return the critical value of a two-sided t test; ``df`` None: a normal test.

    Parameters
    ----------
    significance
        Of the two-sided test: half of it lies beyond the value that is returned.

    Examples
    --------
    >>> round(t_quantile(0.05, 10), 3), round(t_quantile(0.05, None), 3)
    (2.228, 1.96)
    """
    if df is None:
        return float(-scipy.special.ndtri(significance / 2))
    return float(-scipy.special.stdtrit(df, significance / 2))


def t_bound(
    value: float | None,
    end: float | None,
    *,
    df: float | None,
    level: float = 0.95,
    direction: int = 1,
    no_effect: float = 0.0,
    tolerance: float = 0.0,
    worst_value: float | None = None,
    n_tests: float = 1.0,
) -> list[Bound]:
    """Return the bound that follows from one end of a t interval, in a list.

    The list is what a ``Finding`` takes as its bounds. It is empty if there is no
    interval, or if the end of the interval does not lie beyond the value.

    Parameters
    ----------
    value, end
        The figure, and the end of its interval in the direction of a leak.
    df
        Degrees of freedom of the interval; ``None``: a normal one.
    level
        Confidence of the two-sided interval.
    direction, no_effect, tolerance, worst_value, n_tests
        As in :class:`~spark_audit.stats.estimate.Bound`.

    Notes
    -----
    For an interval of Student's t this recovers its standard error, and the bound at 5%
    is the end of the interval. Other intervals (bootstrap percentiles, the logit of an
    AUC) are extended by the ratio of t quantiles, since a significance of 0.05 / 38
    would need more resamples than there are.

    Examples
    --------
    >>> (bound,) = t_bound(0.1, 0.2043, df=20)
    >>> round(bound.se, 4)
    0.05
    """
    if value is None or end is None:
        return []

    # Divide the half of the interval that points to a leak by its quantile.
    se = direction * (end - value) / t_quantile(1 - level, df)
    if not se > 0:
        return []

    bound = Bound(
        test="t",
        value=value,
        direction=1 if direction > 0 else -1,
        no_effect=no_effect,
        se=se,
        df=df,
        tolerance=tolerance,
        worst_value=worst_value,
        n_tests=n_tests,
    )
    return [bound]


def rate_side(events: ArrayLike, trials: ArrayLike, *, sign: int) -> RateSide | None:
    """Return a rate as one side of a difference; ``None`` where it is not estimable.

    Parameters
    ----------
    events, trials
        Shape ``(C,)``: as for :func:`spark_audit.stats.intervals.rate_estimate`.
    sign
        1 where the difference adds it, -1 where it subtracts it.

    Examples
    --------
    >>> side = rate_side([1, 0, 2], [4, 4, 4], sign=-1)
    >>> side.share, side.trials, side.clusters, side.is_exact
    (0.25, 12.0, 3, True)
    """
    rate = rate_estimate(events, trials)
    if rate.value is None:
        return None

    # rate_estimate gives the exact interval below the same number of events.
    n_events = float(np.sum(events))
    n_trials = float(np.sum(trials))
    has_few_events = min(n_events, n_trials - n_events) < FEW_EVENTS

    return RateSide(
        sign=1 if sign > 0 else -1,
        share=min(max(rate.value, 0.0), 1.0),
        trials=n_trials,
        clusters=rate.clusters,
        se=rate.se,
        is_exact=has_few_events or rate.se is None,
    )


def rate_limits_at(side: RateSide, significance: float) -> tuple[float, float]:
    """Return both limits of a rate over clusters, shares from 0 to 1.

    They generalise the 5% limits of :func:`spark_audit.stats.intervals.rate_estimate`
    to any significance: Student's t over clusters, or with few events Korn and
    Graubard's (1998). If all or no trials are events, each cluster counts as one trial.

    Parameters
    ----------
    significance
        Of the two-sided test: the error of both limits together.

    Examples
    --------
    No event in 12 clusters of 5 trials each counts as none of 12:

    >>> side = RateSide(sign=1, share=0.0, trials=60.0, clusters=12)
    >>> low, high = rate_limits_at(side, 0.05)
    >>> low, round(high, 3)
    (0.0, 0.265)
    """
    t = t_quantile(significance, side.clusters - 1)
    if not side.is_exact and side.se is not None:
        low = max(side.share - t * side.se, 0.0)
        high = min(side.share + t * side.se, 1.0)
        return low, high

    if side.share in (0.0, 1.0):
        # The variance is 0 because there are too few events.
        n_effective = float(side.clusters)
    elif side.se:
        # Number of independent trials with the same variance (Korn and Graubard 1998).
        n_of_same_variance = side.share * (1 - side.share) / side.se**2

        # Adjust it for the degrees of freedom, as in intervals.effective_trials.
        ratio_of_t = t_quantile(significance, side.trials - 1) / t
        n_effective = min(side.trials, n_of_same_variance * ratio_of_t**2)
    else:
        # All clusters agree, so that they do not show that trials depend.
        n_effective = side.trials

    return clopper_pearson(
        side.share * n_effective,
        n_effective,
        level=1 - significance,
    )


def rates_at_most(sides: list[RateSide], *, significance: float) -> float:
    """Return the upper limit of a sum of rates, some of which are subtracted.

    The limit is Newcombe's for a difference of two rates (1998, method 10), with the
    limits of :func:`rate_limits_at` instead of Wilson's. The distances from each rate
    to its own limit are added in quadrature: the upper limit for an added rate, the
    lower one for a subtracted rate.

    Parameters
    ----------
    significance
        Of the two-sided test, as for :func:`rate_limits_at`.

    Examples
    --------
    >>> added = RateSide(sign=1, share=0.0, trials=60.0, clusters=12)
    >>> subtracted = RateSide(sign=-1, share=0.0, trials=60.0, clusters=12)
    >>> round(rates_at_most([added, subtracted], significance=0.05), 3)
    0.265
    """
    difference = 0.0
    squares = 0.0
    for side in sides:
        low, high = rate_limits_at(side, significance)

        # Distance from the rate to its limit in the direction of a larger difference.
        if side.sign > 0:
            distance = high - side.share
        else:
            distance = side.share - low

        difference += side.sign * side.share
        squares += distance**2

    return min(difference + math.sqrt(squares), 1.0)


def exposure_at_most(mean: float, n: int, size: int, *, significance: float) -> float:
    """Return the largest mean exposure that canaries could have, bits.

    Parameters
    ----------
    mean
        Mean exposure of the canaries, bits.
    n
        Number of canaries.
    size
        Number of candidates of each canary.
    significance
        Largest p of the one-sided test against chance that is a claim.

    Notes
    -----
    Returned is the larger of two limits, one per kind of memory. Each is the largest
    expected exposure that is not rejected by the exact distribution of the mean of n
    canaries:

    - at ``significance``, all canaries tend to rank early: the chance of a rank is in
      proportion to ``exp(tilt * exposure)``. For this kind the test of the mean
      exposure is the most powerful one
      (:func:`spark_audit.stats.canary_ranks.exposure_mde`).
    - at 2.5%, as for one end of an interval of 95%, a share of the canaries ranks first
      and the others rank by chance. Of all kinds with the same mean, this one is the
      easiest to miss with few canaries.

    The second limit has its own level because in a report with a single test the first
    limit alone misses the second kind of memory too often. Student's t misses both
    kinds if none of a few canaries was remembered, since the spread is then unknown.

    Examples
    --------
    Twelve canaries with the exposure of chance, among 128 candidates each:

    >>> round(exposure_at_most(1.4, 12, 128, significance=0.05), 1)
    2.9
    """
    # Imported here because only the canary audit needs it.
    from spark_audit.stats.canary_ranks import exposure_bits

    bits = exposure_bits(np.arange(1.0, size + 1), size)  # (size,), of each rank

    def chances_if_tilted(tilt: float) -> np.ndarray:
        """Return the chance of each rank, shape ``(size,)``, if all rank early."""
        # The exposure is log2(size / rank), so this is in proportion to a power of the
        # rank: rank ** (-tilt / ln 2).
        return np.asarray(scipy.special.softmax(tilt * bits))

    def chances_if_some_are_first(share: float) -> np.ndarray:
        """Return the chance of each rank, shape ``(size,)``, if a share ranks first."""
        chances = np.full(size, (1 - share) / size)
        chances[0] += share
        return chances

    limit_of_tilted = _largest_mean(
        chances_if_tilted,
        strongest=MAX_TILT,
        mean=mean,
        n=n,
        bits=bits,
        significance=significance,
    )
    limit_of_some_first = _largest_mean(
        chances_if_some_are_first,
        strongest=1.0,
        mean=mean,
        n=n,
        bits=bits,
        significance=ERROR_OF_ONE_END,
    )
    return max(limit_of_tilted, limit_of_some_first)


def _largest_mean(
    chances_of: Callable[[float], np.ndarray],
    *,
    strongest: float,
    mean: float,
    n: int,
    bits: np.ndarray,
    significance: float,
) -> float:
    """Return the largest expected exposure that is compatible with an observed mean.

    Compatible: it does not make so small a mean improbable. The result lies between the
    exposure by chance and the exposure of canaries that all rank first.

    Parameters
    ----------
    chances_of
        Returns the chances of the ranks, shape ``(size,)``, for a strength of memory;
        0 is chance.
    strongest
        The largest strength, at which all canaries rank first.
    mean
        Observed mean exposure of ``n`` canaries, bits.
    bits
        Shape ``(size,)``: exposure of each rank.
    significance
        One-sided: a strength is rejected if a mean as small as this one, or smaller,
        has a chance below it.
    """
    largest_exposure = float(bits.max())

    def log_ratio(strength: float) -> float:
        """Return log(chance of such a mean / significance); below 0: rejected."""
        chance = _chance_of_at_most(mean, n, chances_of(strength), bits)
        return math.log(max(chance, 1e-300)) - math.log(significance)

    # Not even the strongest memory is rejected.
    if mean >= largest_exposure or log_ratio(strongest) > 0:
        return largest_exposure

    # Chance itself is rejected: the mean is smaller than chance explains.
    if log_ratio(0.0) < 0:
        return float(bits.mean())

    strength = scipy.optimize.brentq(log_ratio, 0.0, strongest, xtol=1e-5)
    return float(chances_of(strength) @ bits)


def _chance_of_at_most(
    mean: float,
    n: int,
    chances: np.ndarray,
    bits: np.ndarray,
) -> float:
    """Return the chance that the mean exposure of n canaries is at most ``mean``.

    Exposures are put on a grid, each shared between the two nearest points, and the
    distribution of their sum is a power in the Fourier domain.

    Parameters
    ----------
    chances, bits
        Shape ``(size,)``: chance and exposure of each rank.
    """
    # Distribution of one canary's exposure on the grid of the sum.
    step = n * float(bits.max()) / GRID_OF_SUM  # bits
    position = bits / step  # (size,), in steps
    lower_point = np.floor(position).astype(np.int64)
    share_of_upper = position - lower_point

    points = np.concatenate([lower_point, lower_point + 1])  # (2 size,)
    masses = np.concatenate([(1 - share_of_upper) * chances, share_of_upper * chances])
    chance_by_point = np.bincount(points, masses)  # (points,)

    # Distribution of the sum, long enough that nothing wraps around.
    n_points_of_sum = n * (len(chance_by_point) - 1) + 1
    fast_length = scipy.fft.next_fast_len(n_points_of_sum, real=True)
    spectrum = scipy.fft.rfft(chance_by_point, fast_length) ** n
    chance_of_sum = scipy.fft.irfft(spectrum, fast_length)[:n_points_of_sum]

    # The transform may leave chances a little below 0.
    chance_of_sum = np.clip(chance_of_sum, 0.0, None)

    # Rounding must not lose the grid point of the mean itself.
    last = math.floor(mean * n / step + 1e-6)
    return float(chance_of_sum[: last + 1].sum())
