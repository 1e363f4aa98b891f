"""Tokens and their sensitivity scores as people see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.data.encoding import encode
from spark_audit.data.examples import Example
from spark_audit.data.occurrences import annotated_strings, found_in
from spark_audit.data.pii import find_identifiers
from spark_audit.errors import InputError
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import Progress, score
from spark_audit.scoring.table import Pass
from spark_train.training_rows import TrainRow, encode_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
from spark_train.token_scores import row_scores, task_counts


class ScoredToken(TypedDict):
    """A token with its scores; ``None`` where a figure would tell what is hidden."""

    position: int
    text: str
    kind: str
    nll: float | None
    score: float | None


class ScoredExample(TypedDict):
    """A row's id, its task and its tokens."""

    example: str
    task: str
    tokens: list[ScoredToken]


def score_examples(
    examples: Sequence[Example],
    loaded: Loaded,
    *,
    alpha: float,
    limit: int,
    show_text: bool = False,
    progress: Progress | None = None,
) -> list[ScoredExample]:
    """Tokens and sensitivity scores of the first train rows among some examples.

    Score_1 is the checkpoint's NLL. Score_2 compares all tasks whose train rows are
    given; in training it compares those that were learned so far.

    Parameters
    ----------
    alpha
        Weight of Score_1, 0 to 1.
    limit
        How many rows to score; all count for Score_2.
    show_text
        Identifiers as they are, not their types in their place.

    Returns
    -------
    list of dict
        ``example`` (id), ``task`` and ``tokens`` of each row; of each token
        ``position``, ``text``, ``kind``, ``nll`` (nats) and ``score`` (0 to 1). Both
        are ``None`` from the token before the first that is hidden: a figure depends
        on all that stands before its token, and that one's may on how the hidden text
        is cut.

    Raises
    ------
    InputError
        If there is no train row.
    CheckpointError
        If logits are NaN or infinite.
    """
    trained = [example for example in examples if example.split == "train"]
    if not trained:
        raise InputError("there is no train row to score", where="data")
    tokenizer, known = loaded.tokenizer, annotated_strings(examples)
    every = encode_rows(trained, tokenizer, max_length=loaded.max_positions)
    counts = {
        task: task_counts(
            [row for row in every if row.task == task], vocab_size=len(loaded.usable)
        )
        for task in sorted({row.task for row in every})
    }
    rows = every[:limit]
    items = [Item(row.id, row.ids, np.arange(len(row), dtype=np.int32)) for row in rows]
    table = score(loaded, items, progress=progress)[Pass()]
    nll = [table.columns["nll"][table.rows(row.id)] for row in rows]
    scores = row_scores(rows, nll, counts, alpha=alpha)
    scored_examples: list[ScoredExample] = []
    for row, example, first, own in zip(
        rows, trained[:limit], nll, scores, strict=True
    ):
        types = (
            [None] * len(row) if show_text else _types(example, row, tokenizer, known)
        )
        end = next((t - 1 for t, type in enumerate(types) if type), len(row))
        # Of several kinds the last one holds.
        kinds = np.full(len(row), "text", dtype=object)
        kinds[row.response] = "response"
        kinds[row.fixed] = "template or stop word"
        kinds[row.pii] = "pii"
        kinds[[*row.special]] = "special"
        tokens: list[ScoredToken] = [
            {
                "position": t,
                "text": f"[{type}]" if type else tokenizer.decode([int(row.ids[t])]),
                "kind": kinds[t],
                "nll": float(first[t - 1]) if 0 < t < end else None,
                "score": float(own[t]) if t < end else None,
            }
            for t, type in enumerate(types)
        ]
        scored_examples.append({"example": row.id, "task": row.task, "tokens": tokens})
    return scored_examples


def _types(
    example: Example,
    row: TrainRow,
    tokenizer: PreTrainedTokenizerBase,
    known: dict[str, str],
) -> list[str | None]:
    """The type of the identifier that each token shares a character with, if any.

    Identifiers are those that training knows, and those that are annotated in another
    row of the data.
    """
    (encoding,) = encode(tokenizer, [example.text])
    # Only the start of a text is ever cut off.
    text = np.setdiff1d(np.arange(len(row)), row.special)
    read = np.flatnonzero(~encoding.special)[-len(text) :]
    types: list[str | None] = ["OTHER" if pii else None for pii in row.pii]
    found, annotated = (
        [(span.start, span.end, span.type) for span in spans]
        for spans in (find_identifiers(example.text), example.spans)
    )
    # Of several the annotated one is told.
    held = ((a, b, known[which]) for a, b, which in found_in(example.text, known))
    for start, end, type in (*found, *held, *annotated):
        for t in text[encoding.mask([(start, end)])[read]]:
            types[t] = type
    return types
