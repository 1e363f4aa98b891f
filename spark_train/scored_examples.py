"""Tokens and their sensitivity scores, in a form for people.

A further column of a token is a field of :class:`ScoredToken`, filled in
:func:`_scored_tokens`. A figure that depends on hidden text must be None from ``end``
on, as ``nll`` and ``score`` are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.data.encoding import encode
from spark_audit.data.examples import Example
from spark_audit.data.occurrences import annotated_strings, string_ranges
from spark_audit.data.pii import find_identifiers
from spark_audit.errors import InputError
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import Progress, score
from spark_audit.scoring.table import Pass
from spark_train.token_scores import row_scores, task_counts
from spark_train.training_rows import TrainRow, encode_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ScoredToken(TypedDict):
    """A token with its scores; ``None`` for a figure that would reveal hidden text.

    ``position`` is its index in the row, from 0; ``text`` what is shown of it; ``nll``
    in nats, and ``score`` from 0 to 1.
    """

    position: int
    text: str
    kind: str
    nll: float | None
    score: float | None


class ScoredExample(TypedDict):
    """The id, the task and the tokens of a row."""

    example: str
    task: str
    tokens: list[ScoredToken]


def score_examples(
    examples: Sequence[Example],
    loaded: Checkpoint,
    *,
    alpha: float,
    limit: int,
    show_text: bool = False,
    progress: Progress | None = None,
) -> list[ScoredExample]:
    """Return the tokens and sensitivity scores of the first train rows.

    Score_1 is the checkpoint's NLL. Score_2 compares all tasks with train rows here; in
    training it compares the tasks learned so far.

    Parameters
    ----------
    alpha
        Weight of Score_1, 0 to 1.
    limit
        Number of rows to score; all rows count for Score_2.
    show_text
        Show identifiers as they are, instead of their types.

    Returns
    -------
    list of dict
        ``example`` (id), ``task`` and ``tokens`` of each row; for each token
        ``position``, ``text``, ``kind``, ``nll`` (nats) and ``score`` (0 to 1). Both
        figures are ``None`` from the token before the first hidden one: a figure
        depends on all text before its token, and the tokenisation of that last token
        may depend on the hidden text.

    Raises
    ------
    InputError
        If there is no train row.
    CheckpointError
        If logits are NaN or infinite.
    """
    train_examples = [example for example in examples if example.split == "train"]
    if not train_examples:
        raise InputError("there is no train row to score", where="data")

    # All rows count for Score_2, by task.
    tokenizer = loaded.tokenizer
    all_rows = encode_rows(train_examples, tokenizer, max_length=loaded.max_positions)
    counts_by_task = {}  # task -> (V,)
    for task in sorted({row.task for row in all_rows}):
        rows_of_task = [row for row in all_rows if row.task == task]
        counts_by_task[task] = task_counts(rows_of_task, vocab_size=len(loaded.usable))

    # Score_1 only for the rows that are shown.
    rows = all_rows[:limit]
    items = [Item(row.id, row.ids, np.arange(len(row), dtype=np.int32)) for row in rows]
    table = score(loaded, items, progress=progress)[Pass()]
    nll_by_row = [table.columns["nll"][table.rows(row.id)] for row in rows]  # (T - 1,)
    scores_by_row = row_scores(rows, nll_by_row, counts_by_task, alpha=alpha)  # (T,)

    types_by_string = annotated_strings(examples)
    scored_examples: list[ScoredExample] = []
    for row, example, nll, scores in zip(
        rows, train_examples[:limit], nll_by_row, scores_by_row, strict=True
    ):
        hidden_types: list[str | None] = [None] * len(row)
        if not show_text:
            hidden_types = _identifier_types(example, row, tokenizer, types_by_string)
        tokens = _scored_tokens(row, nll, scores, hidden_types, tokenizer)
        scored_examples.append({"example": row.id, "task": row.task, "tokens": tokens})
    return scored_examples


def _scored_tokens(
    row: TrainRow,
    nll: np.ndarray,
    scores: np.ndarray,
    hidden_types: Sequence[str | None],
    tokenizer: PreTrainedTokenizerBase,
) -> list[ScoredToken]:
    """Return a row's tokens with their figures, without hidden text.

    Parameters
    ----------
    nll, scores
        Shapes ``(T - 1,)`` and ``(T,)``.
    hidden_types
        For each token the type to show instead; ``None``: show its text.
    """
    # Figures end before the last token in front of the first hidden one: whether this
    # token was cut here may depend on the hidden text.
    end = len(row)
    for position, hidden_type in enumerate(hidden_types):
        if hidden_type:
            end = position - 1
            break

    # If a token has several kinds, the last one counts.
    kinds = np.full(len(row), "text", dtype=object)  # (T,)
    kinds[row.response] = "response"
    kinds[row.fixed] = "template or stop word"
    kinds[row.pii] = "pii"
    kinds[[*row.special]] = "special"

    tokens: list[ScoredToken] = []
    for t, hidden_type in enumerate(hidden_types):
        text = f"[{hidden_type}]"
        if not hidden_type:
            text = tokenizer.decode([int(row.ids[t])])
        token: ScoredToken = {
            "position": t,
            "text": text,
            "kind": kinds[t],
            # The first token has no prediction, so nll[0] is the second token's.
            "nll": float(nll[t - 1]) if 0 < t < end else None,
            "score": float(scores[t]) if t < end else None,
        }
        tokens.append(token)
    return tokens


def _identifier_types(
    example: Example,
    row: TrainRow,
    tokenizer: PreTrainedTokenizerBase,
    types_by_string: dict[str, str],
) -> list[str | None]:
    """Return the type of the identifier that each token shares a character with.

    ``None`` for other tokens. Identifiers are those that training knows, and those that
    are annotated in another row of the data.
    """
    (encoding,) = encode(tokenizer, [example.text])
    # Indices of the row's tokens of text, in the row and in the encoding of the whole
    # text: only the start of a text can be cut off.
    in_row = np.setdiff1d(np.arange(len(row)), row.special)  # (tokens of text,)
    in_text = np.flatnonzero(~encoding.is_special)[-len(in_row) :]  # as many

    # Later entries win. So if identifiers overlap, one that is annotated in this row
    # gives the type, then one that is annotated elsewhere, then one found by rules.
    identifiers = [
        (span.start, span.end, span.type) for span in find_identifiers(example.text)
    ]
    for start, end, string in string_ranges(example.text, types_by_string):
        identifiers.append((start, end, types_by_string[string]))
    for span in example.spans:
        identifiers.append((span.start, span.end, span.type))

    # OTHER is a token that training takes for one of an identifier, and no list has.
    types: list[str | None] = ["OTHER" if is_pii else None for is_pii in row.pii]
    for start, end, identifier_type in identifiers:
        is_touched = encoding.mask([(start, end)])[in_text]  # (tokens of text,)
        for t in in_row[is_touched]:
            types[t] = identifier_type
    return types
