"""How finely a figure may be shown: as the number of its clusters allows.

What two figures differ by, of a whole and its part or of reports before and after a row
was removed, is the contribution of few rows. It stays open by what an average cluster
contributes, to each side.
"""

from __future__ import annotations

import math

from spark_audit.audits import about
from spark_audit.audits.claims import ALPHA
from spark_audit.results import Row

MIN_STEP_TIMES_CLUSTERS = 1.0
"""Nats, bits or a whole share: the least rounding step, times clusters."""

ROUNDING_ERROR = 1e-6
"""Below this a figure is rounding error."""

DIGITS = 6
"""The most digits that a number has in a shared file, whatever it is of."""


def step_of(row: Row) -> float | None:
    """Return the rounding step of a row's figures; None where nothing asks for one.

    It is at least what ``MIN_STEP_TIMES_CLUSTERS`` asks for, in other units the figure
    itself over the clusters, and at least what a cluster of one standard deviation, as
    the interval tells it, adds. Of a share, n clusters of equal weight have a standard
    error ``se`` of 0.5 / sqrt(n) at the most, so that one weighs 4 se^2 or less; where
    each row or span is in or out (all but tokens), a count would follow from one step:
    two are taken. Of ranks few may be as large as all others together.
    """
    if row.unit == "log10 tries":
        return 0.5
    if about(row.audit).is_of_nobody(row.unit):
        return None
    clusters = max(row.clusters, 1)
    se = 0.0 if row.low is None or row.high is None else (row.high - row.low) / 4
    least = (
        MIN_STEP_TIMES_CLUSTERS
        if row.unit in ("nats", "bits", "")
        else abs(row.value or 0.0)
    )
    least /= clusters
    if row.unit == "":
        step = max(least * about(row.audit).disclosure_step, 4 * se**2)
    else:
        least *= math.sqrt(clusters) if row.unit == "ranks" else 1
        step = max(least, se / math.sqrt(clusters))
    return step_above(step) if step > 0 else None


def count_of(n: int, clusters: int) -> int:
    """Return a count of tokens or spans, rounded to what an average cluster has."""
    return int(rounded(n, step_above(n / clusters))) if n > clusters > 0 else n


def step_above(least: float) -> float:
    """Return the first of 1, 1.5, 2, 3, 5, 10, 15 ... that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    steps = (k * power for k in (1, 1.5, 2, 3, 5, 10))
    return next(step for step in steps if step >= least * (1 - 1e-9))


def rounded(value: float, step: float) -> float:
    """Return the nearest multiple of a step; half a step for what would else be zero.

    So no leak is shown as none, and every limit stays on its side of zero.
    """
    steps: float = round(value / step)
    if steps == 0 and abs(value) > ROUNDING_ERROR:
        steps = math.copysign(0.5, value)
    return float(f"{steps * step:.12g}") + 0.0


def with_digits(value: float, digits: int = DIGITS) -> float:
    """Return a number with so many significant digits."""
    return float(f"{value:.{digits}g}")


def rounded_p(p: float) -> float:
    """Return a p with one digit, on its side of the level of 0.05.

    A p is as good as the figures that it follows from: of a hundred scores, two digits
    left 1% of the guesses of the last one open, one digit leaves 10%, as the rounding
    of a mean does.

    >>> [rounded_p(p) for p in (0.0137, 0.0496, 0.0504, 0.76, 1.0, 3.2e-05)]
    [0.01, 0.04, 0.06, 0.8, 1.0, 3e-05]
    """
    near = with_digits(p, 1)
    if near == ALPHA and p != ALPHA:
        return 0.04 if p < ALPHA else 0.06
    return near


def is_p(column: str) -> bool:
    """Return whether a column holds p: ``p``, ``p_adjusted``, ``step_p_adjusted``."""
    return "p" in column.split("_")


def rounded_up(effect: float, step: float) -> float:
    """Return the next multiple of a step: no smaller effect was detectable."""
    return float(f"{math.ceil(effect / step - ROUNDING_ERROR) * step:.12g}")


def count_step(n: int, clusters: int) -> float:
    """Return the step of a count of some of ``n``: twice an average cluster."""
    return max(step_above(2 * n / max(clusters, 1)), 2.0)


def decade(tries: float) -> float:
    """Return a number of tries to a decade: they are a span's NLL, 2.3 nats each."""
    return 10.0 ** round(math.log10(tries)) if tries > 0 else tries
