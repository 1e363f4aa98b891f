"""Effects as cells and lines of figures show them: short, and on one scale each.

A sentence spells an effect out (:func:`spark_audit.sentences.renderer.effect`); here
it must be compared with others at a glance.
"""

from __future__ import annotations

import math

from spark_audit.sentences.renderer import (
    MAX_RATIO,
    RATIO_OF_PERCENT,
    effect,
    number,
    render,
    unit_name,
)

PER_100 = {"AUC": 100.0, "points": 1.0}
"""Unit -> factor that turns a value of it into a number out of 100."""

MIN_SHOWN_SIZE = 0.05
"""An effect of at least this size that rounds to 0 is shown with one decimal."""


DIGITS_OF_NUMBER = 3
"""Decimals of an effect in a unit of its own."""

ERROR_OF_PRODUCT = 1e-6
"""A number above a whole one by less was a whole number before it was multiplied."""

DIGITS_OF_COUNT = 1
"""Decimals of a limit on a count, as of clusters that may have moved."""


def signed_effect(size: float, unit: str) -> str:
    """Return an effect on the scale of its attack, without its unit.

    Parameters
    ----------
    size
        How far the figure is from no effect; above 0 is more of a leak.
    unit
        ``nats``: per cent or times as likely per token. ``bits``: times as far ahead.
        ``AUC`` and ``points``: more of 100. ``clusters``: how many of them. Any other:
        the number with its unit.

    Examples
    --------
    >>> signed_effect(0.1125, "nats"), signed_effect(1.95, "nats")
    ('+12%', '×7.0')
    >>> signed_effect(0.5567, "bits"), signed_effect(0.27, "AUC")
    ('×1.5', '+27')
    """
    if unit == "nats":
        # The exponential of a large size overflows, so the size is cut just above the
        # largest ratio that is shown.
        ratio = math.exp(min(size, math.log(MAX_RATIO) + 1))
        if ratio >= RATIO_OF_PERCENT:
            return _times(ratio)
        return f"{_signed(100 * (ratio - 1))}%"

    if unit == "bits":
        return _times(2.0 ** min(size, math.log2(MAX_RATIO) + 1))
    if unit in PER_100:
        return _signed(PER_100[unit] * size)

    # A count with three decimals looks like two numbers.
    digits = DIGITS_OF_COUNT if unit == "clusters" else DIGITS_OF_NUMBER
    return f"{number(size, digits)} {unit_name(unit)}".strip()


def rounded_up_as_shown(size: float, unit: str) -> float:
    """Return a limit on an effect, rounded up to what :func:`signed_effect` can show.

    Rounded to the nearest, "at most" would exclude leaks that the data allow.

    Parameters
    ----------
    size
        At least 0, in the unit.

    Examples
    --------
    >>> signed_effect(rounded_up_as_shown(0.09, "nats"), "nats")
    '+10%'
    >>> signed_effect(rounded_up_as_shown(0.17, "AUC"), "AUC")
    '+17'
    """
    if unit == "nats":
        ratio = math.exp(min(size, math.log(MAX_RATIO) + 1))
        if ratio >= RATIO_OF_PERCENT:
            return math.log(_times_up(ratio))
        return math.log1p(_up(100 * (ratio - 1)) / 100)

    if unit == "bits":
        return math.log2(_times_up(2.0 ** min(size, math.log2(MAX_RATIO) + 1)))
    if unit in PER_100:
        return _up(PER_100[unit] * size) / PER_100[unit]

    digits = DIGITS_OF_COUNT if unit == "clusters" else DIGITS_OF_NUMBER
    scale = 10.0**digits
    return _up(size * scale) / scale


def is_on_scale(unit: str) -> bool:
    """Return whether effects in a unit are on the scale of their attack.

    Other ones are written with their unit, so that no scale belongs behind them.

    Examples
    --------
    >>> is_on_scale("points"), is_on_scale("similarity")
    (True, False)
    """
    return unit in ("nats", "bits", *PER_100)


def effect_in_words(size: float, unit: str) -> str:
    """Return an effect as a short sentence has it, such as ``28 more of 100 pairs``.

    Parameters
    ----------
    size
        At least 0.

    Examples
    --------
    >>> effect_in_words(0.28, "AUC"), effect_in_words(60.0, "points")
    ('28 more of 100 pairs', '60 more of 100 identifiers')
    """
    if unit in PER_100:
        return render(f"word.{unit}", size=number(PER_100[unit] * size, 0))
    return effect(size, unit, brief=True)


def _times(ratio: float) -> str:
    """Return a ratio as ``×7.0``, with two digits."""
    if ratio > MAX_RATIO:
        return f"> ×{MAX_RATIO:g}"
    return f"×{number(ratio, _digits_of_ratio(ratio))}"


def _digits_of_ratio(ratio: float) -> int:
    """Return the decimals that a ratio is shown with."""
    return 1 if ratio < 10 else 0


def _times_up(ratio: float) -> float:
    """Return a ratio, rounded up to the decimals that it is shown with."""
    scale = 10.0 ** _digits_of_ratio(ratio)
    return _up(ratio * scale) / scale


def _up(value: float) -> float:
    """Return the next whole number; the error of a product does not count."""
    return math.ceil(value - ERROR_OF_PRODUCT)


def _signed(value: float) -> str:
    """Return a whole number with its sign; what is not 0 is never shown as 0."""
    rounded = round(value)
    text = f"{rounded:+d}"
    if rounded == 0:
        text = f"{value:+.1f}" if abs(value) >= MIN_SHOWN_SIZE else "0"
    return text.replace("-", "\N{MINUS SIGN}")
