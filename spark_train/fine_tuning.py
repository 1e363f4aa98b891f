"""Plain fine-tuning: the loss of rows, and a phase that only learns them.

:func:`fit` trains the demo's base and relearned checkpoints. Methods use the loss and
the roles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from spark_train.loop import Phase, PhaseState, Step, StepRecord, Sums, Term, run_phase
from spark_train.losses import token_nll
from spark_train.student import Student
from spark_train.training_rows import TrainRow, collate

TASK_ROLE = "task"
REPLAY_ROLE = "replay"
"""Roles of rows in a batch: current and replayed."""


def response_loss(
    student: Student, rows: Sequence[TrainRow], *, scope: str, name: str = TASK_ROLE
) -> Sums:
    """Return the summed NLL of the tokens that a scope covers (SPARK, Eq. "task").

    Parameters
    ----------
    scope
        ``response``, or ``full`` for all tokens (setting ``loss.scope``).
    name
        Name of the term.
    """
    batch = collate(rows, student.device)
    mask = batch.response if scope == "response" else batch.attention  # (B, T)
    hidden = student.hidden(batch, mask)  # (n, H)
    return {name: student.loss_sum(hidden, batch, mask, mask, token_nll)}


def n_covered_tokens(rows: Sequence[TrainRow], scope: str) -> int:
    """Count the tokens of :func:`response_loss`; a row's first is never predicted."""
    if scope == "full":
        return sum(len(row) - 1 for row in rows)
    return sum(int(row.response[1:].sum()) for row in rows)


def fit(
    student: Student,
    rows: Sequence[TrainRow],
    order: np.ndarray,
    *,
    name: str,
    batch_size: int,
    lr: float,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """Train on whole rows; return the loss of each step, nats per token.

    The optimizer is a fresh AdamW without weight decay. Dropout depends only on
    ``seed``, so that a run on one machine repeats to the bit.

    Parameters
    ----------
    order
        Shape ``(n,)``: row indices in reading order, ``batch_size`` in each step.
    lr
        Peak learning rate, which falls by half a cosine to 0.
    progress
        Called after each step with the steps done and all steps.

    Raises
    ------
    InputError
        If a loss is not finite.
    """
    losses: list[float] = []
    steps = math.ceil(len(order) / batch_size)  # the last batch may be smaller

    def choose(step: int) -> Step:
        """Return the rows of a step: the next ones in the given order."""
        indices = order[step * batch_size :][:batch_size]
        return Step({TASK_ROLE: [rows[i] for i in indices]})

    def after(record: StepRecord, state: Callable[[], PhaseState]) -> None:
        """Keep the loss of a step; no state is saved, so nothing can resume."""
        losses.append(float(record["loss"]))
        progress(len(losses), steps)

    phase = Phase(
        stage=name,
        part=TASK_ROLE,
        steps=steps,
        lr=lr,
        choose=choose,
        terms=lambda rows: {TASK_ROLE: Term(n_covered_tokens(rows[TASK_ROLE], "full"))},
        loss=lambda role, rows: response_loss(student, rows, scope="full"),
    )
    run_phase(student, phase, seed=seed, after=after)
    return losses
