"""What a checkpoint reads of a manifest, pass by pass.

Tokenising happens here and nowhere else: an audit's plan names sequences by key, and
these functions turn keys into items of ``scoring`` with the checkpoint's tokenizer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit.data.encoding import (
    Encoding,
)
from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest import schema
from spark_audit.manifest.file import load_manifest
from spark_audit.scoring import score as scoring
from spark_audit.scoring.items import AnyItem, Item, Prompt
from spark_audit.scoring.score import PassTables
from spark_audit.scoring.table import ITEMS, Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
from spark_audit.manifest.asked_prompts import asked_items
from spark_audit.manifest.candidate_items import candidate_items
from spark_audit.manifest.encodings import Encodings, few_labels, fitted_prefix

MORE_TOKENS = 4
"""Tokens that an answer may be longer than its task's longest label **[ours]**."""


def items_for(
    manifest: schema.Manifest | str | Path,
    loaded: Loaded,
    plan: Mapping[Pass, Sequence[str]],
) -> dict[Pass, Sequence[Any]]:
    """The items that a plan names, by pass, in the plan's order.

    Raises
    ------
    InputError
        If the manifest was redacted, or the tokenizer cuts its texts otherwise.
    """
    texts, found = Encodings(load_manifest(manifest), loaded), dict[Pass, Any]()
    # Passes that go through the same share it, as plain and noise do.
    made = cache(lambda kind, keys: _MAKERS[kind](texts, keys))
    for wanted, keys in plan.items():
        found[wanted] = made(ITEMS[wanted.kind], tuple(keys))
    return found


def score(
    loaded: Loaded | str | Path,
    texts: schema.Manifest | str | Path | Any,
    **options: Any,
) -> PassTables:
    """Score all texts of a manifest, or items; :func:`spark_audit.scoring.score.score`.

    Parameters
    ----------
    loaded
        The checkpoint, or its path.
    texts
        A manifest or its path: all its examples. Or items that were made of one.
    options
        ``passes``, ``store``, ``batch_size``, ``progress``.
    """
    from spark_audit.checkpoints.open import open_checkpoint

    loaded = open_checkpoint(loaded)
    if isinstance(texts, schema.Manifest | str | Path):
        manifest = load_manifest(texts)
        found = items_for(manifest, loaded, {Pass(): [*manifest.by_id]})[Pass()]
    else:
        found = texts
    return scoring.score(loaded, found, **options)


def plain_items(texts: Encodings, keys: Sequence[str]) -> list[Item]:
    """Whole examples, by id: for the plain pass and for noise."""
    return [Item(one.id, *tokens.fed(one.kept)) for one, tokens in texts.each(keys)]


def row_prompts(
    rows: Iterable[tuple[Example | schema.ManifestExample, Encoding]],
    keys: Sequence[str],
    *,
    limit: int | None,
) -> list[Prompt]:
    """Prompts to continue, by example id, with the response as expected answer.

    A prompt is the joint tokenisation's tokens before the response: one that ends in a
    blank tokenises differently alone. It is cut from its start, special tokens apart,
    so that an answer of four tokens more than the task's longest fits.

    Parameters
    ----------
    rows
        All rows of the tasks, of either split, with their joint tokenisation: the
        longest response of a task bounds the answers to all of its prompts.
    keys
        Which rows are asked, in the order of the result.
    limit
        Tokens that the model can read, those of the answer among them; ``None``: no
        limit.

    Raises
    ------
    InputError
        Naming the row, if it has no response or nothing before it.
    """
    longest, wanted = dict[str, int](), {*keys}
    responses: dict[str, set[str]] = defaultdict(set)
    asked: dict[str, tuple[str, str, np.ndarray, int]] = {}
    for row, encoding in rows:
        first = encoding.reaching(len(row.prompt))
        size = encoding.text_end - first
        longest[row.task] = max(longest.get(row.task, 1), size)
        responses[row.task].add(row.answer)
        if row.id in wanted:
            before = encoding.ids[:first]
            asked[row.id] = row.task, row.answer, before, encoding.leading
    labels = few_labels(responses)
    found = []
    for key in keys:
        task, response, ids, leading = asked[key]
        if not response.strip():
            raise InputError("has no response", where=f"example {key!r}")
        new = longest[task] + MORE_TOKENS
        if limit is not None:  # free text longer than half the context
            new = max(min(new, limit // 2), 1)
        prefix = fitted_prefix(ids, leading, limit, new, key)
        found.append(Prompt(key, prefix, response, new, labels.get(task, ())))
    return found


_MAKERS: Mapping[str, Callable[..., Sequence[AnyItem]]] = {
    "texts": plain_items,
    "prompts": lambda texts, keys: row_prompts(
        texts.each([*texts.manifest.by_id]), keys, limit=texts.limit
    ),
    "candidates": candidate_items,
    "continuations": asked_items,
}
"""What a pass may go through (``ITEMS`` in its file) -> how it is made."""
