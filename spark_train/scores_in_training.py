"""Sensitivity scores of rows as a task begins, from the student itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spark_train.losses import token_nll
from spark_train.processes import share
from spark_train.stream import Stream
from spark_train.student import targets
from spark_train.training_rows import TrainRow, collate, pieces

if TYPE_CHECKING:
    pass
from spark_train.token_scores import row_scores, task_counts


@torch.no_grad()
def scored(
    stream: Stream, k: int, rows: Sequence[TrainRow]
) -> Iterator[tuple[TrainRow, np.ndarray, Tensor]]:
    """The share of this process in rows, with their scores ``(T,)`` and hidden states.

    Scores are as task ``k`` begins; hidden states are those that predict a row's
    tokens: ``(T - 1, H)``. The N of Score_2 are the tasks up to ``k`` **[ours]**, of
    which all rows count, whatever a memory keeps of them.
    """
    student = stream.student
    counts = {
        task: task_counts(stream.rows[task], vocab_size=student.vocabulary)
        for task in stream.tasks[: k + 1]
    }
    alpha = stream.settings.sensitivity.alpha
    for part in pieces(share(rows), student.tokens):
        batch = collate(part, student.device)
        hidden = student.hidden(batch, batch.attention)
        ids = targets(batch, batch.attention)
        nll = torch.cat(
            [
                token_nll(student.logits(hidden[at]), ids[at]).cpu()
                for at in student.chunks(len(hidden))
            ]
        )
        sizes = [len(row) - 1 for row in part]
        each = [one.double().numpy() for one in torch.split(nll, sizes)]
        scores = row_scores(part, each, counts, alpha=alpha)
        yield from zip(part, scores, torch.split(hidden, sizes), strict=True)
