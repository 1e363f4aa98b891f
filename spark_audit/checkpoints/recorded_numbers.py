"""Numbers in the records of training runs, which may be anybody's.

What is no such number counts as missing: a report says less then, and no sum overflows.
"""

from __future__ import annotations

from typing import TypeGuard

LARGEST_NUMBER = 1e9
"""Larger losses, seconds and counts are none that a run can have."""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of a record is a number of a possible size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # A NaN fails the comparison, too.
    return abs(value) <= LARGEST_NUMBER


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value of a record is a whole number, 0 or more."""
    return is_number(value) and isinstance(value, int) and value >= 0
