"""The candidates pass: continuations of a prefix, read once where they are alike.

The prefix, together with the tokens that all its candidates begin with, goes through
the model alone; its keys and values then stand before every candidate. What some of
them begin with is read once for all of them where that costs less than it saves.
Where a model keeps something else than keys and values, or where the first set of
candidates scores otherwise when it is read whole, all sets are read whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
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
from spark_audit.scoring.behind import Behind, Tails, token_bytes
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
from spark_audit.scoring.tree import Part, Tree

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded

LAYOUT = {"nll_sum": "float32", "nll_mean": "float32"}
"""One row a candidate: sum and mean over its tokens, nats."""

ITEMS = "candidates"

CPU_CACHE, GPU_CACHE = 2**28, 2**32
"""Bytes that the keys and values of a prefix may take, repeated for a batch."""

KEY = 0.03
"""What a path of a batch costs for each token that stands before it, in tokens read:
its keys and values are copied and gone through, however short the path is."""

R = TypeVar("R")
Emit = Callable[[Candidates, dict[str, np.ndarray]], None]


@PASSES.register()
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
        tree = Tree(item.rows)
        if tree.height >= len(tree.chain):
            return item
    return items[0]


def _first(item: Candidates) -> Item:
    ids = np.append(item.prefix, item.rows[0])
    return Item(item.key, ids, np.arange(len(ids), dtype=np.int32))


class _Way:
    """Both ways to score a set: as a tree behind its prefix's cache, and whole."""

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
            # Parted where the whole set is, and once more, so that all is tried.
            tree = Tree(item.rows)
            start, stop = len(tree.chain) - 1, tree.height
            cuts = sorted({start, (start + stop + 1) // 2, stop})
            cached = self.cached(item, chosen, cuts=cuts)
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
            nll = self._scorer.read(
                *padded(fed), goal[..., None], lengths, first=before - 1
            )
            starts = (lengths.cumsum(0) - lengths).numpy()
            return np.add.reduceat(nll[:, 0].double().numpy(), starts)

        found = np.zeros(len(rows))
        indices = range(len(rows))
        parts = self._run(indices, lambda i: before + len(rows[i]) - 1, call)
        for batch, part in parts:
            found[batch] = part
        return found

    def cached(
        self,
        item: Candidates,
        chosen: Sequence[int],
        *,
        cuts: Sequence[int] | None = None,
    ) -> np.ndarray:
        """NLL sums, float64, of some candidates behind the prefix's cache.

        Parameters
        ----------
        cuts
            Depths of the candidates' tree at which reading is parted; ``None``: where
            that costs least.
        """
        tree = Tree([item.rows[i] for i in chosen])
        nll = np.zeros(len(tree.tokens))
        chain = tree.chain if cuts is None else tree.chain[: cuts[0] + 1]
        cache = self._lead(item.prefix, tree, chain, nll)
        start = len(chain) - 1
        room = tree.height - start
        if room:
            rows = min(max(self._room.tokens // room, 1), len(chosen))
            past = len(item.prefix) + start
            if cuts is None:
                cuts = self._cuts(tree, start, past=past, rows=rows, cache=cache)
            # A quarter is for what stands between two cuts.
            budget = self._budget if len(cuts) == 2 else self._budget * 3 // 4
            behind = Behind(cache, room, rows=rows, budget=budget)
            for above, depth in pairwise(cuts):
                most = None if depth == cuts[-1] else rows
                self._part(tree, tree.part(above, depth), behind, nll, rows=most)
        return np.asarray(nll[tree.paths].sum(1))

    def _cuts(
        self, tree: Tree, start: int, *, past: int, rows: int, cache: Any
    ) -> list[int]:
        """Where reading is parted: more parts read fewer tokens in more batches."""

        def cost(paths: int, tokens: int, depth: int) -> float:
            batches = max(-(-tokens // self._room.tokens), -(-paths // rows))
            keys = paths * (past + depth - start)
            return tokens + self._room.overhead * batches + KEY * keys

        # Of a quarter, as there are up to three: before and behind a part, and parts.
        most = self._budget // 12 // token_bytes(cache)
        return tree.cuts(start, cost=cost, most=most)

    def _lead(
        self, prefix: np.ndarray, tree: Tree, chain: np.ndarray, nll: np.ndarray
    ) -> Any:
        """Read the prefix and what all candidates begin with; its keys and values."""
        ids = np.append(prefix.astype(np.int64), tree.tokens[chain[1:]])
        inside = np.ones((1, len(chain)), dtype=bool)

        def call(_: Sequence[int]) -> Any:
            # Layers of the plainest kind, which forget nothing: masks mind windows.
            cache: Any = DynamicCache()
            where = {"first": len(prefix) - 1, "cache": cache}
            self._tell(
                tree, chain[None], inside, nll, ids=ids[None], mask=None, **where
            )
            return cache

        ((_, cache),) = self._run([0], lambda _: len(ids), call)
        return cache

    def _part(
        self,
        tree: Tree,
        part: Part,
        behind: Behind,
        nll: np.ndarray,
        *,
        rows: int | None,
    ) -> None:
        """Read a part of a tree, and keep what the next one stands behind."""

        def call(batch: Sequence[int]) -> Tails:
            lengths, on = part.lengths[batch], part.on[batch]
            nodes = part.nodes[batch, : lengths.max()]
            inside = np.arange(nodes.shape[1]) < lengths[:, None]
            mask = None
            if not inside.all():
                before = np.ones((len(batch), behind.past), dtype=np.int64)
                mask = torch.from_numpy(np.concatenate([before, inside], 1))
            try:
                cache = behind.cache(part.above[batch], np.flatnonzero(on))
                where = {"ids": tree.tokens[nodes], "mask": mask, "cache": cache}
                self._tell(tree, nodes, inside, nll, **where)
                return behind.take()
            except Exception:
                behind.free()
                raise

        most = behind.most if rows is None else min(rows, behind.most)
        found = self._run(
            range(len(part.on)), lambda i: int(part.lengths[i]), call, most=most
        )
        kept = [(part.on[batch], tails) for batch, tails in found]
        kept = [(on[on > 0], tails) for on, tails in kept if on.any()]
        if kept:
            behind.descend(np.concatenate([on for on, _ in kept]), [t for _, t in kept])

    def _tell(
        self,
        tree: Tree,
        nodes: np.ndarray,
        inside: np.ndarray,
        nll: np.ndarray,
        *,
        ids: np.ndarray,
        mask: torch.Tensor | None,
        **where: Any,
    ) -> None:
        """Write the NLL of what follows on nodes ``(B, w)``, where they are inside."""
        following, there = tree.children(nodes)
        found = self._scorer.read(
            torch.from_numpy(ids),
            mask,
            torch.from_numpy(tree.tokens[following]),
            torch.from_numpy(inside.sum(1)),
            **where,
        )
        there = there[inside]
        nll[following[inside][there]] = found.double().numpy()[there]

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
