"""Make the sequences of a manifest that a checkpoint reads, pass by pass.

All tokenisation of sequences happens here: an audit's plan names sequences by key, and
these functions turn keys into items of ``scoring``, with the checkpoint's tokenizer.
A further kind of items needs a function in :data:`_MAKERS` and an entry in ``ITEMS``
(``scoring/table.py``).

:func:`items_for` serves planned runs, and :func:`score` is ``sa.score`` for Python.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from spark_audit.arguments import checked_call, wrong_value
from spark_audit.checkpoints.given import GivenCheckpoint, is_open
from spark_audit.data.encoding import Encoding
from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest import example_schema, schema
from spark_audit.manifest.asked_prompts import asked_items
from spark_audit.manifest.candidate_items import candidate_items
from spark_audit.manifest.encodings import Encodings, few_labels, fitted_prefix
from spark_audit.manifest.file import check_fit, read_manifest
from spark_audit.manifest.grown_vocabulary import over_reference_tokens
from spark_audit.options import BatchSize
from spark_audit.scoring import score as scoring
from spark_audit.scoring.items import AnyItem, Item, Prompt
from spark_audit.scoring.score import Progress, Scores
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import ITEMS, Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint

MORE_TOKENS = 4
"""Tokens by which an answer may exceed its task's longest response **[ours]**."""


@checked_call
def items_for(
    manifest: schema.Manifest | str | Path,
    loaded: Checkpoint,
    plan: Mapping[Pass, Sequence[str]],
) -> dict[Pass, Sequence[Any]]:
    """Return the items that a plan names, by pass, in the order of the plan.

    Parameters
    ----------
    plan
        Pass -> keys of sequences; see :func:`spark_audit.manifest.encodings.key_of`.

    Raises
    ------
    InputError
        If the manifest was redacted, or the tokenizer gives a text another number of
        tokens than the manifest records.

    Examples
    --------
    >>> plan = {sa.Pass(): [example.id for example in rows[:2]]}
    >>> len(sa.items_for(manifest, base, plan)[sa.Pass()])
    2
    """
    if not is_open(loaded):
        raise wrong_value("loaded", loaded, "not an open checkpoint")
    encodings = Encodings(read_manifest(manifest), loaded)

    @cache
    def make_items(items_kind: str, keys: tuple[str, ...]) -> Sequence[AnyItem]:
        """Make items once: passes of one kind of items and the same keys share them."""
        return _MAKERS[items_kind](encodings, keys)

    return {
        scoring_pass: make_items(ITEMS[scoring_pass.kind], tuple(keys))
        for scoring_pass, keys in plan.items()
    }


# The overload for several checkpoints comes first: for a type checker that does not
# know transformers, a model may be anything, also a mapping.
@overload
def score(
    checkpoint: Mapping[str, GivenCheckpoint],
    source: schema.Manifest | str | Path | Sequence[AnyItem],
    *,
    passes: Sequence[Pass] = (Pass(),),
    store: Store | str | Path | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | bool | None = None,
) -> dict[str, Scores]: ...


@overload
def score(
    checkpoint: GivenCheckpoint,
    source: schema.Manifest | str | Path | Sequence[AnyItem],
    *,
    passes: Sequence[Pass] = (Pass(),),
    store: Store | str | Path | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | bool | None = None,
) -> Scores: ...


@checked_call
def score(
    checkpoint: GivenCheckpoint | Mapping[str, GivenCheckpoint],
    source: schema.Manifest | str | Path | Sequence[AnyItem],
    *,
    passes: Sequence[Pass] = (Pass(),),
    store: Store | str | Path | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | bool | None = None,
) -> Scores | dict[str, Scores]:
    """Score all examples of a manifest, or given items, on one or several checkpoints.

    ``sa.audit(scores=...)`` and each audit of ``sa.audits`` take what this returns.

    Parameters
    ----------
    checkpoint
        The checkpoint, its path, or a model in memory; ``{name: checkpoint}`` for
        several, which get these names.
    source
        A manifest or its path, for all its examples; or items that were made from one.
    passes
        Passes to run over the items.
    store
        The folder that keeps the scores, so that the same call resumes; ``None``: they
        are in memory only.
    batch_size
        Most texts of a batch; ``auto``: limited by a budget of tokens.
    progress
        Called after every batch with the tokens done and their total. ``True``:
        progress on stderr, which is the default if a person waits.

    Returns
    -------
    Scores or dict
        The scores of the checkpoint; for several ``{name: scores}``.

    Examples
    --------
    >>> scores = sa.score({"base": base, "mine": "runs/mine"}, manifest)
    >>> [*scores]
    ['base', 'mine']
    """
    if isinstance(store, str | Path):
        store = Store(Path(os.path.expanduser(store)))
    run = _Scoring(passes=passes, store=store, batch_size=batch_size, progress=progress)
    if not isinstance(checkpoint, Mapping):
        return _scores_of(checkpoint, source, run)

    scores_by_name: dict[str, Scores] = {}
    for name, given in checkpoint.items():
        scores_by_name[name] = _scores_of(given, source, run, name=name)
    return scores_by_name


@dataclass(frozen=True)
class _Scoring:
    """How texts are scored; the arguments of :func:`score` have these names."""

    passes: Sequence[Pass]
    store: Store | None
    batch_size: BatchSize
    progress: Progress | bool | None


def _scores_of(
    checkpoint: GivenCheckpoint,
    source: schema.Manifest | str | Path | Sequence[AnyItem],
    run: _Scoring,
    *,
    name: str | None = None,
) -> Scores:
    """Score a manifest, or given items, on one checkpoint.

    Parameters
    ----------
    name
        Name of the checkpoint; default: its own.
    """
    from spark_audit.checkpoints.open import as_checkpoint

    manifest_digest = ""
    items: Sequence[AnyItem]
    if isinstance(source, schema.Manifest | str | Path):
        manifest = read_manifest(source)
        manifest_digest = manifest.digest
        loaded = as_checkpoint(
            checkpoint,
            name=name,
            tokenizer_sha256=manifest.reference.tokenizer_sha256,
        )
        loaded = over_reference_tokens(manifest, loaded)
        check_fit(manifest, loaded, base_sha256=None)
        plan = {Pass(): [*manifest.by_id]}
        items = items_for(manifest, loaded, plan)[Pass()]
    else:
        loaded = as_checkpoint(checkpoint, name=name)
        items = source

    scores = scoring.score(
        loaded,
        items,
        passes=run.passes,
        store=run.store,
        batch_size=run.batch_size,
        progress=run.progress,
        measures_drift=bool(manifest_digest),
    )
    scores.manifest_digest = manifest_digest
    return scores


def plain_items(encodings: Encodings, keys: Sequence[str]) -> list[Item]:
    """Return whole examples by id, for the plain pass and for noise."""
    items = []
    for example, encoding in encodings.encoded_examples(keys):
        # kept: a token range; positions: of each id in the full tokenisation.
        ids, positions = encoding.model_input(example.kept)
        items.append(Item(example.id, ids, positions))
    return items


@dataclass(frozen=True)
class _AskedRow:
    """A row whose prompt the model continues.

    ``response`` is the expected answer. ``prompt_ids`` are the tokens before it, shape
    ``(T,)``; the first ``n_leading_special`` of them are special.
    """

    task: str
    response: str
    prompt_ids: np.ndarray
    n_leading_special: int


def row_prompts(
    rows: Iterable[tuple[Example | example_schema.ManifestExample, Encoding]],
    keys: Sequence[str],
    *,
    limit: int | None,
) -> list[Prompt]:
    """Return prompts that a model continues, each with its row's response.

    The utility audit asks them, and training after each task, to compare the model's
    answer with the response. A prompt is the joint tokenisation's tokens before the
    response: a prompt that ends in a blank tokenises differently alone.

    An answer gets :data:`MORE_TOKENS` tokens more than the task's longest response has,
    but at most half of ``limit``. A prompt that leaves no room for it is cut from its
    start; its special tokens stay.

    Parameters
    ----------
    rows
        All rows of the tasks, of both splits, with their joint tokenisation. The
        longest response of a task limits the answers to all of its prompts.
    keys
        Ids of the rows to ask, in the order of the result.
    limit
        Tokens that the model can read, including the answer; ``None``: no limit.

    Raises
    ------
    InputError
        Names the row, if it has no response or nothing precedes it.
    """
    # A blank response may have no token of its own: an answer still gets one.
    longest_response: dict[str, int] = defaultdict(lambda: 1)  # tokens, by task
    responses_by_task: dict[str, set[str]] = defaultdict(set)
    asked_rows: dict[str, _AskedRow] = {}
    ids_to_ask = {*keys}
    for row, encoding in rows:
        response_start = encoding.first_token_past(len(row.prompt))  # token index
        n_response_tokens = encoding.text_token_end - response_start
        longest_response[row.task] = max(longest_response[row.task], n_response_tokens)
        responses_by_task[row.task].add(row.answer)
        if row.id in ids_to_ask:
            asked_rows[row.id] = _AskedRow(
                task=row.task,
                response=row.answer,
                prompt_ids=encoding.ids[:response_start],
                n_leading_special=encoding.n_leading_special,
            )

    labels_by_task = few_labels(responses_by_task)
    prompts = []
    for key in keys:
        asked_row = asked_rows[key]
        if not asked_row.response.strip():
            raise InputError(
                "has no response", where=f"example {key!r}", fix="leave the row out"
            )

        # At most half the context: the rest is left to the prompt, also where a
        # response of free text is longer.
        max_new_tokens = longest_response[asked_row.task] + MORE_TOKENS
        if limit is not None:
            max_new_tokens = max(min(max_new_tokens, limit // 2), 1)

        prefix = fitted_prefix(
            asked_row.prompt_ids,
            n_leading_special=asked_row.n_leading_special,
            limit=limit,
            n_answer_tokens=max_new_tokens,
            example_id=key,
        )
        prompt = Prompt(
            key=key,
            ids=prefix,
            target=asked_row.response,
            max_new_tokens=max_new_tokens,
            labels=labels_by_task.get(asked_row.task, ()),
        )
        prompts.append(prompt)
    return prompts


def _prompt_items(encodings: Encodings, keys: Sequence[str]) -> list[Prompt]:
    """Return the prompts of rows; answers are limited by all rows of the manifest."""
    rows = encodings.encoded_examples([*encodings.manifest.by_id])
    return row_prompts(rows, keys, limit=encodings.limit)


_MAKERS: Mapping[str, Callable[..., Sequence[AnyItem]]] = {
    "texts": plain_items,
    "prompts": _prompt_items,
    "candidates": candidate_items,
    "continuations": asked_items,
}
"""Kind of items (a value of ``scoring.table.ITEMS``) -> the function that makes them
of encodings and keys."""
