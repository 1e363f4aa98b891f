"""The candidates pass: continuations of a prefix, which is read once.

The prefix goes through the model alone; its keys and values then stand before every
candidate. So do those of what several candidates begin with, where that saves time.
Where a model keeps something else than keys and values, or where the first set of
candidates scores otherwise when it is read whole, all sets are read whole.

One row a candidate: sum and mean over its tokens, nats.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

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

CUT = 4
"""Batches' overheads that reading a set in one more step must save: its batches are
small, and small products slow."""

R = TypeVar("R")
T = TypeVar("T")


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
    """Keys and values of a prefix and of stems behind it, put before those of each row.

    Parameters
    ----------
    prefix
        The layer that has read the prefix: one row.
    stems
        Keys and values of what each row has read since, ``(B, heads, n, size)``.
    keep
        Whether ``stems`` grow by what is read.
    """

    def __init__(self, prefix: Any, stems: Sequence[torch.Tensor], keep: bool) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = prefix.keys, prefix.values, True
        self.dtype, self.device = prefix.dtype, prefix.device
        self.stems, self._keep = stems, keep

    def get_seq_length(self) -> int:
        """Tokens that each row has read before."""
        return int(self.keys.shape[2] + self.stems[0].shape[2])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What was read before with what is read now."""
        before, own = (self.keys, self.values), (key_states, value_states)
        parts = [*zip(self.stems, own, strict=True)]
        if self._keep:
            self.stems = [torch.cat(both, 2) for both in parts]
        keys, values = (
            torch.cat([prefix.expand(len(both[0]), -1, -1, -1), *both], 2)
            for prefix, both in zip(before, parts, strict=True)
        )
        return keys, values


class _Past:
    """What rows have read: a prefix, and behind it the stem that each begins with.

    Parameters
    ----------
    prefix
        The layers of a cache that has read the prefix.
    rows
        How many rows there are.
    """

    def __init__(self, prefix: Sequence[Any], rows: int) -> None:
        self._prefix = prefix
        self._stems: list[tuple[torch.Tensor, ...]] = [
            (one.keys[:, :, :0], one.values[:, :, :0]) for one in prefix
        ]
        self._at = np.zeros(rows, np.int64)

    def cache(self, groups: Sequence[list[int]], *, keep: bool) -> Any:
        """A cache for one row of each group; it keeps what is read if that is asked."""
        at = torch.from_numpy(self._at[[group[0] for group in groups]])
        layers = [
            _Repeated(layer, [one[at.to(one.device)] for one in pair], keep)
            for layer, pair in zip(self._prefix, self._stems, strict=True)
        ]
        cache: Any = DynamicCache()
        cache.layers = layers
        return cache

    def extend(self, read: Sequence[tuple[Sequence[list[int]], Any]]) -> None:
        """Take what caches have kept, each of a batch of groups, as the stems."""
        longest = max(cache.layers[0].stems[0].shape[2] for _, cache in read)
        # Where it is shorter, none of its rows goes on.
        own = [one for one in read if one[1].layers[0].stems[0].shape[2] == longest]
        for number, group in enumerate(group for groups, _ in own for group in groups):
            self._at[group] = number
        kept = ([layer.stems for layer in cache.layers] for _, cache in own)
        self._stems = [
            tuple(map(torch.cat, zip(*layers, strict=True)))
            for layers in zip(*kept, strict=True)
        ]


def _sums(
    read: Callable[..., torch.Tensor],
    rows: Sequence[np.ndarray],
    nexts: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Of each row the NLL of its tokens and one more, for each that may be next.

    Float64, summed; row and next tokens are predicted from the position on at which
    ``read`` begins.
    """
    lengths = torch.tensor([len(row) + 1 for row in rows])
    shape = len(rows), int(lengths.max()), max(map(len, nexts))
    goal = np.zeros(shape, np.int64)
    for own, row, after in zip(goal, rows, nexts, strict=True):
        own[: len(row), 0] = row
        own[len(row), : len(after)] = after
    found = read(targets=torch.from_numpy(goal), lengths=lengths).double()
    parts = zip(torch.split(found, lengths.tolist()), nexts, strict=True)
    return [
        (part[:-1, 0].sum() + part[-1, : len(after)]).numpy() for part, after in parts
    ]


def _stops(rows: Sequence[np.ndarray], overhead: int, most: int) -> list[int]:
    """How far rows are read at a time, where those that begin alike are read once.

    Of all ways to cut the rows the one of fewest tokens, where a cut costs
    ``overhead`` tokens, and at most ``most`` are kept.
    """
    ids, _ = padded(rows)
    table = np.column_stack([ids.numpy(), np.arange(len(rows))])
    table = table[np.lexsort(table.T[::-1])]
    # Sorted: a row parts from all before it where it parts from its neighbour.
    parted = (table[1:] != table[:-1]).argmax(1)
    best, came = np.zeros(table.shape[1]), [0]
    for stop in range(1, len(best)):
        kinds = 1 + np.count_nonzero(parted < stop)
        costs = best[:stop] + kinds * np.arange(stop, 0, -1) + overhead
        came.append(int(costs.argmin()))
        fits = stop == len(best) - 1 or kinds * stop <= most
        best[stop] = costs[came[-1]] if fits else np.inf
    stops = [len(best) - 1]
    while came[stops[0]]:
        stops.insert(0, came[stops[0]])
    return stops


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
        stops = sorted({1, int(lengths.max()) - 1} - {0})  # behind stems, too
        try:
            cached = self.cached(item, chosen, stops)
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
            known = [rows[i][:-1] for i in batch]
            fed = [np.append(item.prefix, one) for one in known]
            read = partial(self._scorer.read, *padded(fed), first=before - 1)
            return np.concatenate(_sums(read, known, [rows[i][-1:] for i in batch]))

        def length(i: int) -> int:
            return before + len(rows[i]) - 1

        for batch, part in self._run(range(len(rows)), length, call):
            found[batch] = part
        return found

    def cached(
        self, item: Candidates, chosen: Sequence[int], stops: Sequence[int] = ()
    ) -> np.ndarray:
        """NLL sums, float64, of some candidates behind the prefix's cache.

        Those that begin alike are read once up to each of ``stops``, tokens behind the
        prefix; none given: where it pays.
        """
        rows, before = [item.rows[i] for i in chosen], len(item.prefix)
        fed = [row[:-1] for row in rows]  # the last token is predicted, not read
        room = max(map(len, fed))
        firsts = np.array([row[0] for row in rows])

        def lead(_: Sequence[int]) -> tuple[Any, np.ndarray]:
            # Layers of the plainest kind, which forget nothing: masks mind windows.
            cache: Any = DynamicCache()
            ids, _mask = padded([item.prefix])
            ask = partial(self._scorer.read, ids, None, first=before - 1, cache=cache)
            return cache.layers, _sums(ask, [item.prefix[:0]], [firsts])[0]

        ((_, (prefix, total)),) = self._run([0], lambda _: before, lead)
        sizes = [layer.keys.nbytes + layer.values.nbytes for layer in prefix]
        # One layer's at a time: each lets go of what it has put together.
        most = max(self._budget * before // (max(sizes) * (before + room)), 1)
        if room and not stops:
            kept = self._budget * before // sum(sizes)
            stops = _stops(fed, overhead=CUT * self._room.overhead, most=kept)
        past = _Past(prefix, len(rows))

        def call(
            groups: Sequence[list[int]], start: int, stop: int
        ) -> tuple[Any, list[np.ndarray]]:
            read = [fed[group[0]][start:stop] for group in groups]
            ids, mask = padded(read)
            if mask is not None:
                known = mask.new_ones((len(groups), before + start))
                mask = torch.cat([known, mask], 1)
            nexts = [
                np.array([rows[i][start + len(own)] for i in group])
                for group, own in zip(groups, read, strict=True)
            ]
            cache = past.cache(groups, keep=stop < room)
            ask = partial(self._scorer.read, ids, mask, cache=cache)
            return cache, _sums(ask, [own[1:] for own in read], nexts)

        for start, stop in pairwise([0, *stops]):
            going = (i for i, one in enumerate(fed) if len(one) > start)
            alike: dict[bytes, list[int]] = {}
            for i in going:
                alike.setdefault(fed[i][:stop].tobytes(), []).append(i)
            found = self._run(
                [*alike.values()],
                lambda group: len(fed[group[0]]),
                partial(call, start=start, stop=stop),
                most=most,
            )
            for groups, (_, sums) in found:
                for group, nll in zip(groups, sums, strict=True):
                    total[group] += nll
            if stop < room:
                past.extend([(groups, cache) for groups, (cache, _) in found])
        return total

    def _run(
        self,
        items: Sequence[T],
        length: Callable[[T], int],
        call: Callable[[list[T]], R],
        *,
        most: int | None = None,
    ) -> list[tuple[list[T], R]]:
        limits = [limit for limit in (self._rows, most) if limit is not None]
        batches = Batches(
            items, length, room=self._room, rows=min(limits, default=None)
        )
        found = list(batches.run(call, shrink=self._scorer.columns.shrink))
        self._room = batches.room  # what did not fit once is not tried again
        return found


def _unfit(model: torch.nn.Module) -> str:
    """Why a model cannot be asked behind a cache; empty if it may be tried."""
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        return "virtual tokens precede every text"
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
