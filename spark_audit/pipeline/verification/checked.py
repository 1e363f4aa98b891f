"""The outcome of one check of a report, and what counts as the same figure.

A further check is a function ``..._checks`` that yields :data:`Checked`, called by
``verify.py``. What no check can show is a line of ``trust.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np

CLOSE = 1e-9
"""Difference, relative and absolute, up to which two figures count as the same.

Two machines may compute them in another order.
"""

NOT_NAMED = "lies in the folder, and the report does not name it"

Checked = tuple[str, str]
"""Name of what was checked, and its problem; empty: it is as it must be.

Functions named ``..._checks`` yield these, and ``verify`` prints them.
"""


def difference_message(differing: Sequence[str]) -> str:
    """Return the problem of a report whose named parts differ from its evidence.

    Empty where no part differs.
    """
    if not differing:
        return ""
    return f"does not follow from its evidence: {', '.join(differing)}"


def is_same(first: object, second: object) -> bool:
    """Return whether two parts of reports are equal, numbers up to :data:`CLOSE`."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() != second.keys():
            return False
        return all(is_same(value, second[key]) for key, value in first.items())

    # A report from a file has lists where one in memory has tuples.
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        if len(first) != len(second):
            return False
        return all(is_same(a, b) for a, b in zip(first, second, strict=True))

    if _is_number(first) and _is_number(second):
        return bool(np.isclose(first, second, rtol=CLOSE, atol=CLOSE))
    return bool(first == second)


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number: an int or a float, but no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)
