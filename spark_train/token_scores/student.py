"""Sensitivity scores of rows as the student stands: Score_1 is its own NLL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spark_train.data import TrainRow, collate
from spark_train.loop import pieces
from spark_train.losses.logits import token_nll
from spark_train.model.student import targets
from spark_train.stream import SCORES, Stream
from spark_train.token_scores.scores import row_scores, task_counts, write_scores


def seen_counts(stream: Stream, k: int) -> dict[str, np.ndarray]:
    """Token counts of the tasks up to ``k``, by task: the N of Score_2 **[ours]**.

    All of their rows count, whatever a memory keeps of them.
    """
    return {
        task: task_counts(stream.rows[task], vocab_size=stream.student.vocabulary)
        for task in stream.tasks[: k + 1]
    }


def batch_scores(
    stream: Stream,
    rows: Sequence[TrainRow],
    hidden: Tensor,
    ids: Tensor,
    counts: dict[str, np.ndarray],
) -> list[np.ndarray]:
    """Scores of rows that were read together.

    Parameters
    ----------
    hidden, ids
        The student's hidden states at, and the tokens of, all predicted positions.
    """
    student = stream.student
    nll = torch.cat(
        [
            token_nll(student.logits(hidden[at]), ids[at]).cpu()
            for at in student.chunks(len(hidden))
        ]
    )
    sizes = [len(row) - 1 for row in rows]
    return row_scores(
        rows,
        np.split(nll.double().numpy(), np.cumsum(sizes)[:-1]),
        counts,
        alpha=stream.settings.sensitivity.alpha,
    )


def scored(stream: Stream, k: int, rows: Sequence[TrainRow]) -> dict[str, np.ndarray]:
    """Scores of rows while task ``k`` is learned, by id, the same in all processes."""
    student, processes = stream.student, stream.processes
    counts = seen_counts(stream, k)
    by_row: dict[str, np.ndarray] = {}
    with torch.no_grad(), student.still():
        for part in pieces(processes.share(rows), student.tokens):
            batch = collate(part).to(student.device)
            hidden = student.hidden(batch, batch.attention)
            ids = targets(batch, batch.attention)
            scores = batch_scores(stream, part, hidden, ids, counts)
            by_row |= {row.id: one for row, one in zip(part, scores, strict=True)}
    return processes.collect(by_row)


def keep_scores(
    stream: Stream, k: int, rows: Sequence[TrainRow], scores: dict[str, np.ndarray]
) -> None:
    """Leave the scores that a stage worked with in the run folder."""
    if stream.folder is not None and stream.processes.first:
        write_scores(
            stream.folder / SCORES / f"{stream.label(k)}.parquet",
            rows,
            [scores[row.id] for row in rows],
        )
