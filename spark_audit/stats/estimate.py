"""Estimates with their intervals, and the inputs of power and of bounds.

An :class:`Estimate` is a figure before it has a place in a report; a ``Row`` of
:mod:`spark_audit.results.rows` is one in it. :class:`Power` and :class:`Bound` are kept
in reports, beside the finding whose test they describe, because the significance of a
test depends on all tests of the report: :mod:`~spark_audit.stats.power` and
:mod:`~spark_audit.stats.at_most` compute with them later.

Each kind of test reads some of their fields; the table at the end of this file says
which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

Status = Literal[
    "ok", "not_estimable", "invalid", "not_resolvable", "insensitive", "void"
]
"""Whether a figure may be concluded on, and if not, why.

================== ==================================================================
``ok``             it may
``not_estimable``  there is no value; the note says why
``invalid``        a check of the data failed, so the value means something else
``not_resolvable`` the data are too few for the question, such as a rate of 0.1% among
                   100 non-members
``insensitive``    an effect would hardly show, so finding none means little
``void``           a guard of the whole report failed (given by the report, not by an
                   audit: :mod:`spark_audit.report.void_rows`)
================== ==================================================================
"""

Interval = Literal[
    "jackknife-t",
    "korn-graubard",
    "clopper-pearson",
    "delong",
    "percentile",
    "beta-binomial",
    "none",
]
"""How the limits of an interval were computed."""

NUMBERS_OF_ESTIMATE = (
    "value",
    "low",
    "high",
    "parity_low",
    "parity_high",
    "se",
    "df",
    "mde",
)
"""Fields of :class:`Estimate` that must be finite where they are not ``None``."""

# A report holds Power, RateSide and Bound: its reader refuses unknown fields, and its
# schema says what each field means.
RECORD_CONFIG: dict[str, object] = {
    "extra": "forbid",
    "use_attribute_docstrings": True,
    "allow_inf_nan": False,
}
"""Settings of pydantic for dataclasses that are read from and written to reports."""


@dataclass(frozen=True)
class Estimate:
    """A value with its decision interval and its percentile interval.

    ``value`` is ``None`` exactly when ``status`` is ``not_estimable``; ``note`` then
    gives the reason. ``low`` and ``high`` are the interval that decides, computed as
    ``interval`` says. Both are ``None`` without an interval; one of them alone is
    ``None`` where the interval is one-sided. ``parity_low`` and ``parity_high`` are the
    percentile interval of the bootstrap, which SPARK reports. ``level`` is the
    confidence of both.

    ``n`` counts what was averaged (tokens, identifiers, rows), ``clusters`` what was
    resampled. If two sides are compared by pairs, ``side_clusters`` are those of the
    smallest side, times the number of tasks over which the value is averaged; else it
    is 0. ``se`` is the standard error, from which ``mde``, the smallest effect
    that would be detected, was computed; ``df`` are the degrees of freedom of the
    deciding interval's t quantile.

    Examples
    --------
    >>> estimate = sa.Estimate(0.4, low=0.1, high=0.7, clusters=12)
    >>> estimate.value, estimate.status
    (0.4, 'ok')
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    interval: Interval = "none"
    level: float = 0.95
    parity_low: float | None = None
    parity_high: float | None = None
    se: float | None = None
    df: float | None = None
    mde: float | None = None
    n: int = 0
    clusters: int = 0
    side_clusters: int = 0
    status: Status = "ok"
    note: str = ""

    def __post_init__(self) -> None:
        is_missing = self.status == "not_estimable"
        if (self.value is None) != is_missing:
            raise ValueError("a value is missing exactly when it is not estimable")
        if is_missing and not self.note:
            raise ValueError("not_estimable needs its reason in note")

        for name in NUMBERS_OF_ESTIMATE:
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{name} is not finite")

    @classmethod
    def missing(cls, reason: str, *, n: int = 0, clusters: int = 0) -> Estimate:
        """Return the explicit `not estimable`, with its reason."""
        return cls(
            value=None,
            status="not_estimable",
            note=reason,
            n=n,
            clusters=clusters,
        )

    def with_deciding_interval(self, *, paper: bool) -> Estimate:
        """Return the estimate with the interval that decides as ``low`` and ``high``.

        Parameters
        ----------
        paper
            Whether the percentile interval decides, as in SPARK's paper. Without one,
            and else, the estimate stays as it is.
        """
        if not paper or self.parity_low is None or self.parity_high is None:
            return self
        return self.decided_by_percentiles(self.parity_low, self.parity_high)

    def decided_by_percentiles(self, low: float, high: float | None) -> Estimate:
        """Return the estimate with a percentile interval, which also decides.

        Parameters
        ----------
        low, high
            Limits in the unit of the value; ``None``: no upper limit.
        """
        return replace(
            self,
            low=low,
            high=high,
            interval="percentile",
            parity_low=low,
            parity_high=high,
        )

    def noting(self, text: str) -> Estimate:
        """Return the estimate with a sentence added to its note."""
        note = text
        if self.note:
            note = f"{self.note}; {text}"
        return replace(self, note=note)


class HasLimits(Protocol):
    """Anything with an interval: an estimate, or a figure of a report."""

    @property
    def low(self) -> float | None:
        """Lower limit, in the unit of the figure."""

    @property
    def high(self) -> float | None:
        """Upper limit, in the unit of the figure."""


def side_of(figure: HasLimits, null: float = 0.0) -> int | None:
    """Return on which side of a null value an interval lies.

    Parameters
    ----------
    figure
        An estimate, or a figure of a report.
    null
        The value, in the unit of the figure.

    Returns
    -------
    1 above it, -1 below it, 0 around it; ``None`` without a two-sided interval.

    Examples
    --------
    >>> side_of(Estimate(0.4, low=0.1, high=0.7)), side_of(Estimate(0.4))
    (1, None)
    """
    if figure.low is None or figure.high is None:
        return None

    is_above = figure.low > null
    is_below = figure.high < null
    return int(is_above) - int(is_below)


def is_significant(p: float | None, *, level: float = 0.95) -> bool:
    """Return whether a single test rejects: p is at most 1 minus a confidence level.

    It is not for the claims of a report, whose p is corrected over all of its tests.

    Parameters
    ----------
    p
        Of the test; ``None``: there is no test, and so no rejection.
    level
        Confidence of the interval that belongs to the test.

    Examples
    --------
    >>> is_significant(0.05), is_significant(0.05, level=0.99), is_significant(None)
    (True, False, False)
    """
    return p is not None and p <= 1 - level


@dataclass(frozen=True, kw_only=True)
class Power:
    """The inputs from which the smallest effect of one test follows, at any level.

    :func:`spark_audit.stats.power.smallest` computes that effect once the tests of the
    whole report are counted. A claim that needs several tests has one of each.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = RECORD_CONFIG

    test: Literal["t", "sign-flip", "exposure", "hits"]
    """`t`: Student's t. `sign-flip`: exact, over clusters. `exposure`: the mean
    exposure of canaries against chance. `hits`: a count."""
    se: float | None = None
    """Standard error of the effect, in the unit of the finding, of `t` and
    `sign-flip`."""
    df: float | None = None
    """Degrees of freedom, a count; null: a normal test."""
    n: int = 0
    """Clusters, canaries, or trials of a count."""
    size: int = 0
    """Candidates that a canary ranks among."""
    ps: list[float] = field(default_factory=list)
    """p of 1, 2, ... hits, probabilities, of `hits`."""
    n_tests: float = 1.0
    """Tests within the audit that p is corrected over; may be a fraction."""
    tolerance: float = 0.0
    """Effects up to here are no evidence, in the unit of the finding."""
    largest_effect: float | None = None
    """The largest effect that there can be, in the unit of the finding; null: no
    bound."""
    least_p: float = 0.0
    """The smallest p that the test can give, a probability."""
    group: str = ""
    """Part that only the sentence names; empty: the claim's."""
    mde: float | None = None
    """The smallest effect, in the unit of the finding, at the level of this report."""
    why: Literal["clusters", "draws", "nobody"] = "clusters"
    """Why no effect reaches the level, where none does: too few clusters, tests of
    9,999 draws, or nobody was held out."""

    def __post_init__(self) -> None:
        if min(self.n, self.size) < 0:
            raise ValueError("n and size are counts: 0 or more")
        if not all(0 <= p <= 1 for p in [self.least_p, *self.ps]):
            raise ValueError("ps and least_p are probabilities: 0 to 1")
        _check_number_of_tests(self.n_tests)


@dataclass(frozen=True, kw_only=True)
class RateSide:
    """A rate over clusters, as one side of a difference of rates.

    :func:`spark_audit.stats.at_most.rate_limits_at` gives its interval at any level.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = RECORD_CONFIG

    sign: Literal[1, -1]
    """1 where the difference adds it, -1 where it subtracts it."""
    share: float
    """The rate, a share."""
    trials: float
    """Trials, weighted as the rate is."""
    clusters: int
    """Clusters of these trials, a count."""
    se: float | None = None
    """Jackknife standard error, a share; null where all clusters agree."""
    is_exact: bool = True
    """Whether its interval is Korn and Graubard's, as of few events; else Student's
    t."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The inputs from which follows what a figure could still be, at any level.

    :func:`spark_audit.stats.at_most.at_most` computes it once the tests of the whole
    report are counted.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = RECORD_CONFIG

    test: Literal["t", "exposure", "hits", "rates"]
    """`t`: Student's t. `exposure`: the mean exposure of canaries against chance.
    `hits`: an exact binomial count. `rates`: sums and differences of rates."""
    value: float
    """The figure, in the unit of the finding."""
    direction: Literal[1, -1] = 1
    """Where a leak lies: 1 above the null, -1 below it."""
    no_effect: float = 0.0
    """The figure without a leak, in the unit of the finding."""
    se: float | None = None
    """Standard error of the figure, in the unit of the finding."""
    df: float | None = None
    """Degrees of freedom, a count; null: a normal test."""
    tolerance: float = 0.0
    """By how much the figure may be off without a leak, in the unit of the finding."""
    worst_value: float | None = None
    """The figure where the leak is largest, in the unit of the finding: below
    `no_effect` if `direction` is -1; null: no limit."""
    n: int = 0
    """Canaries, or trials of a count."""
    size: int = 0
    """Candidates that a canary ranks among."""
    rates: list[RateSide] = field(default_factory=list)
    """The rates whose sum or difference the figure is."""
    n_tests: float = 1.0
    """Tests within the audit that p is corrected over; may be a fraction."""
    group: str = ""
    """Group of the row that it is of; empty: that of the finding."""
    at_most: float | None = None
    """What could still be there, in the unit of the finding, at the level of this
    report."""

    def __post_init__(self) -> None:
        if min(self.n, self.size) < 0:
            raise ValueError("n and size are counts: 0 or more")
        if self.direction == -1 and self.test != "t":
            raise ValueError(f"a leak of {self.test} lies above the null: direction 1")
        _check_number_of_tests(self.n_tests)


# The fields that each kind of test reads. All read n_tests; every Bound is limited by
# direction, no_effect and worst_value.
#
# test       fields of Power                           fields of Bound
# ---------  ----------------------------------------  ------------------------
# t          se, df, tolerance, largest_effect,        value, se, df, tolerance
#            least_p
# sign-flip  se, df, n (clusters), tolerance,          none
#            largest_effect, least_p
# exposure   n (canaries), size (candidates), least_p  value, n, size
# hits       n (trials), ps, tolerance,                value, n (trials),
#            largest_effect, least_p                   worst_value
# rates      none                                      rates, worst_value


def _check_number_of_tests(n_tests: float) -> None:
    """Refuse a number of tests that p cannot be corrected over."""
    if not n_tests > 0:
        raise ValueError("n_tests is a number of tests: above 0")
