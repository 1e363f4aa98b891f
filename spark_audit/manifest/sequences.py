"""What a checkpoint reads of a manifest, pass by pass.

Tokenising happens here and nowhere else: an audit's plan names sequences by key, and
these functions turn keys into items of ``scoring`` with the checkpoint's tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit.data.encoding import Encoding, encode
from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest.file import load_manifest
from spark_audit.manifest.prompts import (
    Encodings,
    asked_items,
    asked_place,
    place_of,
    slot_item,
    slots,
)
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.scoring import score as scoring
from spark_audit.scoring.items import AnyItem, Candidates, Item, Prompt
from spark_audit.scoring.score import Scored
from spark_audit.scoring.table import ITEMS, Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

MOST_LABELS = 64
"""A task with more distinct responses than this has no set of labels."""

MORE_TOKENS = 4
"""Tokens that an answer may be longer than its task's longest label **[ours]**."""


def items_for(
    manifest: Manifest | str | Path,
    loaded: Loaded,
    plan: Mapping[Pass, Sequence[str]],
) -> dict[Pass, Sequence[Any]]:
    """The items that a plan names, by pass, in the plan's order.

    Raises
    ------
    InputError
        If the manifest was redacted, or the tokenizer cuts its texts otherwise.
    """
    manifest = load_manifest(manifest)
    texts = Encodings(manifest, loaded)
    # Passes that go through the same share it, as plain and noise do.
    made: dict[tuple[str, tuple[str, ...]], Sequence[AnyItem]] = {}
    found: dict[Pass, Sequence[Any]] = {}
    for wanted, keys in plan.items():
        kind = ITEMS[wanted.kind]
        own = kind, tuple(keys)
        if own not in made:
            made[own] = _MAKERS[kind](texts, keys)
        found[wanted] = made[own]
    return found


def manifest_items(
    manifest: Manifest | str | Path, loaded: Loaded | str | Path
) -> list[Item]:
    """What a checkpoint reads of all of a manifest's examples in the plain pass.

    Raises
    ------
    InputError
        If the manifest was redacted, or the tokenizer cuts its texts otherwise.
    """
    from spark_audit.checkpoints.open import open_checkpoint

    manifest, loaded = load_manifest(manifest), open_checkpoint(loaded)
    keys = [example.id for example in manifest.examples]
    return plain_items(Encodings(manifest, loaded), keys)


def score(
    loaded: Loaded | str | Path, texts: Manifest | str | Path | Any, **options: Any
) -> Scored:
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
    if isinstance(texts, Manifest | str | Path):
        texts = manifest_items(texts, loaded)
    return scoring.score(loaded, texts, **options)


def plain_items(texts: Encodings, keys: Sequence[str]) -> list[Item]:
    """Whole examples, by id: for the plain pass and for noise."""
    return [Item(one.id, *tokens.fed(one.kept)) for one, tokens in texts.each(keys)]


def labels_key(example: str) -> str:
    """Key of the answers that a row's task knows."""
    return f"labels:{example}"


def example_of(wanted: Pass, key: str) -> str:
    """The example that a sequence of a pass is of."""
    if ITEMS[wanted.kind] == "continuations":
        return asked_place(key)[2]
    if ITEMS[wanted.kind] != "candidates":
        return key
    kind, _, rest = key.partition(":")
    return rest if kind == "labels" else place_of(key)[1]


def task_labels(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Task -> its distinct responses, sorted; tasks with too many of them are no key.

    Beyond :data:`MOST_LABELS` a task's responses are text, not labels.
    """
    found: dict[str, set[str]] = {}
    for example in manifest.examples:
        found.setdefault(example.task, set()).add(example.response)
    return _labels(found)


def _labels(responses: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    return {
        task: tuple(sorted(known))
        for task, known in responses.items()
        if len(known) <= MOST_LABELS
    }


def row_prompts(
    rows: Iterable[tuple[Example | ManifestExample, Encoding]],
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
    longest, responses = dict[str, int](), dict[str, set[str]]()
    wanted, asked = {*keys}, dict[str, tuple[str, str, np.ndarray, int]]()
    for row, encoding in rows:
        responses.setdefault(row.task, set()).add(row.response)
        first = encoding.reaching(len(row.prompt))
        size = encoding.text_end - first
        longest[row.task] = max(longest.get(row.task, 1), size)
        if row.id in wanted:
            before = encoding.ids[:first]
            asked[row.id] = row.task, row.response, before, encoding.leading
    labels = _labels(responses)
    found = []
    for key in keys:
        task, response, ids, leading = asked[key]
        if not response.strip():
            raise InputError("has no response", where=f"example {key!r}")
        new = longest[task] + MORE_TOKENS
        if limit is not None:  # free text longer than half the context
            new = max(min(new, limit // 2), 1)
        prefix = _cut(ids, leading, limit, new, key)
        found.append(Prompt(key, prefix, response, new, labels.get(task, ())))
    return found


def candidate_items(texts: Encodings, keys: Sequence[str]) -> list[Candidates]:
    """Sets of candidates: canaries, twins and labels, in the order of their keys."""
    sets, labelled = slots(texts.manifest), labels_key("")
    known = any(key.startswith(labelled) for key in keys)
    labels = task_labels(texts.manifest) if known else {}
    return [
        _label_item(key, labels, texts)
        if key.startswith(labelled)
        else slot_item(key, sets, texts)
        for key in keys
    ]


def _label_item(
    key: str, known: Mapping[str, Sequence[str]], encodings: Encodings
) -> Candidates:
    """The answers that a row's task knows as candidates, by :func:`labels_key`.

    Every label is tokenised jointly with the prompt; the candidates begin at the first
    token that any of the joint tokenisations has otherwise or that reaches into the
    label, so that all stand behind one prefix.

    Raises
    ------
    InputError
        Naming the example, if its task has too many responses or one without text, or
        if nothing stands before them.
    """
    row = encodings.manifest.by_id[key.removeprefix(labels_key(""))]
    where, labels = f"example {row.id!r}", known.get(row.task)
    if labels is None:
        raise InputError(
            f"its task has more than {MOST_LABELS} different responses",
            where=where,
            fix="use the scorer `normalised`",
        )
    if not all(label.strip() for label in labels):
        raise InputError("a row of its task has no response", where=where)
    joint = [row.prompt + label for label in labels]
    texts = encode(encodings.loaded.tokenizer, joint)
    alike = len(commonprefix([text.ids.tolist() for text in texts]))
    start = min(alike, *(text.reaching(len(row.prompt)) for text in texts))
    ends = [text.ids[start : text.text_end] for text in texts]
    room = max(map(len, ends))
    limit = _limit(encodings)
    prefix = _cut(texts[0].ids[:start], texts[0].leading, limit, room, row.id)
    return Candidates(key, prefix, tuple(ends))


def _limit(texts: Encodings) -> int | None:
    bounds = (texts.manifest.settings.max_length, texts.loaded.max_positions)
    return min((bound for bound in bounds if bound is not None), default=None)


def _cut(
    ids: np.ndarray, leading: int, limit: int | None, behind: int, key: str
) -> np.ndarray:
    """A prefix that leaves room behind it; what is cut off is its beginning."""
    room = len(ids) if limit is None else limit - behind
    lead = ids[: min(leading, len(ids))]
    tail = min(len(ids), room) - len(lead)
    if not len(ids) or tail < min(len(ids) - len(lead), 1):
        raise InputError(
            "has no prompt, or none that fits the context with the answer",
            where=f"example {key!r}",
            fix="give a larger max_length, or leave the row out",
        )
    return np.concatenate([lead, ids[len(ids) - tail :]])


_MAKERS: Mapping[str, Callable[..., Sequence[AnyItem]]] = {
    "texts": plain_items,
    "prompts": lambda texts, keys: row_prompts(
        texts.each([*texts.manifest.by_id]), keys, limit=_limit(texts)
    ),
    "candidates": candidate_items,
    "continuations": asked_items,
}
"""What a pass may go through (``ITEMS`` in its file) -> how it is made."""
