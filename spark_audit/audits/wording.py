"""Figures in the sentences of findings and guards: only here are they formatted.

Values and limits are rounded to ``digits`` decimals as :func:`number` does it; a share
is written in per cent or, as a difference of two, in percentage points.
"""

from __future__ import annotations

from typing import Protocol

from spark_audit.results import Contrast, Finding, number

SHARE_DIGITS = 1
"""Decimals of per cent and of percentage points."""
NO_SPREAD = "no spread"


class Interval(Protocol):
    """What has a value with limits: a row, a contrast, an estimate."""

    @property
    def value(self) -> float | None: ...  # noqa: D102

    @property
    def low(self) -> float | None: ...  # noqa: D102

    @property
    def high(self) -> float | None: ...  # noqa: D102


def limits(
    low: float | None, high: float | None, *, digits: int = 3, scale: float = 1
) -> str:
    """``" [low, high]"``; empty without an interval."""
    if low is None or high is None:
        return ""
    return f" [{number(scale * low, digits)}, {number(scale * high, digits)}]"


def figure(
    row: Interval, *, digits: int = 3, sign: int = 1, scale: float = 1, unit: str = ""
) -> str:
    """``value [low, high]``; the unit stands behind the value.

    Parameters
    ----------
    sign
        -1 turns the figure round: the value and both limits.
    """
    if row.value is None:
        return "-"
    low, high = (row.low, row.high) if sign > 0 else (row.high, row.low)
    value = number(sign * scale * row.value, digits)
    return f"{value}{unit}{limits(low, high, digits=digits, scale=sign * scale)}"


def points(row: Interval) -> str:
    """A difference of shares: ``value [low, high]`` in percentage points."""
    return figure(row, digits=SHARE_DIGITS, scale=100)


def percent(row: Interval) -> str:
    """A share: ``value% [low, high]``."""
    return figure(row, digits=SHARE_DIGITS, scale=100, unit="%")


def share(value: float | None) -> str:
    """A share in per cent, without its sign."""
    return number(None if value is None else 100 * value, SHARE_DIGITS)


def unseen(
    mde: float | None,
    what: str = "changes",
    *,
    unit: str = "",
    digits: int = 3,
    before: str = "; ",
    after: str = "",
) -> str:
    """``changes below 0.012 nats go unseen``; empty where no smallest effect is known.

    ``before`` and ``after`` stand round it. With the unit ``points`` the effect is a
    difference of shares.
    """
    if mde is None:
        return ""
    below = share(mde) if unit == "points" else number(mde, digits)
    words = (what, "below", below, unit, "go unseen")
    return f"{before}{' '.join(filter(None, words))}{after}"


DECIMALS = {"bits": 2, "points": SHARE_DIGITS, "ranks": 1, "clusters": 1}
"""Decimals of a unit, where they are not three."""


def detectable(mde: float | None, unit: str, why: str) -> str:
    """A sentence on the smallest effect; ``why`` none is detected, if none is."""
    if mde is None:
        return f"Whatever its size, an effect cannot be detected {why}."
    effect = f"{number(mde, DECIMALS.get(unit, 3))} {unit}".strip()
    return f"An effect of {effect} or more would have been detected (80% power)."


def of_rows(dose: str) -> str:
    """How many rows a group of doses is of: ``16+`` is "16 or more"."""
    return dose.replace("+", " or more").replace("-", " to ")


def p_value(p: float, *, places: int | None = None, least: float = 0.0) -> str:
    """``p 0.012``: two significant digits, or so many decimals.

    What is below ``least`` is only said to be so.
    """
    if p < least:
        return f"p < {least:g}"
    return f"p {p:.2g}" if places is None else f"p {p:.{places}f}"


def adjusted_p(p: float, over: int) -> str:
    """A p value that was adjusted over several tests."""
    return f"{p_value(p)} adjusted over {over} {'test' if over == 1 else 'tests'}"


def confidence(significance: float) -> str:
    """The confidence level, in per cent, that a significance level leaves."""
    return f"{100 * (1 - significance):.5g}%"


def reason(note: str) -> str:
    """Why something cannot be estimated; a row without a note has no spread."""
    return note or NO_SPREAD


def change_finding(
    row: Contrast, head: str, change: str, *, changed: bool, tail: str
) -> Finding:
    """That a figure rose or fell, or that no change was detected: ``tail`` says how."""
    if not changed:
        said = f"{head}: no change detected, {change}{tail}."
        return Finding.on(row, "nothing_shown", said)
    way = "ROSE" if (row.value or 0.0) > 0 else "fell"
    return Finding.on(row, "moved", f"{head} {way}: {change}.")
