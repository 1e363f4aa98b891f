"""Scoring: items through a model once, into token tables that resume.

A pass (:mod:`spark_audit.scoring.passes`) yields each item's columns as soon as they
are known; what is stored, shared among workers and resumed is decided here, alike
for all.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from spark_audit.data.encoding import Encoding
from spark_audit.errors import InputError, OutputError, one_of
from spark_audit.options import BatchSize
from spark_audit.scoring.items import AnyItem, Candidates, Item, Prompt
from spark_audit.scoring.store import Keys, Store
from spark_audit.scoring.table import COLUMN_TYPES, Pass, Task, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the tokens done and the tokens there are to do."""

Scored: TypeAlias = tuple[AnyItem, dict[str, np.ndarray]]
"""An item with the columns of its scored tokens, arrays of shape ``(n,)``."""

RunPass: TypeAlias = Callable[[Sequence[AnyItem], Task], Iterator[Scored]]
"""Scores items with one model in one pass."""

DRIFT_ROWS = 8
SHARED_HEADS = "TRANSFORMERS_SDPA_FORCE_GQA"
_MAX_NAMED = 5
WINDOW = 1024
"""Items that are scored together where batches are to be the same again."""


class PassTables(dict[Pass, TokenTable]):
    """Tables by pass, with ``notes`` on how they came about."""

    def __init__(self, tables: dict[Pass, TokenTable], notes: Sequence[str]) -> None:
        super().__init__(tables)
        self.notes = tuple(notes)


def item(key: str, encoding: Encoding, kept: tuple[int, int]) -> Item:
    """The item of an example's kept range."""
    return Item(key, *encoding.fed(kept))


def score(
    loaded: Loaded | str | Path,
    items: Sequence[AnyItem],
    *,
    passes: Sequence[Pass] = (Pass(),),
    store: Store | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | bool | None = None,
) -> PassTables:
    """Score items in every pass, once; what the store holds is not scored again.

    Parameters
    ----------
    loaded
        The checkpoint, or its path.
    items
        With keys of their own.
    passes
        Which passes to run.
    store
        Where scores are kept; ``None``: nowhere.
    batch_size
        Items a batch at most; ``auto``: by a budget of tokens. Batches are halved
        where memory ends.
    progress
        Called after every batch; ``True``: shown on stderr, as is the default where a
        person waits.

    Returns
    -------
    Scored
        Pass -> table of the items that are scored, sorted by key.

    Raises
    ------
    InputError
        If an item is longer than the model's context, holds a token that the model
        does not have, has nothing before its candidates, or shares its key.
    CheckpointError
        If logits are NaN or infinite.
    OutputError
        If the store cannot be written; what was stored before stays valid.
    """
    from spark_audit.checkpoints.open import open_checkpoint
    from spark_audit.messages import awaited
    from spark_audit.messages import progress as shown

    loaded = open_checkpoint(loaded)
    store = Store(None) if store is None else store
    tables: dict[Pass, TokenTable] = {}
    notes: dict[str, None] = {}
    progress = awaited() if progress is None else progress
    with shown(quiet=progress is not True) as show:
        if isinstance(progress, bool):
            progress = partial(show, f"scoring {loaded.name}")
        for kind in passes:
            _runner(loaded, kind)  # refuses settings before any key
            keys = store.keys(loaded, items, kind)
            score_keys(
                loaded, keys, store=store, batch_size=batch_size, progress=progress
            )
            names = keys()
            tables[kind] = store.gather(names, kind=kind)
            notes |= dict.fromkeys([*store.remarks(names.values()), *store.notes])
    return PassTables(tables, list(notes))


def score_keys(
    loaded: Loaded,
    keys: Keys,
    *,
    store: Store,
    batch_size: BatchSize = "auto",
    shard: tuple[int, int] = (0, 1),
    whole: bool = False,
    progress: Progress | None = None,
) -> None:
    """Score what the store lacks of one pass, and leave it there.

    Parameters and errors are those of :func:`score`.

    Parameters
    ----------
    keys
        What is scored, as the store names it.
    shard
        ``(i, n)``: only what falls to worker ``i`` of ``n``.
    whole
        Go through the items by length, so many at a time; where any of these is
        lacking, score them all, so that batches do not depend on what is stored. A
        score that is stored stays.
    """
    if batch_size != "auto" and batch_size < 1:
        raise InputError("must be at least 1", where="batch size")
    store.refresh()
    names, left = keys(), store.left(keys)
    if not left:
        return
    run = _runner(loaded, keys.kind)
    _check(loaded, keys.items)
    worker, workers = shard
    wanted = [item for key, item in left.items() if int(key, 16) % workers == worker]
    parts = [wanted] if wanted else []
    if whole:
        # Items with the same tokens share a key and are scored once.
        every: dict[str, AnyItem] = {}
        for item in keys.items:
            every.setdefault(names[item.key], item)
        ordered = sorted(every.values(), key=lambda item: -item.tokens)
        parts = [ordered[at : at + WINDOW] for at in range(0, len(ordered), WINDOW)]
        parts = [part for part in parts if any(names[i.key] in left for i in part)]
    total, done = sum(item.tokens for part in parts for item in part), 0

    batch = None if batch_size == "auto" else batch_size
    task = Task(keys.kind, batch, store.remark)
    try:
        for item, columns in (one for part in parts for one in run(part, task)):
            if names[item.key] in left:
                store.add(names[item.key], item.scored, columns)
            done += item.tokens
            if progress is not None:
                progress(done, total)
    except BaseException:
        # Ctrl-C too: the same command resumes from here.
        with contextlib.suppress(OutputError):
            store.flush()
        raise
    store.flush()


def _runner(loaded: Loaded, kind: Pass) -> RunPass:
    """Return what runs a pass; refuse settings that cannot be used."""
    one_of(kind.kind, "pass", COLUMN_TYPES)
    if kind.kind == "noise" and not (math.isfinite(kind.sigma) and kind.sigma > 0):
        raise InputError(
            f"sigma must be a positive number, not {kind.sigma}", where="noise pass"
        )
    if loaded.served is not None:
        from spark_audit.scoring import served

        return partial(served.run, loaded)
    file = "plain" if kind.kind in ("prompted", "nucleus") else kind.kind
    run = import_module(f"spark_audit.scoring.passes.{file}").run

    def here(items: Sequence[AnyItem], task: Task) -> Iterator[Scored]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        # Where memory is short cuDNN's attention fails without saying so, and goes on
        # failing at that shape when there is memory again (torch 2.11 on an H100).
        leave_out = SDPBackend.ERROR, SDPBackend.CUDNN_ATTENTION
        kernels = [k for k in SDPBackend.__members__.values() if k not in leave_out]
        with sdpa_kernel(kernels), ExitStack() as stack:
            model = stack.enter_context(loaded.active())
            if {each.device.type for each in model.parameters()} == {"cpu"}:
                stack.enter_context(_shared_heads())
            yield from run(loaded, model, items, task)

    return here


@contextlib.contextmanager
def _shared_heads() -> Iterator[None]:
    """Have attention read keys that several heads share where they are, uncopied.

    Transformers copies them for each head where there is a mask, which GPUs need.
    """
    if SHARED_HEADS in os.environ:  # said by the user, or by a pass that is under way
        yield
        return
    os.environ[SHARED_HEADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(SHARED_HEADS, None)


def drift(
    loaded: Loaded, items: Sequence[Item]
) -> tuple[float, tuple[float, float] | None]:
    """What a batch, and the dtype of the body, do to the NLL of texts, in nats.

    Returns
    -------
    tuple
        The largest difference between texts scored together and alone; mean and largest
        difference from a body computed in float32, or ``None``: it is in float32
        itself, or the logits are not taken from its hidden states here.
    """
    from spark_audit.scoring.passes.plain import Scorer

    _check(loaded, items)
    with loaded.active() as model:
        scorer = Scorer(loaded, model, items[0], lambda _: None)
        # One batch whatever the lengths: padding is what this is about.
        together = np.concatenate([one["nll"] for one in scorer(items)])
        alone = np.concatenate([scorer([one])[0]["nll"] for one in items])
        batch = float(np.abs(together - alone).max(initial=0.0))
        if (wide := scorer.widened()) is None:
            return batch, None
        own = np.concatenate(scorer.nll(items)).astype(np.float64)
        with wide:
            apart = np.abs(own - np.concatenate(scorer.nll(items)))
    return batch, (float(apart.mean()), float(apart.max())) if len(apart) else (0, 0)


def drift_remarks(loaded: Loaded, keys: Keys, seed: int) -> list[str]:
    """What a reader must know of batches, measured on some texts of the plain pass."""
    if keys.kind != Pass() or not len(keys.items) or loaded.served is not None:
        return []
    drawn = np.random.default_rng(seed).permutation(len(keys.items))[:DRIFT_ROWS]
    probes = [item for i in drawn if isinstance(item := keys.items[i], Item)]
    count = len(probes)
    batch, dtype = drift(loaded, probes)

    remarks = [
        f"{count} texts scored alone and in one batch differ by at most "
        f"{batch:.1e} nats per token"
    ]
    if dtype:
        remarks.append(
            f"{count} texts scored in {loaded.dtype} and in float32 differ by "
            f"{dtype[0]:.1e} nats per token in the mean, {dtype[1]:.1e} at most"
        )
    return remarks


def check_known(loaded: Loaded, items: Sequence[AnyItem]) -> None:
    """Refuse texts that a grown tokenizer reads otherwise than its base's does.

    Raises
    ------
    InputError
        With the names of the first rows.
    """
    if loaded.added is None:
        return
    wrong = {
        item.key: f"{_ITEM_NOUNS[type(item)]} {item.key!r}"
        for item in items
        if loaded.added[item.read].any()
    }
    if wrong:
        listed = ", ".join([*wrong.values()][:_MAX_NAMED])
        more = f" and {len(wrong) - _MAX_NAMED} more" if len(wrong) > _MAX_NAMED else ""
        what = f"its tokenizer reads {listed}{more} otherwise than the base's: they "
        what += "hold tokens that were added"
        fix = "leave these rows out, or give --base the checkpoint with these tokens"
        raise InputError(what, where=f"checkpoint {loaded.name!r}", fix=fix)


def _check(loaded: Loaded, items: Sequence[AnyItem]) -> None:
    """Refuse items that the model cannot read, naming the first such item."""
    seen, most = set[str](), loaded.max_positions
    for item in items:
        what, fix, ids = "", "use the checkpoint's own tokenizer", item.read
        if item.key in seen:
            what, fix = "the key occurs twice", ""
        elif isinstance(item, Candidates) and not len(item.prefix):
            what, fix = "there is no text before its candidates", ""
        elif most is not None and item.longest > most:
            what = f"{item.longest} tokens do not fit the context of {most}"
            fix = "build the manifest with this model's context, or cut the text"
        elif len(ids) and (ids.min() < 0 or ids.max() >= len(loaded.usable)):
            what = "holds a token that the model's vocabulary does not have"
        elif not loaded.usable[item.predicted].all():
            what = "holds a token at a vocabulary row that is marked as no token"
        if what:
            where = f"{_ITEM_NOUNS[type(item)]} {item.key!r}"
            raise InputError(what, where=where, fix=fix or None)
        seen.add(item.key)


_ITEM_NOUNS = {Item: "example", Candidates: "candidates", Prompt: "prompt"}


def cores() -> int:
    """Cores that this process may use: as many as torch has threads, or would have."""
    if torch := sys.modules.get("torch"):
        count: int = torch.get_num_threads()
        return count
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdecimal() else len(os.sched_getaffinity(0))


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Have torch compute with so many threads, and then as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
