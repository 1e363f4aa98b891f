"""The plain pass over many texts, slice by slice: each is in memory alone, and kept.

What was interrupted goes on behind the last slice that was kept, with the batches of
one that was not interrupted, and so with the same scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

    digests = [hashlib.sha256(text.content()).digest()[:16] for text in texts]
    if store is not None:
        every = hashlib.sha256(b"".join(digests)).hexdigest()
        store.only_for(sha256_json([every, str(batch_size), versions()]))
    # Texts of the same tokens are scored once, as the first of them.
    alike: dict[bytes, list[int]] = {}
    for number, digest in enumerate(digests):
        alike.setdefault(digest, []).append(number)
    batches = Batches(
        list(alike.values()),
        lambda numbers: texts[numbers[0]].tokens,
        room=room(torch.device(loaded.device)),
        rows=None if batch_size == "auto" else batch_size,
    )
    done, total = 0, sum(texts[numbers[0]].tokens for numbers in alike.values())

    def tell(now: int, _: int) -> None:
        if progress is not None:
            progress(done + now, total)

    for some in batches.slices(SLICE_TOKENS):
        items = [texts[numbers[0]] for numbers in some]
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
        places = {
            number: item.key
            for item, numbers in zip(items, some, strict=True)
            for number in numbers
        }
        notes = tuple(kept.remarks(keys.values()))
        yield Slice(places, kept.gather(keys, kind=Pass()), notes)
        done += sum(item.tokens for item in items)
        tell(0, total)
