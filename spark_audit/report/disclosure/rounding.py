"""Rounding of shared figures by the number of their clusters.

Two figures can differ by the contribution of a few rows: one is of a whole and the
other of a part, or they are from reports before and after the removal of a row.
Rounding leaves this contribution uncertain by that of an average cluster, in either
direction.

A cluster is a group of rows that share a source or a person. A row's figures are
rounded to the step of :func:`step_of`; a further unit has a branch there.
"""

from __future__ import annotations

import math

from spark_audit.audits import about
from spark_audit.audits.claims import ALPHA
from spark_audit.results import Row

MIN_STEP_TIMES_CLUSTERS = 1.0
"""Nats, bits or a whole share: the least rounding step, times clusters."""

STEP_OF_LOG_TRIES = 0.5
"""Rounding step of the logarithm (base 10) of a number of tries."""

INTERVAL_IN_STANDARD_ERRORS = 4
"""Width of an interval at 95%, in standard errors."""

ROUNDING_ERROR = 1e-6
"""A figure below this is zero up to rounding errors."""

DIGITS = 6
"""Most digits of any number in a shared file."""


def step_of(row: Row) -> float | None:
    """Return the rounding step of a row's figures; None: they need none.

    The step is the larger of two contributions of one cluster:

    - That of an average cluster: 1 nat, 1 bit or a whole share over the clusters
      (``MIN_STEP_TIMES_CLUSTERS``); in other units the figure itself over the clusters.
      Among ranks, few may be as large as all others together: for them it is the figure
      over the root of the clusters.
    - That of a cluster which is one standard deviation from the mean, as the interval
      tells it: ``se / sqrt(clusters)``. Of a share, n clusters of equal weight have a
      standard error of at most ``0.5 / sqrt(n)``, so that one weighs at most
      ``4 se^2``.

    If each row or span is in or out (all but tokens), a count would follow from one
    step, so the audit asks for two (``disclosure_step``).
    """
    if row.unit == "log10 tries":
        return STEP_OF_LOG_TRIES
    if about(row.audit).is_of_nobody(row.unit):
        return None

    n_clusters = max(row.clusters, 1)
    standard_error = 0.0
    if row.low is not None and row.high is not None:
        standard_error = (row.high - row.low) / INTERVAL_IN_STANDARD_ERRORS

    total = abs(row.value or 0.0)
    if row.unit in ("nats", "bits", ""):
        total = MIN_STEP_TIMES_CLUSTERS
    of_average_cluster = total / n_clusters

    if row.unit == "":
        of_average_cluster *= about(row.audit).disclosure_step
        of_deviating_cluster = 4 * standard_error**2
    elif row.unit == "ranks":
        of_average_cluster *= math.sqrt(n_clusters)
        of_deviating_cluster = standard_error / math.sqrt(n_clusters)
    else:
        of_deviating_cluster = standard_error / math.sqrt(n_clusters)

    step = max(of_average_cluster, of_deviating_cluster)
    return step_above(step) if step > 0 else None


def count_of(n: int, n_clusters: int) -> int:
    """Return a count of tokens or spans, rounded to the size of an average cluster."""
    # One token per cluster needs no rounding.
    if n > n_clusters > 0:
        return int(rounded(n, step_above(n / n_clusters)))
    return n


def step_above(least: float) -> float:
    """Return the first of 1, 1.5, 2, 3, 5, 10, 15 ... that is not below ``least``."""
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
    """
    n_steps: float = round(value / step)
    if n_steps == 0 and abs(value) > ROUNDING_ERROR:
        n_steps = math.copysign(0.5, value)

    # Adding zero turns -0.0 into 0.0.
    return float(f"{n_steps * step:.12g}") + 0.0


def rounded_up(effect: float, step: float) -> float:
    """Return a smallest effect as the next larger multiple of a step."""
    return float(f"{math.ceil(effect / step - ROUNDING_ERROR) * step:.12g}")


def with_digits(value: float, digits: int = DIGITS) -> float:
    """Return a number rounded to significant digits."""
    return float(f"{value:.{digits}g}")


def is_p(column: str) -> bool:
    """Return whether a column holds p: ``p``, ``p_adjusted``, ``step_p_adjusted``."""
    return "p" in column.split("_")


def rounded_p(p: float) -> float:
    """Return a p with one digit, on its side of the level of 0.05.

    A p is as good as the figures that it follows from. Of a hundred scores, two digits
    left 1% of the guesses of the last score open; one digit leaves 10%, as the rounding
    of a mean does.

    >>> [rounded_p(p) for p in (0.0137, 0.0496, 0.0504, 0.76, 1.0, 3.2e-05)]
    [0.01, 0.04, 0.06, 0.8, 1.0, 3e-05]
    """
    # Only a p of exactly 0.05 is shown as 0.05.
    near = with_digits(p, 1)
    if near != ALPHA or p == ALPHA:
        return near
    return 0.04 if p < ALPHA else 0.06


def count_step(n: int, n_clusters: int) -> float:
    """Return the step of a count out of ``n``: twice the size of an average cluster."""
    return max(step_above(2 * n / max(n_clusters, 1)), 2.0)


def decade(tries: float) -> float:
    """Return a number of tries to a power of ten.

    The number follows from the NLL of a span: a power of ten is 2.3 nats.
    """
    if tries <= 0:
        return tries
    return 10.0 ** round(math.log10(tries))
