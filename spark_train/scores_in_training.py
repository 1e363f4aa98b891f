"""Compute sensitivity scores of rows with the student at the start of a task.

The scores themselves are in ``token_scores.py``; here the student gives their NLL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from spark_train.losses import token_nll
from spark_train.processes import share
from spark_train.stream import Stream
from spark_train.student import targets
from spark_train.token_scores import row_scores, task_counts
from spark_train.training_rows import TrainRow, collate, pieces


@torch.no_grad()
def scored_rows(
    stream: Stream, k: int, rows: Sequence[TrainRow]
) -> Iterator[tuple[TrainRow, np.ndarray, Tensor]]:
    """Yield this process's share of rows, with their scores and hidden states.

    Scores are those at the start of task ``k``. The N of Score_2 are the tasks up to
    ``k`` **[ours]**, with all of their rows, even if a memory keeps only some.

    Yields
    ------
    tuple
        A row; its scores ``(T,)``; the hidden states ``(T - 1, H)`` that predict its
        tokens.
    """
    student = stream.student
    alpha = stream.settings.sensitivity.alpha
    counts_by_task = {
        task: task_counts(stream.rows[task], vocab_size=student.vocabulary)
        for task in stream.tasks[: k + 1]
    }  # task -> (V,)

    for piece in pieces(share(rows), student.max_tokens):
        batch = collate(piece, student.device)
        hidden = student.hidden(batch, batch.attention)  # (n, H)
        ids = targets(batch, batch.attention)  # (n,)

        nll_of_chunks = []
        for chunk in student.chunks(len(hidden)):
            logits = student.logits(hidden[chunk])  # (m, V)
            nll_of_chunks.append(token_nll(logits, ids[chunk]).cpu())
        nll = torch.cat(nll_of_chunks)  # (n,)

        # The flat positions are divided into rows again. The first token of a row has
        # no position.
        sizes = [len(row) - 1 for row in piece]
        nll_by_row = [values.double().numpy() for values in torch.split(nll, sizes)]
        scores = row_scores(piece, nll_by_row, counts_by_task, alpha=alpha)
        yield from zip(piece, scores, torch.split(hidden, sizes), strict=True)
