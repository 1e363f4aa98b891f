"""Batches of items of like length under a token budget, halved when memory ends."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from spark_audit.errors import IncompleteError

T = TypeVar("T")
R = TypeVar("R")

CPU_TOKENS = 1024
"""Padded tokens a batch on CPU: enough rows for the matrix products to reach their
peak, few enough for activations to stay near the cache."""

GPU_TOKENS = 16_384
"""Padded tokens a batch on an accelerator."""

RATIO = 1.5
"""Longest over shortest item of a batch, at most."""


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
        self._length = length
        self._tokens, self._rows, self._ratio = tokens, rows, ratio

    def _next(self, start: int) -> list[T]:
        longest = max(self._length(self._items[start]), 1)
        count = max(self._tokens // longest, 1)
        if self._rows is not None:
            count = min(count, self._rows)
        batch = self._items[start : start + count]
        return [item for item in batch if self._length(item) * self._ratio >= longest]

    def plan(self) -> list[list[T]]:
        """The batches as they are formed while nothing runs out of memory."""
        found, start = [], 0
        while start < len(self._items):
            found.append(self._next(start))
            start += len(found[-1])
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
        start = 0
        while start < len(self._items):
            batch = self._next(start)
            try:
                result = call(batch)
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
            else:
                yield batch, result
                start += len(batch)
                continue
            # Outside the except clause: the error's frames hold the tensors.
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if len(batch) > 1:
                longest = max(self._length(item) for item in batch)
                self._tokens = (len(batch) // 2) * longest
            elif not shrink():
                raise IncompleteError(
                    f"out of memory on one text of {self._length(batch[0])} tokens",
                    fix="use a smaller dtype, another device or shorter texts",
                )


def token_budget(device: torch.device) -> int:
    """Padded tokens a batch where the user sets nothing."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS


def _out_of_memory(error: RuntimeError) -> bool:
    from accelerate.utils.memory import should_reduce_batch_size

    return bool(should_reduce_batch_size(error))
