"""The plain pass over many texts, slice by slice: each is in memory alone, and kept.

What was interrupted goes on behind the last slice that was kept, with the batches of
one that was not interrupted, and so with the same scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from spark_audit.provenance import sha256_json, versions
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import BatchSize, score_keys
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

SLICE_TOKENS = 32_768
"""Of a slice at least, where so many are batched together: what a death may cost."""


@dataclass(frozen=True)
class Slice:
    """Some of the texts, with their scores and what a reader must know of these.

    Attributes
    ----------
    places
        Text -> the key that the table has its scores under.
    """

    places: dict[int, str]
    table: TokenTable
    notes: tuple[str, ...]


def score_slices(
    loaded: Loaded,
    texts: Sequence[Item],
    *,
    store: Store | None = None,
    batch_size: BatchSize = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Slice]:
    """Score all texts in the plain pass; each stands in one slice.

    Parameters and errors are those of :func:`spark_audit.scoring.score.score`. Of a
    store that is this command's own no score of other texts or batches is used, of
    another one every score is.
    """
    import torch

    from spark_audit.scoring.batching import Batches, room

    digests = np.array(
        [hashlib.sha256(text.content()).digest()[:16] for text in texts], "S16"
    )
    if store is not None:
        every = hashlib.sha256(digests.tobytes()).hexdigest()
        store.only_for(sha256_json([every, str(batch_size), versions()]))
    # Texts of the same tokens are scored once, as the first of them.
    _, index, inverse = np.unique(digests, return_index=True, return_inverse=True)
    first = index[inverse]
    alike = np.argsort(first, kind="stable")
    lengths = np.array([text.tokens for text in texts], np.int64)
    leaders = np.sort(index)
    batches = Batches(
        leaders.tolist(),
        lambda number: int(lengths[number]),
        room=room(torch.device(loaded.device)),
        rows=None if batch_size == "auto" else batch_size,
    )
    done, total = 0, int(lengths[leaders].sum())

    def tell(now: int, _: int) -> None:
        if progress is not None:
            progress(done + now, total)

    for numbers in batches.slices(SLICE_TOKENS):
        items = [texts[number] for number in numbers]
        # Without a store nothing of a slice outlives it.
        kept = Store(None) if store is None else store
        named = kept.keys(loaded, items, Pass())
        score_keys(
            loaded,
            named,
            store=kept,
            batch_size=batch_size,
            whole=True,
            progress=tell,
        )
        keys = named()
        low, high = (np.searchsorted(first[alike], numbers, side) for side in _SIDES)
        places = {
            int(other): item.key
            for item, start, end in zip(items, low, high, strict=True)
            for other in alike[start:end]
        }
        notes = tuple(kept.remarks(keys.values()))
        yield Slice(places, kept.gather(keys, kind=Pass()), notes)
        done += sum(item.tokens for item in items)
        tell(0, total)


_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
