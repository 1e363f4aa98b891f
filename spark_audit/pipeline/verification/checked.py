"""What a check of a report yields, and when two figures are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np

CLOSE = 1e-9
"""Relative difference up to which figures of two machines are the same."""

NOT_NAMED = "lies in the folder, and the report does not name it"

Checked = tuple[str, str]
"""What was verified, and what is wrong with it; empty where nothing is."""


def does_not_follow(parts: Sequence[str]) -> str:
    """Return which parts do not follow, in words; empty where all do."""
    return f"does not follow from its evidence: {', '.join(parts)}" if parts else ""


def is_same(one: object, other: object) -> bool:
    """Whether two parts of reports are the same, numbers to :data:`CLOSE`."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            is_same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if _is_number(one) and _is_number(other):
        return bool(np.isclose(one, other, rtol=CLOSE, atol=CLOSE))
    return bool(one == other)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
