"""Make the sequences of a manifest that a checkpoint reads, pass by pass.

All tokenisation of sequences happens here: an audit's plan names sequences by key, and
these functions turn keys into items of ``scoring``, with the checkpoint's tokenizer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit.data.encoding import Encoding
from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest import schema
from spark_audit.manifest.asked_prompts import asked_items
from spark_audit.manifest.candidate_items import candidate_items
from spark_audit.manifest.encodings import Encodings, few_labels, fitted_prefix
from spark_audit.manifest.file import load_manifest
from spark_audit.scoring import score as scoring
from spark_audit.scoring.items import AnyItem, Item, Prompt
from spark_audit.scoring.score import PassTables
from spark_audit.scoring.table import ITEMS, Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

MORE_TOKENS = 4
"""Tokens by which an answer may exceed its task's longest label **[ours]**."""


def items_for(
    manifest: schema.Manifest | str | Path,
    loaded: Loaded,
    plan: Mapping[Pass, Sequence[str]],
) -> dict[Pass, Sequence[Any]]:
    """Return the items that a plan names, by pass, in the order of the plan.

    Raises
    ------
    InputError
        If the manifest was redacted, or the tokenizer gives its texts other tokens.
    """
    texts = Encodings(load_manifest(manifest), loaded)

    @cache
    def make_items(kind: str, keys: tuple[str, ...]) -> Sequence[AnyItem]:
        """Return the items of a kind; passes with equal keys share one list."""
        return _MAKERS[kind](texts, keys)

    return {
        pass_: make_items(ITEMS[pass_.kind], tuple(keys))
        for pass_, keys in plan.items()
    }


def score(
    loaded: Loaded | str | Path,
    texts: schema.Manifest | str | Path | Sequence[AnyItem],
    **options: Any,
) -> PassTables:
    """Score all texts of a manifest, or items.

    See :func:`spark_audit.scoring.score.score`.

    Parameters
    ----------
    loaded
        The checkpoint, or its path.
    texts
        A manifest or its path, for all its examples; or items that were made from one.
    options
        ``passes``, ``store``, ``batch_size``, ``progress``.
    """
    from spark_audit.checkpoints.open import open_checkpoint

    loaded = open_checkpoint(loaded)
    if isinstance(texts, schema.Manifest | str | Path):
        manifest = load_manifest(texts)
        plan = {Pass(): [*manifest.by_id]}
        items = items_for(manifest, loaded, plan)[Pass()]
    else:
        items = texts
    return scoring.score(loaded, items, **options)


def plain_items(texts: Encodings, keys: Sequence[str]) -> list[Item]:
    """Return whole examples by id, for the plain pass and for noise."""
    items = []
    for example, encoding in texts.each(keys):
        # Text that was cut off is not read, but leading special tokens are.
        ids, positions = encoding.fed(example.kept)
        items.append(Item(example.id, ids, positions))
    return items


@dataclass(frozen=True)
class _AskedRow:
    """A row whose prompt the model continues.

    ``ids`` are the tokens before the response; the first ``leading`` of them are
    special.
    """

    task: str
    response: str
    ids: np.ndarray
    leading: int


def row_prompts(
    rows: Iterable[tuple[Example | schema.ManifestExample, Encoding]],
    keys: Sequence[str],
    *,
    limit: int | None,
) -> list[Prompt]:
    """Return prompts to continue, with the response as the expected answer.

    A prompt is the tokens before the response in the joint tokenisation: alone, a
    prompt that ends in a blank would be tokenised differently. Text is cut from its
    start, so that there is room for an answer four tokens longer than the task's
    longest.

    Parameters
    ----------
    rows
        All rows of the tasks, of either split, with their joint tokenisation. The
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
    longest_response: dict[str, int] = {}  # tokens, by task
    responses: dict[str, set[str]] = defaultdict(set)
    rows_asked: dict[str, _AskedRow] = {}
    wanted = {*keys}
    for row, encoding in rows:
        response_start = encoding.reaching(len(row.prompt))
        n_tokens = encoding.text_end - response_start
        longest_response[row.task] = max(longest_response.get(row.task, 1), n_tokens)
        responses[row.task].add(row.answer)
        if row.id in wanted:
            rows_asked[row.id] = _AskedRow(
                task=row.task,
                response=row.answer,
                ids=encoding.ids[:response_start],
                leading=encoding.leading,
            )

    labels = few_labels(responses)
    prompts = []
    for key in keys:
        row_asked = rows_asked[key]
        if not row_asked.response.strip():
            raise InputError(
                "has no response", where=f"example {key!r}", fix="leave the row out"
            )

        max_new_tokens = longest_response[row_asked.task] + MORE_TOKENS
        if limit is not None:
            # Free text may be longer than half of the context.
            max_new_tokens = max(min(max_new_tokens, limit // 2), 1)

        prefix = fitted_prefix(
            row_asked.ids, row_asked.leading, limit, max_new_tokens, key
        )
        task_labels = labels.get(row_asked.task, ())
        prompts.append(
            Prompt(key, prefix, row_asked.response, max_new_tokens, task_labels)
        )
    return prompts


def _prompt_items(texts: Encodings, keys: Sequence[str]) -> list[Prompt]:
    """Return the prompts of rows; answers are limited by all rows of the manifest."""
    rows = texts.each([*texts.manifest.by_id])
    return row_prompts(rows, keys, limit=texts.limit)


_MAKERS: Mapping[str, Callable[..., Sequence[AnyItem]]] = {
    "texts": plain_items,
    "prompts": _prompt_items,
    "candidates": candidate_items,
    "continuations": asked_items,
}
"""Kinds of items (``ITEMS`` in the file of a pass) -> function that makes them."""
