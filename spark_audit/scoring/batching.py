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
    """What a batch may hold on a device, and what it costs beside its tokens.

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
        lengths = np.fromiter(map(length, items), np.int64, len(items))
        # Stable: equal lengths keep the caller's order, so batches repeat.
        self._order = np.argsort(-lengths, kind="stable")
        self._items, self._lengths = items, np.maximum(lengths[self._order], 1)
        self.room, self._rows = room, rows

    def sizes(self, start: int = 0) -> list[int]:
        """Items of each batch from the item ``start`` on.

        Of all ways to cut the sorted items into batches the one of least cost, where
        a batch costs its padded tokens plus its overhead: a dynamic programme from the
        back, with ``best[i]`` the least cost of items ``i:``.
        """
        lengths = self._lengths[start:]
        best = np.zeros(len(lengths) + 1, dtype=np.int64)
        size = np.zeros(len(lengths), dtype=np.int64)
        # Sorted: those that are long enough to stand with an item are next to it.
        alike = np.searchsorted(-lengths, -lengths / self.room.ratio, side="right")
        for i in range(len(lengths) - 1, -1, -1):
            most = max(self.room.tokens // int(lengths[i]), 1)
            if self._rows is not None:
                most = min(most, self._rows)
            stop = max(min(i + most, int(alike[i])), i + 1)
            costs = np.arange(1, stop - i + 1) * lengths[i] + best[i + 1 : stop + 1]
            # Of equal ones the largest batch.
            chosen = len(costs) - 1 - int(costs[::-1].argmin())
            best[i], size[i] = costs[chosen] + self.room.overhead, chosen + 1
        found, i = [], 0
        while i < len(lengths):
            found.append(int(size[i]))
            i += found[-1]
        return found

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
        start, sizes = 0, self.sizes()
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
    """What a batch may hold and costs where the user sets nothing."""
    return CPU if device.type == "cpu" else GPU
