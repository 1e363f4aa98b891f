"""Scoring: items through a model once, into token tables that resume.

A pass is one file of this folder with a function ``run(loaded, items, settings, *,
batch_size, emit, note)`` that hands over each item's columns as soon as they are
known; what is stored, shared among workers and resumed is decided here, alike for all.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from spark_audit.errors import InputError, OutputError
from spark_audit.scoring.store import Store
from spark_audit.table import Pass, TokenTable
from spark_audit.tokens import Encoding

if TYPE_CHECKING:
    from spark_audit.checkpoints import Loaded

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the tokens done and the tokens there are to do."""

BatchSize: TypeAlias = int | Literal["auto"]

PASSES = {"plain": "engine"}
"""Kind of pass -> file of this folder that runs it."""


@dataclass(frozen=True)
class Item:
    """One sequence to score.

    Attributes
    ----------
    key
        What tables call it (an example id).
    ids
        Shape ``(n,)``, int32: what the model reads. The first token has no prediction.
    positions
        Shape ``(n,)``, int32: where each token stands in the full tokenisation.
    """

    key: str
    ids: np.ndarray
    positions: np.ndarray

    @property
    def scored(self) -> np.ndarray:
        """Positions of the rows that scoring gives: of all tokens but the first."""
        return self.positions[1:]

    @property
    def tokens(self) -> int:
        """Tokens that the model reads."""
        return len(self.ids)

    def content(self) -> bytes:
        """What the scores depend on besides the checkpoint; the store hashes it."""
        head = len(self.ids).to_bytes(8, "big")
        arrays = (self.ids.astype("<i4"), self.positions.astype("<i4"))
        return head + b"".join(array.tobytes() for array in arrays)


@dataclass(frozen=True)
class Candidates:
    """One set of continuations of one prefix, of which each is scored.

    Attributes
    ----------
    key
        What tables call the set; its rows are the candidates, in order.
    prefix
        Shape ``(p,)``, int32: what stands before every candidate.
    rows
        Token ids of each candidate, arrays of shape ``(n_i,)``, int32, ``n_i >= 1``.
    """

    key: str
    prefix: np.ndarray
    rows: tuple[np.ndarray, ...]

    @property
    def scored(self) -> np.ndarray:
        """One row a candidate."""
        return np.arange(len(self.rows), dtype=np.int32)

    @property
    def tokens(self) -> int:
        """Tokens that a model reads when it keeps the prefix."""
        return len(self.prefix) + sum(map(len, self.rows))

    def content(self) -> bytes:
        """What the scores depend on besides the checkpoint; the store hashes it."""
        return b"".join(
            len(ids).to_bytes(8, "big") + ids.astype("<i4").tobytes()
            for ids in (self.prefix, *self.rows)
        )


@dataclass(frozen=True)
class Prompt:
    """One prompt that is continued greedily, and the answer it is held against.

    Attributes
    ----------
    key
        What tables call it (an example id); it has one row.
    ids
        Shape ``(n,)``, int32: what the model reads first.
    target
        The expected answer. No text is stored, only whether it came.
    max_new_tokens
        Tokens after which generation stops anyway.
    """

    key: str
    ids: np.ndarray
    target: str
    max_new_tokens: int

    @property
    def scored(self) -> np.ndarray:
        """One row a prompt."""
        return np.zeros(1, dtype=np.int32)

    @property
    def tokens(self) -> int:
        """Tokens read and, at most, written."""
        return len(self.ids) + self.max_new_tokens

    def content(self) -> bytes:
        """What the outcome depends on besides the checkpoint; the store hashes it."""
        head = len(self.ids).to_bytes(8, "big") + self.max_new_tokens.to_bytes(4, "big")
        return head + self.ids.astype("<i4").tobytes() + self.target.encode()


AnyItem: TypeAlias = "Item | Candidates | Prompt"
"""What a pass scores: it has a key, rows, a size in tokens and a content."""


class Scored(dict[Pass, TokenTable]):
    """Tables by pass, with ``notes`` on how they came about."""

    def __init__(self, tables: dict[Pass, TokenTable], notes: Sequence[str]) -> None:
        super().__init__(tables)
        self.notes = tuple(notes)


def item(key: str, encoding: Encoding, kept: tuple[int, int]) -> Item:
    """The item of an example's kept range."""
    return Item(key, *encoding.fed(kept))


def score(
    loaded: Loaded,
    items: Sequence[Item],
    *,
    passes: Sequence[Pass] = (Pass(),),
    store: Store | None = None,
    batch_size: BatchSize = "auto",
    shard: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> Scored:
    """Score items in every pass, once; what the store holds is not scored again.

    Parameters
    ----------
    loaded
        The checkpoint.
    items
        With keys of their own.
    passes
        Which passes to run.
    store
        Where scores are kept; ``None``: nowhere.
    batch_size
        Items a batch at most; ``auto``: by a budget of tokens. Batches are halved
        where memory ends.
    shard
        ``(i, n)``: this is worker ``i`` of ``n``; the items of others are in the
        tables where the store already has them.
    progress
        Called after every batch.

    Returns
    -------
    Scored
        Pass -> table of the items that are scored, sorted by key.

    Raises
    ------
    InputError
        If an item is longer than the model's context, holds a token that the model
        does not have, or shares its key with another.
    CheckpointError
        If logits are NaN or infinite.
    OutputError
        If the store cannot be written; what was stored before stays valid.
    """
    store = Store(None) if store is None else store
    tables: dict[Pass, TokenTable] = {}
    notes: dict[str, None] = {}
    for kind in passes:
        keys, remarks = score_keys(
            loaded,
            items,
            kind=kind,
            store=store,
            batch_size=batch_size,
            shard=shard,
            progress=progress,
        )
        tables[kind] = store.gather(keys, kind=kind)
        notes |= dict.fromkeys(remarks)
    return Scored(tables, list(notes))


def score_keys(
    loaded: Loaded,
    items: Sequence[Item],
    *,
    kind: Pass,
    store: Store,
    batch_size: BatchSize = "auto",
    shard: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> tuple[dict[str, str], list[str]]:
    """Score what the store lacks of one pass, and leave it there.

    Parameters and errors are those of :func:`score`.

    Returns
    -------
    tuple
        Item key -> store key for all items, and notes on how the scores came about.
        ``store.gather(keys, kind=kind)`` is the table.
    """
    worker, workers = shard
    if not 0 <= worker < workers:
        raise InputError(f"there is no worker {worker} of {workers}", where="shard")
    if batch_size != "auto" and batch_size < 1:
        raise InputError("must be at least 1", where="batch size")
    _check(loaded, items)
    run = _runner(kind)
    store.refresh()
    keys = store.keys(loaded, items, kind)
    # Items with the same tokens share a key and are scored once.
    todo = {
        keys[item.key]: item
        for item in items
        if keys[item.key] not in store and int(keys[item.key], 16) % workers == worker
    }
    total, done = sum(len(item.ids) for item in todo.values()), 0
    store_key = {item.key: key for key, item in todo.items()}

    def emit(item: Item, columns: dict[str, np.ndarray]) -> None:
        nonlocal done
        store.add(store_key[item.key], item.scored, columns)
        done += len(item.ids)
        if progress is not None:
            progress(done, total)

    try:
        run(
            loaded,
            list(todo.values()),
            kind,
            batch_size=None if batch_size == "auto" else batch_size,
            emit=emit,
            note=store.remark,
        )
    except BaseException:
        # Ctrl-C too: the same command resumes from here.
        with contextlib.suppress(OutputError):
            store.flush()
        raise
    store.flush()
    return keys, [*store.remarks(keys.values()), *store.notes]


def missing(
    loaded: Loaded, items: Sequence[Item], passes: Sequence[Pass], store: Store
) -> int:
    """How many scores of items in passes the store does not hold yet."""
    store.refresh()
    return sum(
        key not in store
        for kind in passes
        for key in store.keys(loaded, items, kind).values()
    )


def drift(loaded: Loaded, items: Sequence[Item], *, k: int = 8, seed: int = 0) -> float:
    """Largest difference in NLL, in nats, between texts scored together and alone.

    Parameters
    ----------
    k
        How many of the items are scored both ways.
    seed
        Draws them.
    """
    if not items:
        raise InputError("there is no text to score", where="drift")
    from spark_audit.scoring.engine import Scorer

    _check(loaded, items)
    drawn = np.random.default_rng(seed).permutation(len(items))[:k]
    chosen = [items[i] for i in drawn]
    with loaded.active() as model:
        scorer = Scorer(loaded, model, chosen[0], lambda _: None)
        # One batch whatever the lengths: padding is what this is about.
        together = scorer(chosen)
        alone = [scorer([one])[0] for one in chosen]
    pairs = zip(together, alone, strict=True)
    apart = [np.abs(a["nll"] - b["nll"]) for a, b in pairs if len(a["nll"])]
    return max((float(one.max()) for one in apart), default=0.0)


def cost(loaded: Loaded, items: Sequence[Item]) -> dict[str, int | float]:
    """What the plain pass over items takes, for a dry run.

    Returns
    -------
    dict
        ``items``, ``tokens``, ``memory_bytes`` (an estimate of the peak beside the
        weights) and ``seconds`` (from a sample that is scored to take the time).
    """
    from spark_audit.scoring.engine import memory_bytes

    _check(loaded, items)
    tokens = sum(len(item.ids) for item in items)
    found: dict[str, int | float] = {"items": len(items), "tokens": tokens}
    longest = max((len(item.ids) for item in items), default=0)
    found["memory_bytes"] = memory_bytes(loaded, longest, tokens)
    sample = sorted(items, key=lambda item: len(item.ids))
    sample = sample[len(sample) // 2 :][:4]
    run, size = _runner(Pass()), max(sum(len(item.ids) for item in sample), 1)
    seconds = 0.0
    for _ in range(2 if sample else 0):  # the first time also fills caches
        start = time.perf_counter()
        run(
            loaded,
            sample,
            Pass(),
            batch_size=None,
            emit=lambda *_: None,
            note=lambda _: None,
        )
        seconds = time.perf_counter() - start
    found["seconds"] = round(seconds * tokens / size, 1)
    return found


def _runner(kind: Pass) -> Callable[..., None]:
    if kind.kind not in PASSES:
        raise InputError(
            f"unknown pass {kind.kind!r}", fix=f"choose one of: {', '.join(PASSES)}"
        )
    module = importlib.import_module(f"spark_audit.scoring.{PASSES[kind.kind]}")
    run: Callable[..., None] = module.run
    return run


def _check(loaded: Loaded, items: Sequence[Item]) -> None:
    """Refuse items that the model cannot read, naming the first such item."""
    seen: set[str] = set()
    for item in items:
        where = f"example {item.key!r}"
        if item.key in seen:
            raise InputError("the key stands twice", where=where)
        seen.add(item.key)
        if len(item.ids) != len(item.positions):
            raise InputError(
                f"{len(item.ids)} tokens have {len(item.positions)} positions",
                where=where,
            )
        longest = loaded.max_positions
        if longest is not None and len(item.ids) > longest:
            raise InputError(
                f"{len(item.ids)} tokens do not fit the context of {longest}",
                where=where,
                fix="build the manifest with this model's context, or cut the text",
            )
        ids = item.ids
        if len(ids) and (ids.min() < 0 or ids.max() >= len(loaded.usable)):
            raise InputError(
                "holds a token that the model's vocabulary does not have",
                where=where,
                fix="use the checkpoint's own tokenizer",
            )
        if not loaded.usable[ids[1:]].all():
            raise InputError(
                "holds a token at a vocabulary row that is marked as no token",
                where=where,
                fix="use the checkpoint's own tokenizer",
            )
