"""What could still be there: the end of an interval at the level of a claim.

The smallest detectable effect belongs to the design and is fixed before the data. Once
there are data, it says nothing of what they exclude: two checkpoints with the same
errors have the same smallest effect, whether the one moved towards a leak or away from
it. What a test that found nothing leaves open is the interval, the set of effects that
the test, at the level at which it decides, does not reject (Hoenig and Heisey 2001,
"The Abuse of Power", The American Statistician 55:19-24). Its end in the direction of
a leak is called "at most" here.

The level is that of Holm's first step, as for :func:`spark_audit.stats.power.smallest`:
0.05 divided by the primary tests of the report and by the tests of the audit itself.
An effect of which a claim would have been made by such an interval, and was not, lies
within it.
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
"""Points of the distribution of a sum of exposures: of 12 canaries among 128, a step of
their mean of 0.001 bits."""
MAX_TILT = 20.0
"""Power of the rank at which all canaries rank first."""
END_OF_INTERVAL = 0.025
"""Error of one end of an interval of 95%."""


def at_most(bound: Bound, level: float) -> float:
    """Return what a figure could still be, in the direction of a leak.

    Parameters
    ----------
    bound
        The figure, its test and its errors.
    level
        Largest p that is a claim, once the audit has corrected it (``bound.over``).

    Returns
    -------
    In the unit of the figure. Between the null (what moved away from a leak hides at
    most none) and the largest value that the figure can have.

    Notes
    -----
    With ``a = level / over``, by the test that decides:

    ``t``
        ``value + direction * (t_{df, 1 - a/2} se + beyond)``: the effects that the
        two-sided test of Student's t does not reject. ``beyond`` is by how much the
        figure may be off without a leak: as the test takes it off, it is added here.
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
    # The audit itself takes p over several tests.
    level = level / bound.over
    if bound.test == "exposure":
        end = exposure_at_most(bound.value, bound.n, bound.size, level=level)
    elif bound.test == "hits":
        scale = bound.most or 1.0
        hits = bound.value / scale * bound.n
        end = scale * clopper_pearson(hits, bound.n, level=1 - level)[1]
    elif bound.test == "rates":
        end = rates_at_most(bound.rates, level=level) * (bound.most or 1.0)
    else:
        reach = t_quantile(level, bound.df) * (bound.se or 0.0) + bound.beyond
        end = bound.value + bound.direction * reach

    # Both ends of the range, seen in the direction of a leak.
    leak = bound.direction * (end - bound.null)
    largest = math.inf
    if bound.most is not None:
        largest = bound.direction * (bound.most - bound.null)
    return bound.null + bound.direction * min(max(leak, 0.0), largest)


def t_quantile(level: float, df: float | None) -> float:
    """Return the critical value of a two-sided t test; ``None``: a normal test."""
    if df is None:
        return float(-scipy.special.ndtri(level / 2))
    return float(-scipy.special.stdtrit(df, level / 2))


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

    Notes
    -----
    Of an interval of Student's t its standard error comes out again, and the bound at
    5% is the interval's end. An interval of another make (of bootstrap percentiles, of
    the logit of an AUC) is extended by the ratio of t quantiles: a level of 0.05 / 38
    would need more resamples than there are.
    """
    if value is None or end is None:
        return []

    # The half of the interval that points to a leak.
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
    """
    rate = rate_estimate(events, trials)
    if rate.value is None:
        return None

    # As few as get the exact interval there.
    happened = float(np.sum(events))
    tried = float(np.sum(trials))
    is_few = min(happened, tried - happened) < FEW_EVENTS

    return RateSide(
        sign=1 if sign > 0 else -1,
        share=min(max(rate.value, 0.0), 1.0),
        trials=tried,
        clusters=rate.clusters,
        se=rate.se,
        is_exact=is_few or rate.se is None,
    )


def rate_limits_at(side: RateSide, level: float) -> tuple[float, float]:
    """Return both limits of a rate over clusters, in [0, 1], at a level.

    Those of :func:`spark_audit.stats.intervals.rate_estimate`, which are at 5%:
    Student's t over clusters, or Korn and Graubard's (1998) where events are few, with
    as many trials as clusters where all or none are events.
    """
    t = t_quantile(level, side.clusters - 1)
    if not side.is_exact and side.se is not None:
        return max(side.share - t * side.se, 0.0), min(side.share + t * side.se, 1.0)

    # Independent trials that tell as much as these do.
    effective = side.trials
    if side.share in (0.0, 1.0):
        effective = float(side.clusters)
    elif side.se:
        design = (t_quantile(level, side.trials - 1) / t) ** 2
        effective = side.share * (1 - side.share) / side.se**2 * design
        effective = min(side.trials, effective)
    return clopper_pearson(side.share * effective, effective, level=1 - level)


def rates_at_most(sides: list[RateSide], *, level: float) -> float:
    """Return the upper limit of a sum and difference of rates.

    Newcombe's (1998, method 10) limit of a difference of two rates, with the limits of
    :func:`rate_limits_at` in place of Wilson's: the distances from each rate to its own
    limit, the upper one where it is added and the lower one where it is subtracted,
    added in quadrature.
    """
    value = 0.0
    squares = 0.0
    for side in sides:
        low, high = rate_limits_at(side, level)
        half_width = high - side.share
        if side.sign < 0:
            half_width = side.share - low
        value += side.sign * side.share
        squares += half_width**2

    return min(value + math.sqrt(squares), 1.0)


def exposure_at_most(mean: float, n: int, size: int, *, level: float) -> float:
    """Return the largest mean exposure that canaries could have, bits.

    Parameters
    ----------
    mean
        Mean exposure of the canaries, bits.
    n
        How many there are.
    size
        Candidates that each ranks among.
    level
        Level of significance of the one-sided test of chance.

    Notes
    -----
    The larger of two limits, each the inversion of the exact distribution of the mean
    of n canaries in a family of alternatives that holds chance:

    - at ``level``, memory that favours ranks by a power of the rank: the family that
      the test of the mean exposure is most powerful for
      (:func:`spark_audit.stats.canary_ranks.exposure_mde`);
    - at 2.5%, as of one end of an interval of 95%, a share of canaries that rank first
      while the others rank by chance: of all that give one mean, what leaves it most
      often in no canary of so few.

    The first alone misses that second kind of memory too often where a report has a
    single test; Student's t misses both where no canary of a few was remembered, since
    nothing then tells of the spread.
    """
    # Only canaries need it: an audit of its own loads no other.
    from spark_audit.stats.canary_ranks import exposure_bits

    bits = exposure_bits(np.arange(1.0, size + 1), size)

    def favoured(tilt: float) -> np.ndarray:
        return np.asarray(scipy.special.softmax(tilt * bits))

    def mixed(share: float) -> np.ndarray:
        chances = np.full(size, (1 - share) / size)
        chances[0] += share
        return chances

    by_test = _largest_mean(favoured, MAX_TILT, mean, n, bits, level)
    by_mixture = _largest_mean(mixed, 1.0, mean, n, bits, END_OF_INTERVAL)
    return max(by_test, by_mixture)


def _largest_mean(
    chances_of: Callable[[float], np.ndarray],
    strongest: float,
    mean: float,
    n: int,
    bits: np.ndarray,
    level: float,
) -> float:
    """Return the largest expected exposure under which a mean is not too small.

    Parameters
    ----------
    chances_of
        Chances of the ranks, shape ``(N,)``, by the strength of memory from 0, chance.
    strongest
        The largest strength.
    bits
        Shape ``(N,)``: exposure of each rank.
    """
    most = float(bits.max())

    def excess(strength: float) -> float:
        below = _chance_of_at_most(mean, n, chances_of(strength), bits)
        return math.log(max(below, 1e-300)) - math.log(level)

    # Not even the strongest memory is rejected; or chance itself is.
    if mean >= most or excess(strongest) > 0:
        return most
    if excess(0.0) < 0:
        return float(bits.mean())
    strength = scipy.optimize.brentq(excess, 0.0, strongest, xtol=1e-5)
    return float(chances_of(strength) @ bits)


def _chance_of_at_most(
    mean: float, n: int, chances: np.ndarray, bits: np.ndarray
) -> float:
    """Return the chance that the mean exposure of n canaries is at most a value.

    Exposures are put on a grid, each shared between the two nearest points, and the
    distribution of their sum is a power in the Fourier domain.
    """
    step = n * float(bits.max()) / GRID_OF_SUM
    position = bits / step
    below = np.floor(position).astype(np.int64)
    share = position - below
    places = np.concatenate([below, below + 1])
    masses = np.concatenate([(1 - share) * chances, share * chances])
    single = np.bincount(places, masses)

    length = n * (len(single) - 1) + 1
    fast = scipy.fft.next_fast_len(length, real=True)
    summed = scipy.fft.irfft(scipy.fft.rfft(single, fast) ** n, fast)[:length]
    place = math.floor(mean * n / step + 1e-6)
    return float(np.clip(summed, 0.0, None)[: place + 1].sum())
