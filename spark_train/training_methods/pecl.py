"""PeCL in forms of our own.

What stands here is **not compared with PeCL's own equations** (arXiv 2509.12958), whose
code is not public. From SPARK's reproduction come the scalars: noise scale 0.01, MemReg
scale 0.01 with lambda_max 10, lambda_unlearn 1.0 with theta 0.6. **[ours]** are all
forms, and that both scores and importance are computed once a task:

``L = L_task + lambda_unlearn L_unlearn + memreg_scale sum_j min(Omega_j, lambda_max)
(theta_j - theta_j^{k-1})^2``, with the forward pass under noise.

- Noise on each token's input embedding has sigma ``noise_scale Score_i``, so that a
  token of Score 0 has none. With ``pecl.uniform`` it is noise_scale for every token:
  ``e + N(0, sigma^2 I)``, as SPARK's paper prints it.
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
from spark_train.fine_tuning import TASK_ROLE
from spark_train.loop import Phase, Rows, Sums, Term
from spark_train.losses import token_nll, unlikelihood
from spark_train.method import Method, task_by_task
from spark_train.processes import gathered
from spark_train.scores_in_training import scored_rows
from spark_train.stream import Stream
from spark_train.task_phase import learning_phase
from spark_train.training_methods.ewc import drift, fisher
from spark_train.training_rows import TrainRow, collate, padded
from spark_train.training_settings import Pecl


@task_by_task
def pecl(stream: Stream, k: int) -> list[Phase]:
    """PeCL in our forms: noisy embeddings, held weights, unlearning, all at once."""
    student = stream.student
    settings = stream.settings.pecl
    plain = learning_phase(stream, k)
    rows = stream.rows[stream.tasks[k]]
    scores: dict[str, np.ndarray] = {}  # row id -> (T,)
    # "importance" (Omega) and "before" (theta^{k-1}): group -> weight's name -> tensor.
    held: dict[str, dict[str, Tensor]] = {}

    def start() -> None:
        # Each process scores its share of the rows, and all need all of them.
        own_scores = [(row.id, score) for row, score, _ in scored_rows(stream, k, rows)]
        scores.update(gathered(own_scores))

        if k:
            held.update(stream.read_carried(k - 1))
            held["before"] = {
                name: weight.detach().clone()
                for name, weight in student.trainable.items()
            }

    def is_unlearned(row: TrainRow) -> np.ndarray:
        """Return which tokens are unlearned, ``(T,)``, bool: never the first.

        It has no prediction, and a Score of 0.
        """
        return scores[row.id] > settings.theta

    def terms(rows_by_role: Rows) -> dict[str, Term]:
        n_unlearned = 0
        for row in rows_by_role[TASK_ROLE]:
            n_unlearned += int(is_unlearned(row).sum())
        unlearn = Term(n_unlearned, settings.lambda_unlearn)
        return {**plain.terms(rows_by_role), "unlearn": unlearn}

    def loss(role: str, rows: Sequence[TrainRow]) -> Sums:
        device = student.device
        batch = collate(rows, device)
        scope = stream.settings.loss.scope
        learned = batch.attention if scope == "full" else batch.response  # (B, T)
        unlearned = padded([is_unlearned(row) for row in rows]).to(device)  # (B, T)
        score = padded([scores[row.id] for row in rows]).to(device)  # (B, T)
        mask = learned | unlearned  # (B, T)

        # Drawn anew in each pass, like dropout, from the generator that the loop seeds.
        hidden_size = student.model.get_input_embeddings().weight.shape[1]
        noise = torch.randn(*score.shape, hidden_size, device=device)  # (B, T, H)
        noise *= sigmas(score, settings)[..., None]
        with input_noise(student.model, noise, by_token=False):
            hidden = student.hidden(batch, mask)  # (n, H)
        return {
            TASK_ROLE: student.loss_sum(hidden, batch, mask, learned, token_nll),
            "unlearn": student.loss_sum(hidden, batch, mask, unlearned, unlikelihood),
        }

    def penalty() -> Sums:
        """Return MemReg; there is none in the first task."""
        omega = {
            name: value.clamp(max=settings.lambda_max)
            for name, value in held["importance"].items()
        }
        weighted_drift = drift(omega, held["before"], student.trainable)
        return {"memreg": settings.memreg_scale * weighted_drift}

    def end() -> None:
        # After the last task, nothing needs it.
        if k + 1 < len(stream.tasks):
            # The first task has no earlier importance.
            new = fisher(stream, k, relative=True)
            old = held["importance"] if k else new
            # The mean over the k + 1 tasks so far.
            mean = {name: (k * old[name] + new[name]) / (k + 1) for name in new}
            stream.save_carried(k, {"importance": mean})

    phase = replace(plain, start=start, terms=terms, loss=loss, end=end)
    return [replace(phase, penalty=penalty if k else None)]


def sigmas(score: Tensor, settings: Pecl) -> Tensor:
    """Return the standard deviation of each token's noise.

    Parameters
    ----------
    score
        Shape ``(B, T)``: sensitivity of each token; so is the result.
    """
    if settings.uniform:
        return torch.full_like(score, settings.noise_scale)
    return settings.noise_scale * score


PECL = Method(
    "pecl",
    pecl,
    reads=("pecl", "sensitivity.alpha"),
    no_epsilon="unlearned tokens and held weights follow from rows without noise",
)
