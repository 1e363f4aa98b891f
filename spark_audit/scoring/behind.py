"""Keys and values of a prefix, and of what was read behind it, before a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

Tails: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]
"""Of each layer, keys and values of what stands behind a prefix, one row a path."""


class Behind:
    """A model's memory of one prefix, given to batches of what stands behind it.

    Parameters
    ----------
    cache
        Keys and values of the prefix, one row.
    room
        Tokens that stand behind it, at most.
    rows
        Paths a batch, as far as is known.
    budget
        Bytes that all of it may take.

    Attributes
    ----------
    past
        Tokens that stand before the next batch.
    most
        Paths that a batch may have.
    """

    def __init__(self, cache: Any, room: int, *, rows: int, budget: int) -> None:
        self._prefix, self._room = cache, room
        self._before = self.past = int(cache.layers[0].keys.shape[2])
        sizes = [size * (self.past + room) for size in _sizes(cache)]
        # Places that all layers share are filled again by each layer of each batch.
        self._own = rows * sum(sizes) <= budget
        self.most = max(budget // (sum(sizes) if self._own else max(sizes)), 1)
        self._stack: _Stack | None = None
        self._tails: Tails = []
        self._rows = np.zeros(1, dtype=np.int64)

    def cache(self, above: np.ndarray, kept: np.ndarray) -> Any:
        """What the model is given for a batch of paths.

        Parameters
        ----------
        above
            The node that each hangs from.
        kept
            Rows of the batch that something is read behind.
        """
        if self._stack is None or not self._stack.fits(len(above)):
            self._stack = None  # freed before the next
            self._stack = _Stack(self._prefix, len(above), self._room, own=self._own)
        rows = torch.from_numpy(self._rows[above]) if self._tails else None
        for at, layer in enumerate(self._stack.cache.layers):
            tail = self._tails[at] if self._tails else None
            layer.hang(self.past, tail, rows, torch.from_numpy(kept))
        return self._stack.cache

    def free(self) -> None:
        """Let go of the places: where memory ended, they are most of it."""
        self._stack = None

    def take(self) -> Tails:
        """What stands behind the prefix in the rows of the batch that were kept."""
        assert self._stack is not None
        return [layer.kept for layer in self._stack.cache.layers]

    def descend(self, nodes: np.ndarray, tails: Sequence[Tails]) -> None:
        """Go on behind some nodes, whose tails were taken batch by batch."""
        self._rows = np.zeros(nodes.max() + 1, dtype=np.int64)
        self._rows[nodes] = np.arange(len(nodes))
        self._tails = [
            (torch.cat([keys for keys, _ in layer]), torch.cat([v for _, v in layer]))
            for layer in zip(*tails, strict=True)
        ]
        self.past = self._before + self._tails[0][0].shape[2]


def token_bytes(cache: Any) -> int:
    """Bytes of keys and values that a token has in all layers."""
    return sum(_sizes(cache))


def _sizes(cache: Any) -> list[int]:
    return [
        layer.keys[:, :, :1].nbytes + layer.values[:, :, :1].nbytes
        for layer in cache.layers
    ]


class _Stack:
    """A prefix's cache, repeated for a batch, with room behind it.

    What is read behind the prefix is written into the room, over what was there
    before: nothing is allocated between batches, and nothing needs to be taken back.

    Attributes
    ----------
    cache
        What the model is given.
    """

    def __init__(self, cache: Any, rows: int, room: int, *, own: bool) -> None:
        shared: dict[Any, torch.Tensor] = {}

        def place(one: torch.Tensor, name: str) -> torch.Tensor:
            _, heads, past, size = one.shape
            shape = (rows, heads, past + room, size)
            if own:
                return one.new_empty(shape)
            # A layer's attention is done with them before the next layer writes.
            key = (name, shape, one.dtype, one.device)
            if key not in shared:
                shared[key] = one.new_empty(shape)
            return shared[key]

        self.cache: Any = DynamicCache()
        self.cache.layers = [
            _Layer(one, place(one.keys, "keys"), place(one.values, "values"), own)
            for one in cache.layers
        ]
        self._rows = rows

    def fits(self, rows: int) -> bool:
        """Whether a batch of so many rows has its place."""
        return rows <= self._rows


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a stack; what the model asks the length of is what stands there."""

    def __init__(
        self, layer: Any, keys: torch.Tensor, values: torch.Tensor, own: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values = keys, values
        self.dtype, self.device = layer.keys.dtype, layer.keys.device
        self.is_initialized = True
        self._pairs = ((layer.keys, keys), (layer.values, values))
        self._filled = own
        if own:
            for one, place in self._pairs:
                place[:, :, : one.shape[2]] = one

    def hang(
        self, past: int, tail: Any, rows: torch.Tensor | None, kept: torch.Tensor
    ) -> None:
        """Have a batch read behind the prefix and some rows of a tail."""
        (_, keys), (_, values) = self._pairs
        self._past = past
        self.keys, self.values = keys[:, :, :past], values[:, :, :past]
        self._tail = (None, None) if tail is None else tail
        self._rows = None if rows is None else rows.to(self.device)
        self._kept = kept.to(self.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write behind what stands there; give that and what was written."""
        found, kept = [], []
        past, states = self._past, (key_states, value_states)
        for (one, place), tail, new in zip(
            self._pairs, self._tail, states, strict=True
        ):
            before = one.shape[2]
            part = place[: len(new), :, : past + new.shape[2]]
            if not self._filled:
                part[:, :, :before] = one
            if tail is not None:
                part[:, :, before:past] = tail.index_select(0, self._rows)
            part[:, :, past:] = new
            found.append(part)
            kept.append(part[:, :, before:].index_select(0, self._kept))
        self.kept = (kept[0], kept[1])
        return found[0], found[1]
