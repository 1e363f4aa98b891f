"""Keys and values of a prefix, repeated before every row of a batch."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer


class PrefixCache:
    """A model's memory of one prefix, with room for what a batch reads after it.

    What is read after the prefix is written into the room, over what was there before:
    nothing is allocated between batches, and nothing needs to be taken back.

    Parameters
    ----------
    cache
        Keys and values of the prefix, one row.
    room
        Tokens that stand after it, at most.
    rows
        Rows per batch, as far as is known.
    budget
        Bytes that all of it may take.

    Attributes
    ----------
    tokens
        Tokens of the prefix.
    most
        Rows that a batch may have.
    """

    def __init__(self, cache: Any, room: int, *, rows: int, budget: int) -> None:
        self._prefix, self._room = cache, room
        self.tokens = int(cache.layers[0].keys.shape[2])
        sizes = [
            (layer.keys[:, :, :1].nbytes + layer.values[:, :, :1].nbytes)
            * (self.tokens + room)
            for layer in cache.layers
        ]
        # Buffers that all layers share are filled again by each layer of each batch.
        self._own = rows * sum(sizes) <= budget
        self.most = max(budget // (sum(sizes) if self._own else max(sizes)), 1)
        self._layers: list[_Layer] = []
        self._rows = 0

    def repeated(self, rows: int) -> Any:
        """The cache that the model is given for a batch of so many rows."""
        if rows > self._rows:
            self._layers = []  # freed before the next
            self._layers = self._allocated(rows)
            self._rows = rows
        cache: Any = DynamicCache()
        cache.layers = self._layers
        for layer in self._layers:
            layer.rewind()
        return cache

    def free(self) -> None:
        """Let go of the buffers: where memory ended, they are most of it."""
        self._layers, self._rows = [], 0

    def _allocated(self, rows: int) -> list[_Layer]:
        shared: dict[Any, torch.Tensor] = {}

        def buffer(one: torch.Tensor, name: str) -> torch.Tensor:
            _, heads, past, size = one.shape
            shape = (rows, heads, past + self._room, size)
            if self._own:
                return one.new_empty(shape)
            # A layer's attention is done with them before the next layer writes.
            key = (name, shape, one.dtype, one.device)
            if key not in shared:
                shared[key] = one.new_empty(shape)
            return shared[key]

        return [
            _Layer(one, buffer(one.keys, "keys"), buffer(one.values, "values"), self)
            for one in self._prefix.layers
        ]


class _Layer(DynamicLayer):  # type: ignore[misc]
    """One layer; the model asks its ``keys`` for the length of what stands before."""

    def __init__(
        self, layer: Any, keys: torch.Tensor, values: torch.Tensor, owner: PrefixCache
    ) -> None:
        super().__init__()
        self.dtype, self.device = layer.keys.dtype, layer.keys.device
        self.is_initialized = True
        self._pairs = ((layer.keys, keys), (layer.values, values))
        self._filled = owner._own
        if self._filled:
            for one, buffer in self._pairs:
                buffer[:, :, : owner.tokens] = one
        self._tokens = owner.tokens

    def rewind(self) -> None:
        """Forget what was read after the prefix."""
        (_, keys), (_, values) = self._pairs
        self.keys = keys[:, :, : self._tokens]
        self.values = values[:, :, : self._tokens]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write after the prefix; give the prefix and what was written."""
        found = []
        states = (key_states, value_states)
        for (one, buffer), new in zip(self._pairs, states, strict=True):
            part = buffer[: len(new), :, : self._tokens + new.shape[2]]
            if not self._filled:
                part[:, :, : self._tokens] = one
            part[:, :, self._tokens :] = new
            found.append(part)
        return found[0], found[1]
