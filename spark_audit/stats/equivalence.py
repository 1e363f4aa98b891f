"""Equivalence: tests that a difference is no larger than a margin.

A test that detects nothing shows no equality, since it may have too little data. Two
one-sided tests (Schuirmann 1987, "A comparison of the two one-sided tests procedure and
the power approach for assessing the equivalence of average bioavailability") turn the
question round: their null is a difference of at least the margin, on either side. If
both reject, the difference lies within the margin. At a level of 5% they do so exactly
where the interval of 90% lies within it.

The tests take an :class:`~spark_audit.stats.estimate.Estimate` with its standard error
and degrees of freedom. Those of this project are of the jackknife over clusters, so the
tests hold for clustered rows. The margin is declared before the data are seen: one that
is chosen by the interval is no test.

``significance`` is the largest p of each one-sided test that shows equivalence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import estimate_of, ratio
from spark_audit.stats.memory_contrast import codes_of
from spark_audit.stats.power import POWER

SIGNIFICANCE = 0.05
"""Largest p of each of the two one-sided tests that shows equivalence."""


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided tests of one difference, in the unit of the difference.

    Attributes
    ----------
    margin_low, margin_high
        The limits that the difference is compared with.
    p_above, p_below
        One-sided p of a difference at or below the lower limit, and of one at or above
        the upper limit: small where the difference lies above, or below, that limit.
    low, high
        The interval that belongs to both tests: ``1 - 2 significance``.

    Examples
    --------
    The larger p decides, and the wider end of the interval is the margin that these
    data would just have shown:

    >>> tests = Equivalence(
    ...     margin_low=-0.2, margin_high=0.2, p_above=0.01, p_below=0.03,
    ...     low=-0.1, high=0.19,
    ... )
    >>> tests.p, tests.smallest_margin
    (0.03, 0.19)
    """

    margin_low: float
    margin_high: float
    p_above: float
    p_below: float
    low: float
    high: float

    @property
    def p(self) -> float:
        """The p of both tests together: the larger one, since both must reject."""
        return max(self.p_above, self.p_below)

    @property
    def smallest_margin(self) -> float:
        """The smallest margin around 0 within which these data show the difference."""
        return max(abs(self.low), abs(self.high))


def two_one_sided_tests(
    estimate: Estimate,
    *,
    low: float,
    high: float,
    significance: float = SIGNIFICANCE,
) -> Equivalence | None:
    """Return the tests that a difference lies between two limits.

    Parameters
    ----------
    estimate
        The difference, with its standard error; without degrees of freedom the tests
        are normal.
    low, high
        The limits, in the unit of the difference.
    significance
        Of each test, for the interval that belongs to them.

    Returns
    -------
    ``None`` if the difference or its standard error is missing.

    Raises
    ------
    ValueError
        If the limits are in the wrong order.

    Examples
    --------
    A difference of 0.02 with a standard error of 0.03 over 30 clusters, within 0.1:

    >>> difference = Estimate(0.02, se=0.03, df=29)
    >>> tests = two_one_sided_tests(difference, low=-0.1, high=0.1)
    >>> round(tests.p, 4), round(tests.low, 3), round(tests.high, 3)
    (0.0062, -0.031, 0.071)

    The same data show no difference of 0.06 or less, but one of 0.071:

    >>> round(two_one_sided_tests(difference, low=-0.06, high=0.06).p, 3)
    0.096
    >>> round(tests.smallest_margin, 3)
    0.071
    """
    if low > high:
        raise ValueError("the lower limit is above the upper one")
    if estimate.value is None or not estimate.se:
        return None

    value = estimate.value
    se = estimate.se
    half_width = _quantile(1 - significance, estimate.df) * se
    return Equivalence(
        margin_low=low,
        margin_high=high,
        p_above=_upper_tail((value - low) / se, estimate.df),
        p_below=_upper_tail((high - value) / se, estimate.df),
        low=value - half_width,
        high=value + half_width,
    )


def mean_within(
    values: ArrayLike,
    clusters: ArrayLike,
    *,
    low: float,
    high: float,
    significance: float = SIGNIFICANCE,
) -> Equivalence | None:
    """Return the tests that the mean of clustered values lies between two limits.

    Of two models on the same rows, give the differences of their values.

    Parameters
    ----------
    values
        Shape ``(n,)``.
    clusters
        Shape ``(n,)``: labels of clusters.
    low, high, significance
        As for :func:`two_one_sided_tests`.

    Returns
    -------
    ``None`` if there are fewer than two clusters, or all of them agree.

    Examples
    --------
    Six rows of three sources:

    >>> differences = [0.1, -0.1, 0.2, 0.1, -0.2, 0.0]
    >>> tests = mean_within(differences, list("aabbcc"), low=-0.5, high=0.5)
    >>> round(tests.p, 4)
    0.0109
    """
    values = np.asarray(values, np.float64)
    codes = codes_of(clusters)
    columns = np.stack([values, np.ones(len(values))], axis=1)  # (n, 2)
    sums = cluster_sums(columns, codes, int(codes.max(initial=-1)) + 1)  # (clusters, 2)
    mean = estimate_of(sums, ratio, n=len(values))
    return two_one_sided_tests(mean, low=low, high=high, significance=significance)


def margin_to_expect(
    se: float, df: float | None, *, significance: float = SIGNIFICANCE
) -> float:
    """Return the smallest margin that tests show with 80% power if nothing differs.

    It is the power statement of an equivalence test: with a smaller margin, data of
    this precision often show nothing even where the true difference is 0.

    Parameters
    ----------
    se, df
        Standard error of the difference, and its degrees of freedom; ``None``: a
        normal test.

    Notes
    -----
    At a difference of 0 both tests reject if the estimate lies within the margin minus
    ``t_{1 - significance} se``, so the margin is ``(t_{1 - significance} + t_{0.9})
    se``.

    Examples
    --------
    >>> round(margin_to_expect(0.1, None), 3), round(margin_to_expect(0.1, 10), 3)
    (0.293, 0.318)
    """
    # Both tails miss together with 1 - power, each with half of it.
    of_both_ends = _quantile(0.5 + POWER / 2, df)
    return (_quantile(1 - significance, df) + of_both_ends) * se


def _quantile(probability: float, df: float | None) -> float:
    """Return a quantile of Student's t; without degrees of freedom of the normal."""
    if df is None:
        return float(scipy.special.ndtri(probability))
    return float(scipy.special.stdtrit(df, probability))


def _upper_tail(t: float, df: float | None) -> float:
    """Return the probability of more than ``t``."""
    if df is None:
        return float(scipy.special.ndtr(-t))
    return float(scipy.special.stdtr(df, -t))
