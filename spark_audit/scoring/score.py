"""Scoring: read items with a model once, into token tables that can resume.

A pass (:mod:`spark_audit.scoring.passes`) yields each item's columns as soon as they
are known. This module stores them, shares work among workers and resumes it, in the
same way for all passes.

:func:`score` is for Python, and :func:`score_items` for one pass of a planned run.
Before a model is switched on, items are checked (``item_checks.py``, where a further
refusal belongs) and settings (:func:`pass_runner`). ``drift.py`` and ``added_rows.py``
measure what readers of the figures should know.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from spark_audit.cells_html import cell_html, counted, short_repr
from spark_audit.data.encoding import Encoding
from spark_audit.errors import InputError, OutputError, one_of
from spark_audit.options import BatchSize
from spark_audit.scoring.item_checks import check_readable
from spark_audit.scoring.items import AnyItem, Item
from spark_audit.scoring.store import PassItems, Store
from spark_audit.scoring.table import COLUMN_TYPES, Pass, PassSettings, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.checkpoints.given import GivenCheckpoint

Progress: TypeAlias = Callable[[int, int], None]
"""A callback with the tokens done and the total of tokens."""

ItemAndColumns: TypeAlias = tuple[AnyItem, dict[str, np.ndarray]]
"""An item with the columns of its scored tokens, arrays of shape ``(n,)``."""

RunPass: TypeAlias = Callable[
    [Sequence[AnyItem], PassSettings], Iterator[ItemAndColumns]
]
"""A function that scores items with one model in one pass."""

SHARED_HEADS = "TRANSFORMERS_SDPA_FORCE_GQA"
"""Environment variable that stops transformers from copying shared keys and values."""

WINDOW = 1024
"""Items in a window whose batches are always the same; see :func:`score_items`."""


class Scores(dict[Pass, TokenTable]):
    """The scores of one checkpoint: pass -> table, as audits read them.

    Attributes
    ----------
    checkpoint
        Name of the checkpoint.
    model_id
        Hash of everything a score depends on besides the token ids; see
        :class:`~spark_audit.checkpoints.checkpoint.Checkpoint`.
    manifest_digest
        Digest of the manifest whose examples were scored; empty: the items were made
        otherwise.
    notes
        Notes on how the scores were made.

    Examples
    --------
    >>> scores = sa.score(base, manifest)
    >>> isinstance(scores, sa.Scores), scores.checkpoint
    (True, 'base')
    """

    def __init__(
        self,
        tables: Mapping[Pass, TokenTable],
        *,
        checkpoint: str,
        model_id: str,
        manifest_digest: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(tables)
        self.checkpoint = checkpoint
        self.model_id = model_id
        self.manifest_digest = manifest_digest
        self.notes = tuple(notes)

    def __repr__(self) -> str:
        """Return the sizes alone: scores of tokens reveal as much as their text."""
        sizes = {
            scoring_pass.kind: f"{counted(len(table.ids), 'text')}, "
            f"{counted(len(table), 'token')}"
            for scoring_pass, table in self.items()
        }
        return short_repr(self, self.checkpoint, **sizes)

    def _repr_html_(self) -> str:
        """Return the sizes as a notebook shows them."""
        rows = [
            (scoring_pass.kind, len(table.ids), len(table))
            for scoring_pass, table in self.items()
        ]
        title = f"Scores of {self.checkpoint}"
        header = ["pass", "texts", "tokens"]
        return cell_html(title, header, rows, note=" ".join(self.notes))


def item(key: str, encoding: Encoding, kept: tuple[int, int]) -> Item:
    """Return the scoring item of an example's kept range."""
    ids, positions = encoding.model_input(kept)
    return Item(key, ids, positions)


def score(
    loaded: GivenCheckpoint,
    items: Sequence[AnyItem],
    *,
    passes: Sequence[Pass] = (Pass(),),
    store: Store | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | bool | None = None,
    measures_drift: bool = False,
) -> Scores:
    """Score items once in every pass, except for scores that are already stored.

    Parameters
    ----------
    loaded
        The checkpoint, which is taken as it is, or its path.
    items
        Items to score, each with its own key.
    passes
        Passes to run.
    store
        Store of the scores; ``None``: in memory only.
    batch_size
        Most items of a batch; ``auto``: limited by a budget of tokens. Batches are
        halved when memory runs out.
    progress
        Called after every batch. ``True``: progress on stderr, which is the default if
        a person waits.
    measures_drift
        Whether notes say how much batches, the dtype and added tokens change scores, as
        those of a report do.

    Returns
    -------
    Scores
        Pass -> table of its items, sorted by key, with notes on how the scores were
        made.

    Raises
    ------
    InputError
        If an item is longer than the model's context, holds a token that the model
        does not have, has nothing before its candidates, or shares its key.
    CheckpointError
        If logits are NaN or infinite.
    OutputError
        If the store cannot be written. Earlier scores stay valid.
    """
    from spark_audit.checkpoints.given import is_open
    from spark_audit.checkpoints.open import as_checkpoint
    from spark_audit.messages import is_watched
    from spark_audit.messages import progress as progress_display
    from spark_audit.scoring.drift import score_remarks

    # Whoever opened it has hashed it.
    if not is_open(loaded):
        loaded = as_checkpoint(loaded)
    store = Store(None) if store is None else store
    if progress is None:
        progress = is_watched()
    is_shown = progress is True
    tables: dict[Pass, TokenTable] = {}
    notes: dict[str, None] = {}  # the keys, in order and each once

    with progress_display(quiet=not is_shown) as show:
        if isinstance(progress, bool):
            # With False, nothing is shown, because `show` is quiet.
            callback: Progress = partial(show, f"scoring {loaded.name}")
        else:
            callback = progress

        for scoring_pass in passes:
            # Settings are checked before any key is computed.
            pass_runner(loaded, scoring_pass)
            pass_items = store.pass_items(loaded, items, scoring_pass)
            if measures_drift and store.left(pass_items):
                for remark in score_remarks(loaded, pass_items, seed=0):
                    store.remark(remark)
            score_items(
                loaded,
                pass_items,
                store=store,
                batch_size=batch_size,
                progress=callback,
            )
            store_keys = pass_items.store_keys()
            tables[scoring_pass] = store.gather(store_keys, scoring_pass=scoring_pass)

            # Remarks are stored with the scores that they concern. Notes are on parts
            # of the store that could not be read.
            notes |= dict.fromkeys(store.remarks(pass_items))
            notes |= dict.fromkeys(store.notes)
    return Scores(
        tables,
        checkpoint=loaded.name,
        model_id=loaded.model_id,
        notes=list(notes),
    )


def score_items(
    loaded: Checkpoint,
    pass_items: PassItems,
    *,
    store: Store,
    batch_size: BatchSize = "auto",
    shard: tuple[int, int] = (0, 1),
    whole: bool = False,
    progress: Progress | None = None,
) -> None:
    """Score the items of one pass that the store lacks, and add the scores to it.

    Parameters and errors are those of :func:`score`.

    Parameters
    ----------
    pass_items
        The items to be scored, with their store keys.
    shard
        ``(i, n)``: only the share of worker ``i`` of ``n``, from 0; not with ``whole``.
    whole
        Go through the items by length, :data:`WINDOW` at a time. Where the store lacks
        any item of a window, the whole window is scored, so that batches do not depend
        on what is stored. Scores that are stored already stay as they are.
    """
    if batch_size != "auto" and batch_size < 1:
        raise InputError("must be at least 1", where="batch size")
    store.refresh()
    left = store.left(pass_items)  # store key -> item
    if not left:
        return

    # Settings and items are checked before the model is switched on.
    run = pass_runner(loaded, pass_items.scoring_pass)
    check_readable(loaded, pass_items.items)

    # Either whole windows, one after the other, or this worker's share at once.
    store_keys = pass_items.store_keys()
    if whole:
        windows = _windows_to_score(left, pass_items.items, store_keys)
    else:
        share = _share_of_worker(left, shard)
        windows = [share] if share else []

    settings = PassSettings(
        scoring_pass=pass_items.scoring_pass,
        batch_size=None if batch_size == "auto" else batch_size,
        # A note of the pass is stored as a remark, with the rows that are pending.
        note=store.remark,
    )
    n_tokens_done = 0
    n_tokens = 0
    for window in windows:
        n_tokens += sum(window_item.n_tokens for window_item in window)

    try:
        for window in windows:
            for scored_item, columns in run(window, settings):
                store_key = store_keys[scored_item.key]
                # A window may contain stored items: their old scores stay.
                if store_key in left:
                    store.add(store_key, scored_item.row_positions, columns)
                n_tokens_done += scored_item.n_tokens
                if progress is not None:
                    progress(n_tokens_done, n_tokens)
    except BaseException:
        # Also after Ctrl-C, so that the same command resumes from here.
        with contextlib.suppress(OutputError):
            store.flush()
        raise
    store.flush()


def _share_of_worker(
    left: Mapping[str, AnyItem], shard: tuple[int, int]
) -> list[AnyItem]:
    """Return the items of one worker, which their store keys decide.

    Parameters
    ----------
    left
        Store key (hexadecimal) -> item, of the items that are not stored.
    shard
        Number of the worker, from 0, and number of workers.
    """
    worker, n_workers = shard
    share = []
    for store_key, left_item in left.items():
        if int(store_key, 16) % n_workers == worker:
            share.append(left_item)
    return share


def _windows_to_score(
    left: Mapping[str, AnyItem], items: Sequence[AnyItem], store_keys: Mapping[str, str]
) -> list[list[AnyItem]]:
    """Return the windows of items, longest first, in which some item is not stored.

    Of items with the same content, which share a store key, only the first is taken.

    Parameters
    ----------
    left
        Store key -> item, of the items that are not stored.
    items
        All items of the pass.
    store_keys
        Item key -> store key, of all items.
    """
    by_store_key: dict[str, AnyItem] = {}
    for pass_item in items:
        by_store_key.setdefault(store_keys[pass_item.key], pass_item)

    longest_first = sorted(
        by_store_key.values(), key=lambda pass_item: -pass_item.n_tokens
    )
    windows = []
    for start in range(0, len(longest_first), WINDOW):
        window = longest_first[start : start + WINDOW]
        if any(store_keys[pass_item.key] in left for pass_item in window):
            windows.append(window)
    return windows


def pass_runner(loaded: Checkpoint, scoring_pass: Pass) -> RunPass:
    """Return the function that runs a pass; refuse settings that cannot be used."""
    kind = scoring_pass.kind
    sigma = scoring_pass.sigma
    one_of(kind, "pass", COLUMN_TYPES)
    if kind == "noise" and not (math.isfinite(sigma) and sigma > 0):
        raise InputError(
            f"sigma must be a positive number, not {sigma}", where="noise pass"
        )

    if loaded.served is not None:
        from spark_audit.scoring import served

        return partial(served.run, loaded)

    # These two passes are the plain pass over other items, or with more columns.
    file = "plain" if kind in ("prompted", "nucleus") else kind
    run = import_module(f"spark_audit.scoring.passes.{file}").run

    def run_here(
        items: Sequence[AnyItem], settings: PassSettings
    ) -> Iterator[ItemAndColumns]:
        with _attention_kernels(), ExitStack() as stack:
            model = stack.enter_context(loaded.active())
            # GPUs need keys copied for each head, and a model may use both kinds of
            # devices.
            devices = {parameter.device.type for parameter in model.parameters()}
            if devices == {"cpu"}:
                stack.enter_context(_shared_heads())
            yield from run(loaded, model, items, settings)

    return run_here


def _attention_kernels() -> contextlib.AbstractContextManager[None]:
    """Return a context in which attention uses any kernel except cuDNN's.

    If memory is short, cuDNN's attention fails silently, and keeps failing at that
    shape even when there is memory again (torch 2.11 on an H100).
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    left_out = (SDPBackend.ERROR, SDPBackend.CUDNN_ATTENTION)
    kernels = [
        kernel for kernel in SDPBackend.__members__.values() if kernel not in left_out
    ]
    context: contextlib.AbstractContextManager[None] = sdpa_kernel(kernels)
    return context


@contextlib.contextmanager
def _shared_heads() -> Iterator[None]:
    """Let attention read keys that heads share in place, without copies.

    With a mask, transformers otherwise copies the keys for each head, which only GPUs
    need.
    """
    # Already set, by the user or by a pass that is still running: leave it.
    if SHARED_HEADS in os.environ:
        yield
        return

    os.environ[SHARED_HEADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(SHARED_HEADS, None)
