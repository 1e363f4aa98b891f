"""PeCL in forms of our own.

What stands here is **not compared with PeCL's own equations** (arXiv 2509.12958), whose
code is not public. From SPARK's reproduction come the scalars: noise scale 0.01, MemReg
scale 0.01 with lambda_max 10, lambda_unlearn 1.0 with theta 0.6. **[ours]** are all
forms, and that both scores and importance are computed once a task:

``L = L_task + lambda_unlearn L_unlearn + memreg_scale sum_j min(Omega_j, lambda_max)
(theta_j - theta_j^{k-1})^2``, with the forward pass under noise.

- Noise on each token's input embedding has sigma ``noise_scale Score_i``, so that a
  token of Score 0 has none.
- Unlearned, by the unlikelihood ``-log(1 - P)``, are tokens of a Score above theta:
  identifiers (Score 1) and surprising tokens of plain text. So are the response's,
  which the same step learns.
- MemReg holds weights where they were after the task before. Omega is the mean over the
  tasks so far of their Fisher diagonals, each over its own mean: 1 is an average
  weight's, and lambda_max bounds how much more one weight may count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spark_audit.checkpoints.adapters import input_noise
from spark_train.fine_tuning import TASK
from spark_train.loop import Phase, Rows, Sums, Term
from spark_train.losses import token_nll, unlikelihood
from spark_train.method import Method, task_by_task
from spark_train.methods.ewc import drift, fisher
from spark_train.processes import gathered
from spark_train.scores_in_training import scored
from spark_train.stream import Stream
from spark_train.task_phase import learning
from spark_train.training_rows import TrainRow, collate, padded


@task_by_task
def pecl(stream: Stream, k: int) -> list[Phase]:
    """PeCL in our forms: noisy embeddings, held weights, unlearning, all at once."""
    student, settings = stream.student, stream.settings.pecl
    plain, rows = learning(stream, k), stream.rows[stream.tasks[k]]
    scores: dict[str, np.ndarray] = {}
    held: dict[str, dict[str, Tensor]] = {}

    def start() -> None:
        own = [(row.id, score) for row, score, _ in scored(stream, k, rows)]
        scores.update(gathered(own))
        if k:
            held.update(stream.kept(k - 1))
            held["at"] = {n: w.detach().clone() for n, w in student.trainable.items()}

    def unlearned(row: TrainRow) -> np.ndarray:
        # The first token has no prediction, and a Score of 0.
        return scores[row.id] > settings.theta

    def terms(some: Rows) -> dict[str, Term]:
        count = sum(int(unlearned(row).sum()) for row in some[TASK])
        return {**plain.terms(some), "unlearn": Term(count, settings.lambda_unlearn)}

    def loss(role: str, some: Sequence[TrainRow]) -> Sums:
        batch = collate(some, student.device)
        scope = stream.settings.loss.scope
        learned = batch.attention if scope == "full" else batch.response
        forgotten, score = (
            padded(values).to(student.device)
            for values in ([*map(unlearned, some)], [scores[row.id] for row in some])
        )
        mask = learned | forgotten
        # Drawn anew each time as dropout is, from the generator that the loop seeds.
        width = student.model.get_input_embeddings().weight.shape[1]
        noise = torch.randn(*score.shape, width, device=student.device)
        noise *= settings.noise_scale * score[..., None]
        with input_noise(student.model, noise, by_token=False):
            hidden = student.hidden(batch, mask)
        return {
            TASK: student.summed(hidden, batch, mask, learned, token_nll),
            "unlearn": student.summed(hidden, batch, mask, forgotten, unlikelihood),
        }

    def penalty() -> Sums:
        bound = settings.lambda_max
        omega = {n: value.clamp(max=bound) for n, value in held["importance"].items()}
        drifted = drift(omega, held["at"], student.trainable)
        return {"memreg": settings.memreg_scale * drifted}

    def end() -> None:
        if k + 1 < len(stream.tasks):  # else no later task asks for it
            new = fisher(stream, k, relative=True)
            old = held["importance"] if k else new
            mean = {n: (k * old[n] + new[n]) / (k + 1) for n in new}
            stream.keep(k, {"importance": mean})

    phase = replace(plain, start=start, terms=terms, loss=loss, end=end)
    return [replace(phase, penalty=penalty if k else None)]


PECL = Method(
    "pecl",
    pecl,
    reads=("pecl", "sensitivity.alpha"),
    no_epsilon="unlearned tokens and held weights follow from rows without noise",
)
