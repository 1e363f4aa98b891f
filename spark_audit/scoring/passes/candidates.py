"""The candidates pass: score continuations of a prefix that is read once.

The model reads the prefix alone, and its keys and values are then used for every
candidate. Whole sets are read instead if the model caches something other than keys and
values, or if the first set gets different scores when it is read whole.
:class:`_Readings` has both ways; a further reason against the cache goes into
:func:`_reason_against_cache`.

Each candidate has one row: the sum and the mean of NLL over its tokens, nats.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
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
from spark_audit.scoring.table import PassSettings

if TYPE_CHECKING:
    from transformers import Cache

    from spark_audit.checkpoints.checkpoint import Checkpoint

CPU_CACHE = 2**28
GPU_CACHE = 2**32
"""Most bytes of a prefix's keys and values, repeated for a batch, by device."""

R = TypeVar("R")
"""Result of a function for a batch."""


def run(
    loaded: Checkpoint,
    model: torch.nn.Module,
    items: Sequence[Candidates],
    settings: PassSettings,
) -> Iterator[tuple[Candidates, dict[str, np.ndarray]]]:
    """Yield each set with ``nll_sum`` and ``nll_mean``, one row per candidate, in nats.

    The memory of the cache and the budget of tokens limit the candidates of a batch.
    """
    # The longest set comes first: if the check passes for it, it passes for shorter
    # ones, even with attention windows.
    items = sorted(items, key=lambda item: -item.n_context_tokens)
    scorer = Scorer(loaded, model, items[0].example, settings.note)
    readings = _Readings(scorer, settings.batch_size)

    # The check needs a set with tokens that are read after the prefix.
    probe = next(
        (item for item in items if any(len(row) > 1 for row in item.continuations)),
        items[0],
    )
    # Without a reason against the cache, it is used.
    reason = _reason_against_cache(model) or readings.verify(probe)
    if reason:
        settings.note(f"candidates are read whole, each with its prefix: {reason}")

    read = readings.whole if reason else readings.cached
    for item in items:
        nll_sums = read(item, range(len(item.continuations)))  # (candidates,), nats
        check_finite(nll_sums, where=f"candidates {item.key!r}")

        n_tokens = np.array([len(row) for row in item.continuations])  # (candidates,)
        columns = {
            "nll_sum": nll_sums.astype(np.float32),
            "nll_mean": (nll_sums / n_tokens).astype(np.float32),
        }
        yield item, columns


class _Repeated(DynamicLayer):  # type: ignore[misc]
    """Keys and values of a prefix, in front of those of each row of a batch."""

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
        """Return keys and values of prefix and new tokens; keep only the prefix.

        Shapes are ``(B, heads, t, d)`` for the input and ``(B, heads, p + t, d)`` for
        the output.
        """
        n_rows = len(key_states)
        prefix_keys = self.keys.expand(n_rows, -1, -1, -1)  # (B, heads, p, d)
        prefix_values = self.values.expand(n_rows, -1, -1, -1)
        keys = torch.cat([prefix_keys, key_states], 2)  # (B, heads, p + t, d)
        values = torch.cat([prefix_values, value_states], 2)
        return keys, values


def _nll_sums(
    scorer: Scorer,
    ids: torch.Tensor,
    mask: torch.Tensor | None,
    rows: Sequence[np.ndarray],
    *,
    first: int = 0,
    cache: Cache | None = None,
) -> np.ndarray:
    """Return the sum of each row's NLL, ``(B,)``, float64.

    Parameters are those of :meth:`spark_audit.scoring.passes.plain.Scorer.read`, except
    for ``rows``: the targets of each row of the batch, from its position ``first`` on.
    """
    targets, _ = padded(rows)  # (B, w)
    lengths = torch.tensor([len(row) for row in rows])  # (B,)
    figures = scorer.read(
        ids, mask, targets[..., None], lengths, first=first, cache=cache
    )
    nll = figures[:, 0].double().numpy()  # (sum(lengths),), row after row
    first_of_row = (lengths.cumsum(0) - lengths).numpy()  # (B,)
    return np.add.reduceat(nll, first_of_row)


class _Readings:
    """Two ways to read a set: with its prefix cached, and as whole sequences.

    Parameters
    ----------
    max_rows
        The user's limit of candidates in a batch; ``None``: limited by tokens.
    """

    def __init__(self, scorer: Scorer, max_rows: int | None) -> None:
        self._scorer = scorer
        self._max_rows = max_rows
        self._room = scorer.room
        on_cpu = scorer.device.type == "cpu"
        self._max_cache_bytes = CPU_CACHE if on_cpu else GPU_CACHE

    def verify(self, item: Candidates) -> str:
        """Return why the cache must not be used; empty if both ways agree on a few.

        These are the first, the longest and the last candidate of a set.
        """
        lengths = np.array([len(row) for row in item.continuations])
        chosen = sorted({0, int(lengths.argmax()), len(lengths) - 1})
        whole = self.whole(item, chosen)
        try:
            cached = self.cached(item, chosen)
        # A model without such a cache may raise any error.
        except Exception as error:
            if isinstance(error, SparkError) or out_of_memory(error):
                raise
            return f"its forward does not take a cache ({type(error).__name__})"
        # This error has its own message, whichever way the candidates are read.
        if not np.isfinite(whole).all():
            return ""

        # In half precision the two ways are rounded differently. A sum counts as one
        # nat per token at least: likely candidates need not agree to more digits.
        bound = 1e-4 if self._scorer.exact else 0.02
        size = np.maximum(whole, lengths[chosen])  # (chosen,), nats
        difference = np.abs(cached - whole) / size
        largest = difference.max()
        if largest <= bound:
            return ""
        return f"behind a cached prefix a score is off by {largest:.1g} of its size"

    def whole(self, item: Candidates, chosen: Sequence[int]) -> np.ndarray:
        """Return NLL sums, float64, in nats, of some candidates, each read whole.

        Parameters
        ----------
        chosen
            Indices of the candidates in the set.

        Returns
        -------
        numpy.ndarray
            Shape ``(chosen,)``, in that order.
        """
        rows = [item.continuations[i] for i in chosen]
        n_prefix = len(item.prefix)
        total = np.zeros(len(rows))  # (chosen,)

        def sums_of_batch(batch: Sequence[int]) -> np.ndarray:
            # The last token is only predicted, not read.
            texts = [np.append(item.prefix, rows[i][:-1]) for i in batch]
            ids, mask = padded(texts)
            targets = [rows[i] for i in batch]
            return _nll_sums(self._scorer, ids, mask, targets, first=n_prefix - 1)

        def length(i: int) -> int:
            return n_prefix + len(rows[i]) - 1

        for batch, sums in self._run(range(len(rows)), length, sums_of_batch):
            total[batch] = sums
        return total

    def cached(self, item: Candidates, chosen: Sequence[int]) -> np.ndarray:
        """Return NLL sums of some candidates, as :meth:`whole`, with the prefix cached.

        The prefix predicts the first token of each candidate. The other tokens are read
        with the cache.
        """
        rows = [item.continuations[i] for i in chosen]
        n_prefix = len(item.prefix)
        prefix = torch.from_numpy(item.prefix.astype(np.int64))[None]  # (1, p)
        first_tokens = torch.tensor([[[int(row[0]) for row in rows]]])  # (1, 1, chosen)

        def read_prefix(_: Sequence[int]) -> tuple[DynamicCache, np.ndarray]:
            # Plain layers forget nothing, and masks handle attention windows.
            cache = DynamicCache()
            nll = self._scorer.read(
                prefix,
                None,
                first_tokens,
                cache=cache,
                lengths=torch.tensor([1]),
                first=n_prefix - 1,
            )
            cache.layers = [_Repeated(layer) for layer in cache.layers]
            return cache, nll[0].double().numpy()

        # A batch of one item, so that a lack of memory is handled as usual.
        ((_, (cache, total)),) = self._run([0], lambda _: n_prefix, read_prefix)
        longer = [i for i, row in enumerate(rows) if len(row) > 1]
        if not longer:
            return total

        # Only one layer at a time joins prefix and candidates, so its memory counts.
        n_bytes = max(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        # A row of a batch takes n_bytes / n_prefix bytes for each of its tokens.
        longest = n_prefix + max(len(row) for row in rows) - 1
        most = max(self._max_cache_bytes * n_prefix // (n_bytes * longest), 1)

        def sums_of_batch(batch: Sequence[int]) -> np.ndarray:
            # The mask covers the cached prefix, too.
            ids, mask = padded([rows[i][:-1] for i in batch])  # (B, T)
            if mask is not None:
                prefix_mask = mask.new_ones((len(batch), n_prefix))
                mask = torch.cat([prefix_mask, mask], 1)  # (B, p + T)
            targets = [rows[i][1:] for i in batch]
            return _nll_sums(self._scorer, ids, mask, targets, cache=cache)

        def length(i: int) -> int:
            return len(rows[i]) - 1

        for batch, sums in self._run(longer, length, sums_of_batch, most=most):
            total[batch] += sums
        return total

    def _run(
        self,
        indices: Sequence[int],
        length: Callable[[int], int],
        call: Callable[[list[int]], R],
        *,
        most: int | None = None,
    ) -> list[tuple[list[int], R]]:
        """Call a function on batches of indices; return each batch with its result.

        Parameters
        ----------
        most
            Most items of a batch, besides the user's own limit.
        """
        limits = [limit for limit in (self._max_rows, most) if limit is not None]
        batches = Batches(
            indices, length, room=self._room, rows=min(limits, default=None)
        )
        results = list(batches.run(call, shrink=self._scorer.columns.shrink))
        # A size that did not fit once is not tried again.
        self._room = batches.room
        return results


def _reason_against_cache(model: torch.nn.Module) -> str:
    """Return why a model cannot be used with a cache; empty if it may be tried."""
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        return "virtual tokens precede every text"

    base = unwrapped(model)
    if "past_key_values" not in inspect.signature(base.forward).parameters:
        return "its forward takes no cache"

    config = base.config.get_text_config()
    layer_types = {type(layer) for layer in DynamicCache(config=config).layers}
    if base._is_stateful or layer_types - {DynamicLayer, DynamicSlidingWindowLayer}:
        return "it keeps more than keys and values"

    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        return "its rotations depend on the text's length"
    return ""
