"""Batches of items of like length under a token budget, halved when memory ends."""

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
    """Limits of a batch on a device, and what it costs beside its tokens.

    Attributes
    ----------
    tokens
        Padded tokens a batch, at most; a longer item stands alone.
    overhead
        What a batch costs beside its tokens, in tokens.
    ratio
        Longest over shortest item of one batch, at most.
    """

    tokens: int
    overhead: int
    ratio: float


CPU = Room(tokens=1024, overhead=40, ratio=1.5)
"""Enough rows for the matrix products to reach their peak, few enough for activations
to stay near the cache; a product of 128 rows runs at three quarters of the speed of
one of 1,024, whose weights are read as often."""

GPU = Room(tokens=16_384, overhead=2048, ratio=4.0)
"""The launches of a batch take longer than its arithmetic until it is large."""


class Batches(Generic[T]):
    """Items, longest first, in batches that a model can take.

    Parameters
    ----------
    items
        What to batch.
    length
        Tokens of one item.
    room
        What a batch may hold and costs.
    rows
        Items a batch, at most; ``None``: as the room allows.

    Attributes
    ----------
    room
        As given, less what exhausted memory took off.
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

        # Stable: equal lengths keep the caller's order, so batches repeat.
        self._order = np.argsort(-lengths, kind="stable")  # (items,)
        # An empty item costs one token, so that a batch of them ends somewhere.
        self._lengths = np.maximum(lengths[self._order], 1)  # (items,), falling
        self._items = items
        self._rows = rows
        self.room = room

    def sizes(self, start: int = 0) -> list[int]:
        """Return how many items each batch has, from the item ``start`` on.

        Of all ways to cut the sorted items into batches this is the cheapest, where a
        batch costs its padded tokens plus its overhead. A dynamic programme finds it
        from the back: with the best cut of all that follow known, try every length of
        the first batch.
        """
        lengths = self._lengths[start:]  # (n,), falling
        n = len(lengths)
        least_cost = np.zeros(n + 1, dtype=np.int64)  # [i]: of the items i to the end
        size = np.zeros(n, dtype=np.int64)  # [i]: of the first batch of that best cut

        # Sorted: those long enough to stand with an item follow it, up to here.
        too_short_from = np.searchsorted(
            -lengths, -lengths / self.room.ratio, side="right"
        )  # (n,)

        for i in range(n - 1, -1, -1):
            longest = int(lengths[i])
            most = max(self.room.tokens // longest, 1)
            if self._rows is not None:
                most = min(most, self._rows)
            # One item is always taken, however long it is.
            stop = max(min(i + most, int(too_short_from[i])), i + 1)

            # [k]: of a first batch of k + 1 items, and the best cut of the others.
            padded_tokens = np.arange(1, stop - i + 1) * longest
            costs = padded_tokens + least_cost[i + 1 : stop + 1]  # (stop - i,)

            # Of equal ones the largest batch: argmin takes the first, so look back.
            cheapest = len(costs) - 1 - int(costs[::-1].argmin())
            least_cost[i] = costs[cheapest] + self.room.overhead
            size[i] = cheapest + 1

        sizes: list[int] = []
        i = 0
        while i < n:
            sizes.append(int(size[i]))
            i += sizes[-1]
        return sizes

    def run(
        self, call: Callable[[list[T]], R], *, shrink: Callable[[], bool]
    ) -> Iterator[tuple[list[T], R]]:
        """Call on every batch; on exhausted memory halve the batches and go on.

        Parameters
        ----------
        call
            Works on one batch.
        shrink
            Asked when one item alone does not fit: lowers what ``call`` needs beside
            the model and says whether it could.

        Raises
        ------
        IncompleteError
            If one item alone does not fit into memory.
        """
        start = 0
        sizes = self.sizes()

        while sizes:
            taken = self._order[start : start + sizes[0]]
            batch = [self._items[number] for number in taken.tolist()]
            try:
                result = call(batch)
            except Exception as error:
                if not out_of_memory(error):
                    raise
            else:
                yield batch, result
                start += sizes.pop(0)
                continue

            # Outside the except clause: the error's frames hold the tensors.
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

            # The same items are tried again: `start` has not moved.
            if len(batch) > 1:
                tokens = (len(batch) // 2) * int(self._lengths[start])
                self.room = replace(self.room, tokens=tokens)
                sizes = self.sizes(start)
            elif not shrink():
                raise IncompleteError(
                    f"out of memory on one text of {self._lengths[start]} tokens",
                    fix="use a smaller dtype, another device or shorter texts",
                )


def room(device: torch.device) -> Room:
    """Return what a batch may hold and costs on a device."""
    return CPU if device.type == "cpu" else GPU
