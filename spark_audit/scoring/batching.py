"""Batches of items of like length under a token budget, halved when memory ends."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from spark_audit.errors import IncompleteError
from spark_audit.memory import out_of_memory

T = TypeVar("T")
R = TypeVar("R")

CPU_TOKENS = 1024
"""Padded tokens a batch on CPU: enough rows for the matrix products to reach their
peak, few enough for activations to stay near the cache."""

GPU_TOKENS = 16_384
"""Padded tokens a batch on an accelerator."""

RATIO = 1.5
"""Longest over shortest item of a batch, at most."""

OVERHEAD = 40
"""What a batch costs beside its tokens, in tokens: a matrix product of 128 rows runs
at three quarters of the speed of one of 1,024, whose weights are read as often."""

WINDOW = 1024
"""Items among which batches are chosen at a time: bounds the planning, not a batch."""


class Batches(Generic[T]):
    """Items, longest first, in batches that a model can take.

    Parameters
    ----------
    items
        What to batch.
    length
        Tokens of one item.
    tokens
        Padded tokens a batch, at most; a longer item stands alone.
    rows
        Items a batch, at most; ``None``: as the tokens allow.
    ratio
        Longest over shortest item of one batch, at most.

    Attributes
    ----------
    tokens
        As given, less what exhausted memory took off.
    """

    def __init__(
        self,
        items: Sequence[T],
        length: Callable[[T], int],
        *,
        tokens: int,
        rows: int | None = None,
        ratio: float = RATIO,
    ) -> None:
        # Stable: equal lengths keep the caller's order, so batches repeat.
        self._items = sorted(items, key=lambda item: -length(item))
        self._lengths = [max(length(item), 1) for item in self._items]
        self.tokens, self._rows, self._ratio = tokens, rows, ratio

    def sizes(self, start: int = 0) -> list[int]:
        """Items of each batch from the item ``start`` on.

        Of all ways to cut the sorted items into batches the one of least cost, where
        a batch costs its padded tokens plus ``OVERHEAD``.
        """
        found = []
        while start < len(self._items):
            part = self._cut(self._lengths[start : start + WINDOW])
            if start + WINDOW < len(self._items) and len(part) > 1:
                part.pop()  # the window's edge cut it; it is planned with the next
            found += part
            start += sum(part)
        return found

    def _cut(self, lengths: list[int]) -> list[int]:
        """Dynamic programme from the back: ``best[i]`` = least cost of items ``i:``."""
        best = [0] * (len(lengths) + 1)
        size = [0] * len(lengths)
        for i in range(len(lengths) - 1, -1, -1):
            longest = lengths[i]
            most = max(self.tokens // longest, 1)
            if self._rows is not None:
                most = min(most, self._rows)
            stop = min(i + most, len(lengths))
            for j in range(i + 1, stop + 1):
                if lengths[j - 1] * self._ratio < longest:
                    break
                cost = (j - i) * longest + OVERHEAD + best[j]
                if not size[i] or cost <= best[i]:
                    best[i], size[i] = cost, j - i
        found, i = [], 0
        while i < len(lengths):
            found.append(size[i])
            i += size[i]
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
            batch = self._items[start : start + sizes[0]]
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
                self.tokens = (len(batch) // 2) * self._lengths[start]
                sizes = self.sizes(start)
            elif not shrink():
                raise IncompleteError(
                    f"out of memory on one text of {self._lengths[start]} tokens",
                    fix="use a smaller dtype, another device or shorter texts",
                )


def token_budget(device: torch.device) -> int:
    """Padded tokens a batch where the user sets nothing."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS
