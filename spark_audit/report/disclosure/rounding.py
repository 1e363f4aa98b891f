"""Rounding of shared figures, so that no two of them give away a single row.

Anybody can subtract two figures of shared reports: that of all rows and that of a part,
or the same figure before and after the removal of a row. The exact difference would be
the contribution of the few rows that only one of the two counts.

Shared figures are therefore multiples of a step that is at least the contribution of an
average cluster (a cluster is a group of rows that share a source or a person). A
rounded figure is up to half a step off, and a difference of two up to a whole step, in
either direction: the contribution of an average cluster stays uncertain by its own
size. That of a heavier cluster is hidden as far as the interval of the figure tells
about it.

:func:`step_of` has the steps of rows, and a new unit gets its line there. Counts
(:func:`rounded_count`, :func:`step_of_hits`), p (:func:`rounded_p`) and numbers of
tries (:func:`to_power_of_ten`) have their own rules. Figures of fewer clusters than
``MIN_CLUSTERS_TO_PUBLISH`` are not rounded but withheld (``withholding.py``).
"""

from __future__ import annotations

import math

from spark_audit.audits import about
from spark_audit.audits.claims import ALPHA
from spark_audit.results import Row

MIN_STEP_TIMES_CLUSTERS = 1.0
"""Least rounding step times clusters: 1 nat, 1 bit, or a share of 1.

A mean over n clusters is thus rounded to 1/n or more.
"""

STEP_OF_LOG_TRIES = 0.5
"""Rounding step of the logarithm (base 10) of a number of tries."""

INTERVAL_IN_STANDARD_ERRORS = 4
"""Width of an interval at 95%, in standard errors (2 x 1.96, rounded)."""

LARGEST_SD_OF_SHARE = 0.5
"""Largest standard deviation of a value from 0 to 1: half of the values at each end."""

ROUNDING_ERROR = 1e-6
"""A smaller distance, from zero or from a whole number of steps, counts as none."""

DIGITS = 6
"""Most significant digits of any number in a shared file."""


def step_of(row: Row) -> float | None:
    """Return the rounding step of a row's figures; None: they need none.

    The step is the larger of two contributions of a cluster, rounded up by
    :func:`step_above`. ``n`` is the number of clusters as :func:`rounding_clusters`
    counts them, and ``se`` the standard error that the interval implies (0 without an
    interval).

    ==============  =======================  ========================
    Unit            Of an average cluster    Of a cluster far from it
    ==============  =======================  ========================
    "" (a share)    disclosure_step / n      4 se^2
    nats, bits      1 / n                    se / sqrt(n)
    ranks           abs(value) / sqrt(n)     se / sqrt(n)
    any other       abs(value) / n           se / sqrt(n)
    ==============  =======================  ========================

    The logarithm of tries has a fixed step, ``STEP_OF_LOG_TRIES``. Figures that concern
    no person (ranks of planted strings, counts of right answers) have none. A metric
    may ask for a larger step (``Metric.least_step``).

    Notes
    -----
    - ``disclosure_step`` is 2 for audits that count each row or span as a hit or not:
      one step would be one hit, and the exact count would follow from the share. It is
      1 for audits that count tokens.
    - ``se / sqrt(n)``: clusters with the standard deviation ``s`` give a mean with
      ``se = s / sqrt(n)``. A cluster that is ``s`` away from the mean moves it by
      ``s / n``, which is ``se / sqrt(n)``.
    - ``4 se^2``: the variance of a share is the sum of ``weight^2 * variance`` over
      its clusters, and no variance exceeds ``0.5^2``. So ``4 se^2`` is at most the sum
      of the squared weights, and that is at most the largest weight. It exceeds ``1/n``
      only if the clusters are unequal; some cluster then weighs at least ``4 se^2``. (A
      difference of two shares varies more, so that its step is larger.)
    - A few ranks may be as large as all others together. The contribution of an average
      cluster, ``abs(value) / n``, is too small for them, and is multiplied by
      ``sqrt(n)``.

    Examples
    --------
    A share of 0.37 over 40 clusters, with the interval from 0.22 to 0.52, has ``se =
    0.075``. The step is the larger of ``2 / 40`` and ``4 * 0.075^2``:

    >>> step = step_above(max(2 / 40, 4 * 0.075**2))
    >>> step, rounded(0.37, step)
    (0.05, 0.35)
    """
    if row.unit == "log10 tries":
        return STEP_OF_LOG_TRIES
    # `about` returns the class of an audit.
    audit = about(row.audit)
    if audit.is_of_nobody(row.unit) or audit.metric(row.metric).is_chosen:
        return None

    standard_error = 0.0
    if row.low is not None and row.high is not None:
        standard_error = (row.high - row.low) / INTERVAL_IN_STANDARD_ERRORS

    n_clusters = max(rounding_clusters(row), 1)
    if row.unit == "":  # a share
        of_far_cluster = (standard_error / LARGEST_SD_OF_SHARE) ** 2
    else:
        of_far_cluster = standard_error / math.sqrt(n_clusters)

    least_step = about(row.audit).metric(row.metric).least_step
    step = max(_of_average_cluster(row, n_clusters), of_far_cluster, least_step)
    return step_above(step) if step > 0 else None


def rounding_clusters(row: Row) -> int:
    """Return the number of clusters that a row's figure is rounded by.

    If two sides are compared by pairs, as by an AUC, a cluster of the smaller side
    moves the figure more than one of the larger side. They count as if both sides were
    as small as the smaller one:

    >>> place = {"audit": "mia", "checkpoint": "ours", "metric": "auc", "value": 0.6}
    >>> rounding_clusters(Row(**place, clusters=222, side_clusters=22))
    44
    """
    if not row.side_clusters:
        return row.clusters
    return min(row.clusters, 2 * row.side_clusters)


def _of_average_cluster(row: Row, n_clusters: int) -> float:
    """Return the contribution of an average cluster to a row's figure."""
    if row.unit == "":  # a share
        return MIN_STEP_TIMES_CLUSTERS / n_clusters * about(row.audit).disclosure_step
    if row.unit in ("nats", "bits"):
        return MIN_STEP_TIMES_CLUSTERS / n_clusters

    of_equal_clusters = abs(row.value or 0.0) / n_clusters
    if row.unit == "ranks":
        return of_equal_clusters * math.sqrt(n_clusters)
    return of_equal_clusters


def rounded_count(n: int, n_clusters: int) -> int:
    """Return a number of tokens or spans, rounded to the size of an average cluster.

    A count of at most one per cluster is returned as it is. So is one without
    clusters: it counts what concerns nobody, as the ranks of planted canaries.

    >>> rounded_count(1234, 40), rounded_count(40, 40), rounded_count(8, 0)
    (1250, 40, 8)
    """
    if n_clusters == 0 or n <= n_clusters:
        return n
    return int(rounded(n, step_above(n / n_clusters)))


def step_of_hits(n_tried: int, n_clusters: int) -> float:
    """Return the rounding step of a number of hits, out of the number tried.

    It is twice the size of an average cluster, and at least 2: with a step of one hit
    the count would be exact.

    >>> step_of_hits(100, 40), step_of_hits(40, 40)
    (5.0, 2.0)
    """
    return max(step_above(2 * n_tried / max(n_clusters, 1)), 2.0)


def step_above(least: float) -> float:
    """Return the first of 1, 1.5, 2, 3, 5, 10, 15 ... that is not below ``least``.

    Steps below 1 are the same numbers, divided by 10, 100 ...; ``least`` is above 0.

    >>> step_above(0.012), step_above(0.05), step_above(6)
    (0.015, 0.05, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(least))
    for leading_digits in (1, 1.5, 2, 3, 5):
        step = leading_digits * power
        # A step that is equal up to rounding errors is enough.
        if step >= least * (1 - 1e-9):
            return step
    return 10 * power


def rounded(value: float, step: float) -> float:
    """Return the nearest multiple of a step; half a step for what would else be zero.

    A leak is therefore never shown as none, and limits stay on their side of zero.

    >>> rounded(0.37, 0.05), rounded(-0.01, 0.05), rounded(0.0, 0.05)
    (0.35, -0.025, 0.0)
    """
    n_steps: float = round(value / step)
    if n_steps == 0 and abs(value) > ROUNDING_ERROR:
        n_steps = math.copysign(0.5, value)

    # 12 digits hide errors of the product; adding zero turns -0.0 into 0.0.
    return float(f"{n_steps * step:.12g}") + 0.0


def rounded_up(mde: float, step: float) -> float:
    """Round a smallest detectable effect up to a multiple of a step.

    Rounded down, it would promise to detect effects that the test misses. A bound from
    above is rounded alike, or it would exclude what it does not.

    >>> rounded_up(0.101, 0.05), rounded_up(0.1, 0.05)
    (0.15, 0.1)
    """
    return float(f"{math.ceil(mde / step - ROUNDING_ERROR) * step:.12g}")


def rounded_down(bound: float, step: float) -> float:
    """Round a bound from below down to a multiple of a step, which is a bound, too.

    >>> rounded_down(0.19, 0.05), rounded_down(0.2, 0.05)
    (0.15, 0.2)
    """
    return float(f"{math.floor(bound / step + ROUNDING_ERROR) * step:.12g}")


def rounded_away(limit: float, no_effect: float, step: float) -> float:
    """Round what could still be there away from no effect, to a multiple of a step.

    Rounded towards it, "at most" would exclude leaks that the data allow.

    >>> rounded_away(0.41, 0.0, 0.3), rounded_away(-0.061, 0.0, 0.05)
    (0.6, -0.1)
    """
    if limit < no_effect:
        return rounded_down(limit, step)
    return rounded_up(limit, step)


def with_digits(value: float, digits: int = DIGITS) -> float:
    """Return a number rounded to significant digits."""
    return float(f"{value:.{digits}g}")


def is_p(column: str) -> bool:
    """Return whether a column holds p: ``p``, ``p_adjusted``, ``step_p_adjusted``."""
    return "p" in column.split("_")


def rounded_p(p: float) -> float:
    """Return a p with one digit, on its side of the level of 0.05.

    A p follows from scores. Somebody who knows all of a hundred scores but one can
    compute p for each guess of the last one: with two digits of p, 1% of the guesses
    still fit; with one digit 10%, as many as fit a rounded mean.

    >>> [rounded_p(p) for p in (0.0137, 0.0496, 0.0504, 0.76, 1.0, 3.2e-05)]
    [0.01, 0.04, 0.06, 0.8, 1.0, 3e-05]
    """
    # Only a p of exactly 0.05 is shown as 0.05.
    one_digit = with_digits(p, 1)
    if one_digit != ALPHA or p == ALPHA:
        return one_digit
    return 0.04 if p < ALPHA else 0.06


def to_power_of_ten(tries: float) -> float:
    """Round a number of tries to a power of ten; 0 stays.

    The number follows from the NLL of a span, and a factor of ten is 2.3 nats.

    >>> to_power_of_ten(2500.0), to_power_of_ten(4000.0)
    (1000.0, 10000.0)
    """
    if tries <= 0:
        return tries
    return 10.0 ** round(math.log10(tries))
