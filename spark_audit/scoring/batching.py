"""Make batches of items of similar length, and halve them when memory runs out.

The limits of a device are :data:`CPU` and :data:`GPU`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch

from spark_audit.errors import IncompleteError, out_of_memory

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Room:
    """Limits of a batch on a device, and its fixed cost.

    Attributes
    ----------
    max_tokens
        Most padded tokens of a batch; a longer item is a batch of its own.
    overhead
        Cost of a batch besides its padded tokens, as the number of tokens that would
        take as long.
    max_length_ratio
        Largest ratio of the longest to the shortest item of a batch.
    """

    max_tokens: int
    overhead: int
    max_length_ratio: float


CPU = Room(max_tokens=1024, overhead=40, max_length_ratio=1.5)
"""Limits on a CPU: enough rows for fast matrix products, and few enough to keep
activations near the cache. A product of 128 rows has three quarters of the speed of one
of 1,024, because it reads the weights as often."""

GPU = Room(max_tokens=16_384, overhead=2048, max_length_ratio=4.0)
"""Limits on a GPU: the launches of a batch take longer than its arithmetic until it is
large."""


class Batches(Generic[T]):
    """Items, longest first, in batches that fit into memory.

    Parameters
    ----------
    items
        Items to batch.
    length
        Returns the tokens of an item.
    room
        Limits and fixed cost of a batch.
    rows
        Most items of a batch; ``None``: only the room limits them.

    Attributes
    ----------
    room
        As given, with fewer tokens after memory ran out.
    """

    def __init__(
        self,
        items: Sequence[T],
        length: Callable[[T], int],
        *,
        room: Room,
        rows: int | None = None,
    ) -> None:
        lengths = np.array([length(item) for item in items], dtype=np.int64)

        # A stable sort keeps the order of equal lengths, so that batches are
        # repeatable.
        self._order = np.argsort(-lengths, kind="stable")  # (items,)
        # An empty item counts one token, which limits the size of a batch of such
        # items.
        self._lengths = np.maximum(lengths[self._order], 1)  # (items,), falling
        self._items = items
        self._rows = rows
        self.room = room

    def sizes(self, start: int = 0) -> list[int]:
        """Return the number of items in each batch, from the item ``start`` on.

        The result is the cheapest division of the sorted items, where a batch costs its
        padded tokens plus its overhead. Dynamic programming finds it from the back: it
        tries every size of the first batch, with the best division of all later items
        known.
        """
        lengths = self._lengths[start:]  # (n,), falling
        n = len(lengths)
        # [i]: the cost of the best division of the items from i on, and the size of its
        # first batch.
        least_cost = np.zeros(n + 1, dtype=np.int64)
        first_size = np.zeros(n, dtype=np.int64)

        # Lengths fall, so the items that may share a batch with an item end here.
        too_short_from = np.searchsorted(
            -lengths, -lengths / self.room.max_length_ratio, side="right"
        )  # (n,)

        for i in range(n - 1, -1, -1):
            longest = int(lengths[i])
            max_rows = max(self.room.max_tokens // longest, 1)
            if self._rows is not None:
                max_rows = min(max_rows, self._rows)
            # A batch has at least one item, however long it is.
            stop = max(min(i + max_rows, int(too_short_from[i])), i + 1)

            # [k]: cost of a first batch of k + 1 items and the best division of the
            # rest.
            padded_tokens = np.arange(1, stop - i + 1) * longest
            costs = padded_tokens + least_cost[i + 1 : stop + 1]  # (stop - i,)

            # Of equal costs the largest batch wins; argmin takes the first, so look
            # from behind.
            cheapest = len(costs) - 1 - int(costs[::-1].argmin())
            least_cost[i] = costs[cheapest] + self.room.overhead
            first_size[i] = cheapest + 1

        # From the front: each batch begins where the one before ends.
        sizes: list[int] = []
        i = 0
        while i < n:
            sizes.append(int(first_size[i]))
            i += sizes[-1]
        return sizes

    def run(
        self, call: Callable[[list[T]], R], *, shrink: Callable[[], bool]
    ) -> Iterator[tuple[list[T], R]]:
        """Call a function on every batch; yield each batch with the result.

        Batches are halved when memory runs out.

        Parameters
        ----------
        call
            Works on one batch.
        shrink
            Called when a single item does not fit. It reduces the working memory of
            ``call``, and returns whether it could.

        Raises
        ------
        IncompleteError
            If a single item does not fit into memory.
        """
        start = 0
        sizes = self.sizes()

        while sizes:
            indices = self._order[start : start + sizes[0]]
            batch = [self._items[index] for index in indices.tolist()]
            try:
                result = call(batch)
            except Exception as error:
                if not out_of_memory(error):
                    raise
            else:
                yield batch, result
                start += sizes.pop(0)
                continue

            # Outside of the except clause, because the error's frames hold the tensors.
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

            # The same items are tried again, because `start` has not moved.
            if len(batch) > 1:
                tokens = (len(batch) // 2) * int(self._lengths[start])
                self.room = replace(self.room, max_tokens=tokens)
                sizes = self.sizes(start)
            elif not shrink():
                raise IncompleteError(
                    f"out of memory on one text of {self._lengths[start]} tokens",
                    fix="use a smaller dtype, another device or shorter texts",
                )


def room(device: torch.device) -> Room:
    """Return the limits and the fixed cost of a batch on a device."""
    return CPU if device.type == "cpu" else GPU
