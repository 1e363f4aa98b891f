"""The candidates pass: each continuation of a prefix that is read once.

The prefix, together with the tokens that all its candidates begin with, goes through
the model alone; its keys and values then stand before every candidate. Where a model
keeps something else than keys and values, or where the first set of candidates scores
otherwise when it is read whole, all sets are read whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from spark_audit.errors import SparkError
from spark_audit.memory import out_of_memory
from spark_audit.scoring.batching import Batches
from spark_audit.scoring.items import Candidates, Item
from spark_audit.scoring.passes import PASSES
from spark_audit.scoring.passes.plain import (
    Note,
    Scorer,
    check_finite,
    padded,
    unwrapped,
)
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded

LAYOUT = {"nll_sum": "float32", "nll_mean": "float32"}
"""One row a candidate: sum and mean over its tokens, nats."""

ITEMS = "candidates"

CPU_CACHE, GPU_CACHE = 2**28, 2**32
"""Bytes that the keys and values of a prefix may take, repeated for a batch."""

R = TypeVar("R")
Emit = Callable[[Candidates, dict[str, np.ndarray]], None]


def cache_bytes(loaded: Loaded, items: Sequence[Candidates]) -> int:
    """Bytes of keys and values, at most, while sets are scored: an estimate."""
    base: Any = unwrapped(loaded.model)
    weight = base.get_input_embeddings().weight
    config = base.config.get_text_config()
    largest = max((len(item.rows) * item.longest for item in items), default=0)
    whole = 2 * config.num_hidden_layers * config.hidden_size * weight.element_size()
    return int(min(GPU_CACHE if weight.is_cuda else CPU_CACHE, whole * largest))


@PASSES.register(memory=cache_bytes)
def run(
    loaded: Loaded,
    items: Sequence[Candidates],
    settings: Pass,
    *,
    batch_size: int | None,
    emit: Emit,
    note: Note,
) -> None:
    """Score sets of candidates and hand each set's columns over.

    Parameters
    ----------
    settings
        The pass; ``candidates`` has nothing to set.
    batch_size
        Candidates a batch, at most; ``None``: by tokens and by the cache's memory.
    emit
        Called once a set with ``nll_sum`` and ``nll_mean``, one row a candidate, nats.
    note
        Called with what a reader of the report must know.
    """
    del settings
    if not items:
        return
    # The longest set first: what it verifies holds for the shorter ones, windows too.
    items = sorted(items, key=lambda item: -item.longest)
    with loaded.active() as model:
        scorer = Scorer(loaded, model, _first(items[0]), note)
        way = _Way(scorer, batch_size)
        reason = _unfit(model) or way.verify(_telling(items))
        if reason:
            note(f"candidates are read whole, each with its prefix: {reason}")
        call = way.whole if reason else way.cached
        for item in items:
            total = call(item, range(len(item.rows)))
            check_finite(total, where=f"candidates {item.key!r}")
            count = np.array([len(row) for row in item.rows])
            columns = {"nll_sum": total, "nll_mean": total / count}
            emit(item, {k: v.astype(np.float32) for k, v in columns.items()})


def _telling(items: Sequence[Candidates]) -> Candidates:
    """The first set of which something is read behind the prefix."""
    for item in items:
        if max(map(len, item.rows)) > _common(item.rows) + 1:
            return item
    return items[0]


def _first(item: Candidates) -> Item:
    ids = np.append(item.prefix, item.rows[0])
    return Item(item.key, ids, np.arange(len(ids), dtype=np.int32))


class _Way:
    """Both ways to score a set: behind its prefix's cache, and whole."""

    def __init__(self, scorer: Scorer, rows: int | None) -> None:
        self._scorer, self._rows, self._tokens = scorer, rows, scorer.tokens
        on_cpu = scorer.device.type == "cpu"
        self._budget = CPU_CACHE if on_cpu else GPU_CACHE

    def verify(self, item: Candidates) -> str:
        """Why the cache is not to be used; empty when both ways agree on a few."""
        lengths = np.array([len(row) for row in item.rows])
        chosen = sorted({0, int(lengths.argmax()), len(lengths) - 1})
        whole = self.whole(item, chosen)
        try:
            # Parted where the whole set is.
            cached = self.cached(item, chosen, common=_common(item.rows))
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
        before = len(item.prefix)

        def call(batch: Sequence[int]) -> np.ndarray:
            # The last token is predicted, not read.
            fed = [np.append(item.prefix, rows[i][:-1]) for i in batch]
            goal, _ = padded([rows[i] for i in batch])
            lengths = torch.tensor([len(rows[i]) for i in batch])
            return self._sums(*padded(fed), goal, lengths, first=before - 1)

        return self._scores(rows, lambda i: before + len(rows[i]) - 1, call)

    def cached(
        self, item: Candidates, chosen: Sequence[int], *, common: int | None = None
    ) -> np.ndarray:
        """NLL sums, float64, of some candidates behind the prefix's cache."""
        rows = [item.rows[i].astype(np.int64) for i in chosen]
        common = _common(rows) if common is None else common
        lead = np.append(item.prefix.astype(np.int64), rows[0][:common])
        ((_, (total, cache)),) = self._run(
            [0], lambda _: len(lead), lambda _: self._lead(lead, rows, common)
        )
        rest = [row[common:] for row in rows]
        longer = [i for i, row in enumerate(rest) if len(row) > 1]
        if not longer:
            return total
        room = max(len(rest[i]) for i in longer) - 1
        own, most = self._memory(cache, room, len(longer))
        stack: _Stack | None = None

        def call(batch: Sequence[int]) -> np.ndarray:
            nonlocal stack
            ids, mask = padded([rest[i][:-1] for i in batch])
            goal, _ = padded([rest[i][1:] for i in batch])
            lengths = torch.tensor([len(rest[i]) - 1 for i in batch])
            if mask is not None:
                mask = torch.nn.functional.pad(mask, (len(lead), 0), value=1)
            try:
                if stack is None or not stack.fits(*ids.shape):
                    stack = None  # freed before the next
                    stack = _Stack(cache, *ids.shape, own=own)
                return self._sums(ids, mask, goal, lengths, cache=stack.cache)
            except Exception:
                stack = None  # where memory ended, this is most of it
                raise

        behind = self._scores(
            rows, lambda i: len(rest[i]) - 1, call, only=longer, most=most
        )
        return np.asarray(total + behind)

    def _memory(self, cache: Any, room: int, count: int) -> tuple[bool, int]:
        """Whether each layer has places of its own, and the most rows of a batch.

        Places that all layers share are filled again by each layer of each batch.
        """
        sizes = [
            sum(one[:, :, :1].nbytes for one in (layer.keys, layer.values))
            * (layer.keys.shape[2] + room)
            for layer in cache.layers
        ]
        rows = min(max(self._tokens // room, 1), count)
        own = rows * sum(sizes) <= self._budget
        return own, max(self._budget // (sum(sizes) if own else max(sizes)), 1)

    def _lead(
        self, lead: np.ndarray, rows: Sequence[np.ndarray], common: int
    ) -> tuple[np.ndarray, Any]:
        """What the prefix's run tells of each candidate, and its keys and values.

        That is the NLL of the common tokens and of each candidate's next one.
        """
        before = len(lead) - common
        # Row by row the same common token for all; of the last row, each its own.
        goal = torch.zeros(1, common + 1, len(rows), dtype=torch.int64)
        goal[0, :common] = torch.from_numpy(lead[before:, None])
        longer = np.array([len(row) > common for row in rows])
        following = [int(row[common]) if len(row) > common else 0 for row in rows]
        goal[0, common] = torch.tensor(following)
        # Layers of the plainest kind, which forget nothing: masks mind windows.
        cache: Any = DynamicCache()
        nll = self._scorer.read(
            torch.from_numpy(lead)[None],
            None,
            goal,
            torch.tensor([common + 1]),
            first=before - 1,
            cache=cache,
        )
        wide = nll.double().numpy()
        return wide[:common].sum(0) + np.where(longer, wide[common], 0), cache

    def _sums(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None,
        goal: torch.Tensor,
        lengths: torch.Tensor,
        **where: Any,
    ) -> np.ndarray:
        """NLL of each row's targets, summed: shape ``(B,)``, float64."""
        nll = self._scorer.read(ids, mask, goal[..., None], lengths, **where)
        starts = np.cumsum(lengths.numpy()) - lengths.numpy()
        return np.add.reduceat(nll[:, 0].double().numpy(), starts)

    def _scores(
        self,
        rows: Sequence[np.ndarray],
        length: Callable[[int], int],
        call: Callable[[Sequence[int]], np.ndarray],
        *,
        only: Sequence[int] | None = None,
        most: int | None = None,
    ) -> np.ndarray:
        """What ``call`` gives for indices of rows, batch by batch; else 0."""
        found = np.zeros(len(rows))
        chosen = range(len(rows)) if only is None else only
        for batch, part in self._run(chosen, length, call, most=most):
            found[batch] = part
        return found

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
            indices, length, tokens=self._tokens, rows=min(limits, default=None)
        )
        found = list(batches.run(call, shrink=self._scorer.columns.shrink))
        self._tokens = batches.tokens  # what did not fit once is not tried again
        return found


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
        self._size = rows, room

    def fits(self, rows: int, room: int) -> bool:
        """Whether a batch of so many rows and tokens has its place."""
        return rows <= self._size[0] and room <= self._size[1]


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a stack; what the model asks the length of is the prefix alone."""

    def __init__(
        self, layer: Any, keys: torch.Tensor, values: torch.Tensor, own: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values = layer.keys, layer.values
        self.dtype, self.device = layer.keys.dtype, layer.keys.device
        self.is_initialized = True
        self._pairs = ((self.keys, keys), (self.values, values))
        self._filled = own
        if own:
            for one, place in self._pairs:
                place[:, :, : one.shape[2]] = one

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write behind the prefix; give the prefix and what was written."""
        found = []
        states = (key_states, value_states)
        for (one, place), new in zip(self._pairs, states, strict=True):
            past = one.shape[2]
            part = place[: len(new), :, : past + new.shape[2]]
            if not self._filled:
                part[:, :, :past] = one
            part[:, :, past:] = new
            found.append(part)
        return found[0], found[1]


def _common(rows: Sequence[np.ndarray]) -> int:
    """How many tokens all rows begin with."""
    shortest = min(map(len, rows))
    table = np.stack([row[:shortest] for row in rows])
    same = (table == table[0]).all(0)
    return shortest if same.all() else int(same.argmin())


def _unfit(model: torch.nn.Module) -> str:
    """Why a model cannot be asked behind a cache; empty if it may be tried."""
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        return "virtual tokens stand before every text"
    base: Any = unwrapped(model)
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
