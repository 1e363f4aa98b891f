"""Examples with the sensitivity score of each token, as a model in training has them.

A report for people: training computes its scores itself, from the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_audit.errors import InputError
from spark_audit.examples import Example
from spark_audit.scoring import Item, Progress, score
from spark_audit.table import Pass
from spark_train.data import TrainRow, encode_rows
from spark_train.scores import row_scores, task_counts

if TYPE_CHECKING:
    from spark_audit.checkpoints import Loaded


class Inspected(NamedTuple):
    """One training row with its scores.

    ``nll`` has shape ``(T - 1,)``, nats: of all tokens but the first; ``score`` has
    shape ``(T,)``, 0 to 1.
    """

    row: TrainRow
    nll: np.ndarray
    score: np.ndarray


def score_examples(
    examples: Sequence[Example],
    loaded: Loaded,
    *,
    alpha: float,
    limit: int | None = None,
    progress: Progress | None = None,
) -> list[Inspected]:
    """Sensitivity scores of the train rows among some examples, in their order.

    Score_1 is the checkpoint's NLL. Score_2 compares all tasks whose train rows are
    given; in training it compares those that were learned so far.

    Parameters
    ----------
    alpha
        Weight of Score_1, 0 to 1.
    limit
        How many rows to score; all count for Score_2.

    Raises
    ------
    InputError
        If there is no train row, or ``alpha`` is outside ``[0, 1]``.
    CheckpointError
        If logits are NaN or infinite.
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"{alpha} is not between 0 and 1", where="--alpha")
    trained = [example for example in examples if example.split == "train"]
    if not trained:
        raise InputError("there is no train row to score", where="data")
    rows = encode_rows(trained, loaded.tokenizer, max_length=loaded.max_positions)
    counts = {
        task: task_counts(
            [row for row in rows if row.task == task], vocab_size=len(loaded.usable)
        )
        for task in sorted({row.task for row in rows})
    }
    rows = rows[:limit]
    items = [Item(row.id, row.ids, np.arange(len(row), dtype=np.int32)) for row in rows]
    table = score(loaded, items, progress=progress)[Pass()]
    nll = [table.columns["nll"][table.rows(row.id)] for row in rows]
    scores = row_scores(rows, nll, counts, alpha=alpha)
    return [Inspected(*found) for found in zip(rows, nll, scores, strict=True)]
