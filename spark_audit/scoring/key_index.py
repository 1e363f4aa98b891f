"""Find which parts of a score store hold which scores, by one binary search.

A store has one index over all of its parts. It is in memory only: a store reads its
parts' keys when it first sees them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def key_numbers(store_keys: Sequence[str]) -> np.ndarray:
    """Return the first 64 bits of each store key: shape ``(keys,)``, uint64.

    Raises
    ------
    ValueError
        If a key does not begin with hexadecimal digits.
    """
    numbers = (int(key[:16], 16) for key in store_keys)
    return np.fromiter(numbers, np.uint64, count=len(store_keys))


class KeyIndex:
    """The keys of all parts of a store, in rising order.

    Parts are numbered from 0, in the order in which they are added. A key may be in
    several parts, if two workers scored the same item.
    """

    def __init__(self) -> None:
        self._numbers = np.zeros(0, np.uint64)  # (keys,), rising
        self._parts = np.zeros(0, np.int32)  # (keys,): number of the part
        self._n_parts = 0

        # Parts that were added since the last search: their keys, and their numbers.
        self._added_numbers: list[np.ndarray] = []
        self._added_parts: list[np.ndarray] = []

    def add_part(self, numbers: np.ndarray) -> None:
        """Add the next part.

        Parameters
        ----------
        numbers
            The key numbers of its items, shape ``(items,)``, in any order.
        """
        self._added_numbers.append(numbers)
        self._added_parts.append(np.full(len(numbers), self._n_parts, np.int32))
        self._n_parts += 1

    def holds(self, numbers: np.ndarray) -> np.ndarray:
        """Return whether any part holds each key: shape ``(keys,)``, bool.

        Parameters
        ----------
        numbers
            Key numbers, shape ``(keys,)``.
        """
        start, end = self._rows_of(numbers)
        return end > start

    def parts_with(self, numbers: np.ndarray) -> list[int]:
        """Return the numbers of the parts that hold any of the keys, in rising order.

        Parameters
        ----------
        numbers
            Key numbers, shape ``(keys,)``.
        """
        start, end = self._rows_of(numbers)

        # Take the first row of each key, then the second of those that have one, ...
        found: set[int] = set()
        row = start
        while len(row):
            is_of_key = row < end
            row = row[is_of_key]
            end = end[is_of_key]
            found.update(np.unique(self._parts[row]).tolist())
            row = row + 1
        return sorted(found)

    def _rows_of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of each key, and the one behind its last: ``(keys,)``.

        Both are the same of a key that no part holds.
        """
        self._sort()
        start = self._numbers.searchsorted(numbers, "left")
        end = self._numbers.searchsorted(numbers, "right")
        return start, end

    def _sort(self) -> None:
        """Put the keys of the parts that were added in order among the others."""
        if not self._added_numbers:
            return

        numbers = np.concatenate([self._numbers, *self._added_numbers])
        parts = np.concatenate([self._parts, *self._added_parts])
        # This method of sorting is fast where most is in order already.
        order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[order]
        self._parts = parts[order]
        self._added_numbers = []
        self._added_parts = []
