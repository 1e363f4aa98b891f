"""The candidates pass: continuations of a prefix, which is read once.

The prefix goes through the model alone; its keys and values then stand before every
candidate. Where a model keeps something else than keys and values, or where the first
set of candidates scores otherwise when it is read whole, all sets are read whole.

One row a candidate: sum and mean over its tokens, nats.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from spark_audit.errors import SparkError, out_of_memory
from spark_audit.scoring.batching import Batches
from spark_audit.scoring.items import Candidates
from spark_audit.scoring.passes.plain import Scorer, check_finite, padded, unwrapped
from spark_audit.scoring.table import Task

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

CPU_CACHE, GPU_CACHE = 2**28, 2**32
"""Bytes that the keys and values of a prefix may take, repeated for a batch."""

R = TypeVar("R")


def run(
    loaded: Loaded, model: torch.nn.Module, items: Sequence[Candidates], task: Task
) -> Iterator[tuple[Candidates, dict[str, np.ndarray]]]:
    """Each set with its ``nll_sum`` and ``nll_mean``: one row per candidate, nats.

    A batch has as many candidates as the cache's memory and the tokens allow.
    """
    # The longest set first: what it verifies holds for the shorter ones, windows too.
    items = sorted(items, key=lambda item: -item.longest)
    scorer = Scorer(loaded, model, items[0].example, task.note)
    way = _Way(scorer, task.batch_size)
    # Of the first set of which something is read after the prefix.
    telling = (item for item in items if max(map(len, item.rows)) > 1)
    reason = _unfit(model) or way.verify(next(telling, items[0]))
    if reason:
        task.note(f"candidates are read whole, each with its prefix: {reason}")
    call = way.whole if reason else way.cached
    for item in items:
        total = call(item, range(len(item.rows)))
        check_finite(total, where=f"candidates {item.key!r}")
        count = np.array([len(row) for row in item.rows])
        columns = {"nll_sum": total, "nll_mean": total / count}
        yield item, {k: v.astype(np.float32) for k, v in columns.items()}


class _Repeated(DynamicLayer):  # type: ignore[misc]
    """Keys and values of a prefix, put before those of each row of a batch."""

    def __init__(self, prefix: DynamicLayer) -> None:
        super().__init__()
        self.keys = prefix.keys
        self.values = prefix.values
        self.is_initialized = True
        self.dtype = prefix.dtype
        self.device = prefix.device

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *_: object,
        **__: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the prefix with what is read after it, which is not kept."""
        pairs = ((self.keys, key_states), (self.values, value_states))
        keys, values = (
            torch.cat([before.expand(len(new), -1, -1, -1), new], 2)
            for before, new in pairs
        )
        return keys, values


def _sums(read: Callable[..., torch.Tensor], rows: Sequence[np.ndarray]) -> np.ndarray:
    """Of each row the sum of its tokens' NLL, float64, as read."""
    goal, _ = padded(rows)
    lengths = torch.tensor([len(row) for row in rows])
    nll = read(targets=goal[..., None], lengths=lengths)[:, 0].double().numpy()
    return np.add.reduceat(nll, (lengths.cumsum(0) - lengths).numpy())


class _Way:
    """Both ways to score a set: after its prefix's cache, and whole."""

    def __init__(self, scorer: Scorer, rows: int | None) -> None:
        self._scorer, self._rows, self._room = scorer, rows, scorer.room
        on_cpu = scorer.device.type == "cpu"
        self._budget = CPU_CACHE if on_cpu else GPU_CACHE

    def verify(self, item: Candidates) -> str:
        """Why the cache is not to be used; empty when both ways agree on a few."""
        lengths = np.array([len(row) for row in item.rows])
        chosen = sorted({0, int(lengths.argmax()), len(lengths) - 1})
        whole = self.whole(item, chosen)
        try:
            cached = self.cached(item, chosen)
        except Exception as error:  # whatever a model raises that knows no such cache
            if isinstance(error, SparkError) or out_of_memory(error):
                raise
            return f"its forward does not take a cache ({type(error).__name__})"
        if not np.isfinite(whole).all():
            return ""  # an error of its own, whichever way
        # Half precision rounds the two ways differently.
        bound = 1e-4 if self._scorer.exact else 0.02
        apart = np.abs(cached - whole) / np.maximum(whole, lengths[chosen])
        if apart.max() <= bound:
            return ""
        return f"behind a cached prefix a score is off by {apart.max():.1g} of its size"

    def whole(self, item: Candidates, chosen: Sequence[int]) -> np.ndarray:
        """NLL sums, float64, of some candidates, each read with the prefix."""
        rows = [item.rows[i] for i in chosen]
        found, before = np.zeros(len(rows)), len(item.prefix)

        def call(batch: Sequence[int]) -> np.ndarray:
            # The last token is predicted, not read.
            fed = [np.append(item.prefix, rows[i][:-1]) for i in batch]
            read = partial(self._scorer.read, *padded(fed), first=before - 1)
            return _sums(read, [rows[i] for i in batch])

        def length(i: int) -> int:
            return before + len(rows[i]) - 1

        for batch, part in self._run(range(len(rows)), length, call):
            found[batch] = part
        return found

    def cached(self, item: Candidates, chosen: Sequence[int]) -> np.ndarray:
        """NLL sums, float64, of some candidates behind the prefix's cache."""
        rows, before = [item.rows[i] for i in chosen], len(item.prefix)
        ids = torch.from_numpy(item.prefix.astype(np.int64))[None]
        firsts = torch.tensor([[[int(row[0]) for row in rows]]])

        def lead(_: Sequence[int]) -> tuple[DynamicCache, np.ndarray]:
            # Layers of the plainest kind, which forget nothing: masks mind windows.
            cache = DynamicCache()
            nll = self._scorer.read(
                ids,
                None,
                firsts,
                cache=cache,
                lengths=torch.tensor([1]),
                first=before - 1,
            )
            cache.layers = [_Repeated(layer) for layer in cache.layers]
            return cache, nll[0].double().numpy()

        ((_, (cache, total)),) = self._run([0], lambda _: before, lead)
        rest = [i for i, row in enumerate(rows) if len(row) > 1]
        if not rest:
            return total
        room = max(map(len, rows)) - 1
        # One layer's at a time: each lets go of what it has put together.
        size = max(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        most = max(self._budget * before // (size * (before + room)), 1)

        def call(batch: Sequence[int]) -> np.ndarray:
            fed, mask = padded([rows[i][:-1] for i in batch])
            if mask is not None:
                mask = torch.cat([mask.new_ones((len(batch), before)), mask], 1)
            read = partial(self._scorer.read, fed, mask, cache=cache)
            return _sums(read, [rows[i][1:] for i in batch])

        def length(i: int) -> int:
            return len(rows[i]) - 1

        for batch, part in self._run(rest, length, call, most=most):
            total[batch] += part
        return total

    def _run(
        self,
        indices: Sequence[int],
        length: Callable[[int], int],
        call: Callable[[list[int]], R],
        *,
        most: int | None = None,
    ) -> list[tuple[list[int], R]]:
        limits = [limit for limit in (self._rows, most) if limit is not None]
        batches = Batches(
            indices, length, room=self._room, rows=min(limits, default=None)
        )
        found = list(batches.run(call, shrink=self._scorer.columns.shrink))
        self._room = batches.room  # what did not fit once is not tried again
        return found


def _unfit(model: torch.nn.Module) -> str:
    """Why a model cannot be asked behind a cache; empty if it may be tried."""
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        return "virtual tokens precede every text"
    base = unwrapped(model)
    if "past_key_values" not in inspect.signature(base.forward).parameters:
        return "its forward takes no cache"
    config = base.config.get_text_config()
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    if base._is_stateful or kinds - {DynamicLayer, DynamicSlidingWindowLayer}:
        return "it keeps more than keys and values"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        return "its rotations depend on the text's length"
    return ""
