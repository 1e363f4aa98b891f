"""Effects that could still be there: the end of an interval at the level of a claim.

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
of an interval.
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
"""Power of the rank at which all canaries rank first."""

END_OF_INTERVAL = 0.025
"""Error of one end of an interval of 95%."""


def at_most(bound: Bound, significance: float) -> float:
    """Return the value that a figure could still have, in the direction of a leak.

    Parameters
    ----------
    bound
        The figure, its test and its errors.
    significance
        Largest p that is a claim, once the audit has corrected it (``bound.over``).

    Returns
    -------
    In the unit of the figure. It lies between the null (a figure that moved away from a
    leak hides none) and the largest possible value of the figure.

    Notes
    -----
    With ``a = significance / over``, by the test that decides:

    ``t``
        ``value + direction * (t_{df, 1 - a/2} se + beyond)``: the effects that the
        two-sided test of Student's t does not reject. ``beyond`` is the possible
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

    >>> none_of_20 = Bound(test="hits", value=0, n=20, most=20)
    >>> round(at_most(none_of_20, 0.05 / 10), 2)
    5.18
    """
    # The audit itself corrects p over several tests.
    significance_of_test = significance / bound.over
    end = _end_towards_leak(bound, significance_of_test)

    # Both ends of the range, in the direction of a leak.
    leak = bound.direction * (end - bound.null)
    largest_leak = math.inf
    if bound.most is not None:
        largest_leak = bound.direction * (bound.most - bound.null)

    return bound.null + bound.direction * min(max(leak, 0.0), largest_leak)


def _end_towards_leak(bound: Bound, significance: float) -> float:
    """Return the end of the interval of the test that decides, in the figure's unit."""
    # For a count or a rate, the value if every trial is a hit: a rate has no `most`.
    all_hits = 1.0 if bound.most is None else bound.most

    if bound.test == "exposure":
        return exposure_at_most(
            bound.value,
            bound.n,
            bound.size,
            significance=significance,
        )

    if bound.test == "hits":
        # The value is a count or a share of the trials, as `most` says.
        n_hits = bound.value / all_hits * bound.n
        _, high = clopper_pearson(n_hits, bound.n, level=1 - significance)
        return all_hits * high

    if bound.test == "rates":
        return rates_at_most(bound.rates, significance=significance) * all_hits

    half_width = t_quantile(significance, bound.df) * (bound.se or 0.0) + bound.beyond
    return bound.value + bound.direction * half_width


def t_quantile(significance: float, df: float | None) -> float:
    """Return the critical value of a two-sided t test; ``df`` None: a normal test.

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
    null: float = 0.0,
    beyond: float = 0.0,
    most: float | None = None,
    over: float = 1.0,
) -> list[Bound]:
    """Return the bound that follows from one end of a t interval; empty without one.

    Parameters
    ----------
    value, end
        The figure, and the end of its interval in the direction of a leak.
    df
        Degrees of freedom of the interval; ``None``: a normal one.
    level
        Confidence level of the interval.
    direction, null, beyond, most, over
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

    # Use the half of the interval that points to a leak.
    se = direction * (end - value) / t_quantile(1 - level, df)
    if not se > 0:
        return []

    bound = Bound(
        test="t",
        value=value,
        direction=1 if direction > 0 else -1,
        null=null,
        se=se,
        df=df,
        beyond=beyond,
        most=most,
        over=over,
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

    # The same limit decides in rate_estimate.
    n_events = float(np.sum(events))
    n_trials = float(np.sum(trials))
    is_few = min(n_events, n_trials - n_events) < FEW_EVENTS

    return RateSide(
        sign=1 if sign > 0 else -1,
        share=min(max(rate.value, 0.0), 1.0),
        trials=n_trials,
        clusters=rate.clusters,
        se=rate.se,
        is_exact=is_few or rate.se is None,
    )


def rate_limits_at(side: RateSide, significance: float) -> tuple[float, float]:
    """Return both limits of a rate over clusters, in [0, 1].

    They generalise the 5% limits of :func:`spark_audit.stats.intervals.rate_estimate`
    to any significance: Student's t over clusters, or with few events Korn and
    Graubard's (1998). If all or no trials are events, each cluster counts as one trial.

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

    # Number of independent trials with the same variance (Korn and Graubard 1998),
    # adjusted for degrees of freedom as in intervals.effective_trials.
    n_effective = side.trials
    if side.share in (0.0, 1.0):
        n_effective = float(side.clusters)
    elif side.se:
        ratio_of_t = t_quantile(significance, side.trials - 1) / t
        n_effective = side.share * (1 - side.share) / side.se**2 * ratio_of_t**2
        n_effective = min(side.trials, n_effective)

    return clopper_pearson(
        side.share * n_effective,
        n_effective,
        level=1 - significance,
    )


def rates_at_most(sides: list[RateSide], *, significance: float) -> float:
    """Return the upper limit of a sum and difference of rates.

    The limit is Newcombe's for a difference of two rates (1998, method 10), with the
    limits of :func:`rate_limits_at` instead of Wilson's. The distances from each rate
    to its own limit are added in quadrature: the upper limit for an added rate, the
    lower one for a subtracted rate.

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
        distance = high - side.share
        if side.sign < 0:
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
        Significance of the one-sided test against chance.

    Notes
    -----
    The larger of two limits, each the inversion of the exact distribution of the mean
    of n canaries in a family of alternatives that holds chance:

    - at ``significance``, memory that favours ranks by a power of the rank: the family
      that the test of the mean exposure is most powerful for
      (:func:`spark_audit.stats.canary_ranks.exposure_mde`);
    - at 2.5%, as for one end of an interval of 95%, a share of canaries that rank first
      while the others rank by chance. Among all alternatives with the same mean, this
      one most often shows in none of a few canaries.

    In a report with a single test, the first limit alone misses the second kind of
    memory too often. Student's t misses both kinds if none of a few canaries was
    remembered, since the spread is then unknown.

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
        return np.asarray(scipy.special.softmax(tilt * bits))

    def chances_if_some_are_first(share: float) -> np.ndarray:
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
        significance=END_OF_INTERVAL,
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
    """Return the largest expected exposure under which a mean is not too small.

    Parameters
    ----------
    chances_of
        Returns the chances of the ranks, shape ``(N,)``, for a strength of memory; 0 is
        chance.
    strongest
        The largest strength.
    mean
        Mean exposure of ``n`` canaries, bits.
    bits
        Shape ``(N,)``: exposure of each rank.
    significance
        A strength is excluded if the chance of such a small mean is below this.
    """
    largest_exposure = float(bits.max())

    def excess(strength: float) -> float:
        chance = _chance_of_at_most(mean, n, chances_of(strength), bits)
        return math.log(max(chance, 1e-300)) - math.log(significance)

    # Either not even the strongest memory is rejected, or chance itself is.
    if mean >= largest_exposure or excess(strongest) > 0:
        return largest_exposure
    if excess(0.0) < 0:
        return float(bits.mean())

    strength = scipy.optimize.brentq(excess, 0.0, strongest, xtol=1e-5)
    return float(chances_of(strength) @ bits)


def _chance_of_at_most(
    mean: float,
    n: int,
    chances: np.ndarray,
    bits: np.ndarray,
) -> float:
    """Return the chance that the mean exposure of n canaries is at most a value.

    Exposures are put on a grid, each shared between the two nearest points, and the
    distribution of their sum is a power in the Fourier domain.
    """
    # Distribution of one canary's exposure on the grid of the sum.
    step = n * float(bits.max()) / GRID_OF_SUM
    position = bits / step
    below = np.floor(position).astype(np.int64)
    share_above = position - below

    points = np.concatenate([below, below + 1])
    masses = np.concatenate([(1 - share_above) * chances, share_above * chances])
    law = np.bincount(points, masses)

    # Distribution of the sum, long enough that nothing wraps around.
    length = n * (len(law) - 1) + 1
    fast_length = scipy.fft.next_fast_len(length, real=True)
    spectrum = scipy.fft.rfft(law, fast_length) ** n
    law_of_sum = scipy.fft.irfft(spectrum, fast_length)[:length]

    # Rounding must not lose the grid point of the mean itself.
    last = math.floor(mean * n / step + 1e-6)
    return float(np.clip(law_of_sum, 0.0, None)[: last + 1].sum())
