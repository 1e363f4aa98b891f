"""Scoring: items through a model once, into token tables that resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from spark_audit.table import Pass, TokenTable
from spark_audit.tokens import Encoding

if TYPE_CHECKING:
    from spark_audit.checkpoints import Loaded
    from spark_audit.scoring.store import Store

Progress = Callable[[int, int], None]
BatchSize = int | Literal["auto"]


@dataclass(frozen=True)
class Item:
    """One sequence to score.

    ``ids`` (int32) is what the model reads, ``positions`` (int32, as long) where each
    token stands in the full tokenisation. The first token has no prediction.
    """

    key: str
    ids: np.ndarray
    positions: np.ndarray


def item(key: str, encoding: Encoding, kept: tuple[int, int]) -> Item:
    """The item of an example's kept range."""
    return Item(key, *encoding.fed(kept))


def score_keys(
    loaded: Loaded,
    items: Sequence[Item],
    *,
    kind: Pass,
    store: Store,
    batch_size: BatchSize | str = "auto",
    shard: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> tuple[dict[str, str], list[str]]:
    from spark_audit.scoring.engine import run_plain

    keys = store.keys(loaded, items, kind)
    return keys, run_plain(
        loaded,
        items,
        keys,
        store=store,
        batch_size=batch_size,
        shard=shard,
        progress=progress,
    )


def drift(loaded: Loaded, items: Sequence[Item], *, k: int = 8, seed: int = 0) -> float:
    from spark_audit.scoring.engine import plain_columns

    rng = np.random.default_rng(seed)
    chosen = [items[i] for i in rng.permutation(len(items))[:k]]
    chosen.sort(key=lambda i: -len(i.ids))
    with loaded.active() as m:
        together = plain_columns(loaded, m, chosen)
        alone = [plain_columns(loaded, m, [i])[0] for i in chosen]
    return max(
        (
            float(np.abs(a["nll"] - b["nll"]).max())
            for a, b in zip(together, alone)
            if len(a["nll"])
        ),
        default=0.0,
    )


def score(
    loaded,
    items,
    *,
    passes=(Pass(),),
    store=None,
    batch_size="auto",
    shard=(0, 1),
    progress=None,
):
    import tempfile
    from pathlib import Path
    from spark_audit.scoring.store import Store

    if store is None:
        with tempfile.TemporaryDirectory() as folder:
            return score(
                loaded,
                items,
                passes=passes,
                store=Store(Path(folder)),
                batch_size=batch_size,
                shard=shard,
                progress=progress,
            )
    out = {}
    for p in passes:
        keys, _ = score_keys(
            loaded,
            items,
            kind=p,
            store=store,
            batch_size=batch_size,
            shard=shard,
            progress=progress,
        )
        out[p] = store.gather(keys, kind=p)
    return out


def cost(loaded, items):
    return {"items": len(items), "tokens": sum(len(i.ids) for i in items)}
