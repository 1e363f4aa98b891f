"""Plain fine-tuning: rows are learned, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from spark_audit.errors import InputError
from spark_audit.provenance import seed_for
from spark_train.data import TrainRow, collate
from spark_train.loop import Phase, State, Step, Sums, Term, run_phase
from spark_train.losses.logits import token_nll
from spark_train.model.student import Student, targets

Progress = Callable[[int, int], None]


def response_loss(
    student: Student, rows: Sequence[TrainRow], *, scope: str, name: str
) -> Sums:
    """The summed NLL of the tokens that a scope covers (Eq. "task")."""
    batch = collate(rows).to(student.device)
    mask = batch.response if scope == "response" else batch.attention
    hidden, ids = student.hidden(batch, mask), targets(batch, mask)
    return {
        name: student.total(
            hidden, lambda part, at: token_nll(student.logits(part), ids[at])
        )
    }


def covered(rows: Sequence[TrainRow], scope: str) -> int:
    """Tokens that :func:`response_loss` covers; a row's first is never predicted."""
    if scope == "full":
        return sum(len(row) - 1 for row in rows)
    return sum(int(row.response[1:].sum()) for row in rows)


def fine_tuning(
    student: Student,
    choose: Callable[[int], Sequence[TrainRow]],
    *,
    name: str,
    steps: int,
    lr: float,
    scope: str,
    cosine: bool = True,
) -> Phase:
    """A phase that learns rows and nothing else; ``choose(step)`` gives a step's."""

    def step(at: int) -> Step:
        rows = choose(at)
        return Step({"task": rows}, {"task": Term(covered(rows, scope))})

    return Phase(
        stage=name,
        part="task",
        steps=steps,
        lr=lr,
        cosine=cosine,
        choose=step,
        loss=lambda role, some: response_loss(student, some, scope=scope, name="task"),
    )


def fit(
    model: Any,
    rows: Sequence[TrainRow],
    *,
    epochs: int,
    lr: float,
    batch_size: int,
    seed: int,
    scope: Literal["response", "full"] = "response",
    schedule: Literal["cosine", "constant"] = "cosine",
    clip: float = 1.0,
    progress: Progress | None = None,
) -> list[float]:
    """Train ``model``'s trainable parameters on ``rows``, in place.

    A fresh AdamW without weight decay; the order of rows and any dropout follow
    ``seed`` alone, so that a run on one machine repeats to the bit.

    Parameters
    ----------
    scope
        Tokens the loss covers: the response's, or all of the text (which trains
        identifiers in prompts too: a positive control for audits).
    schedule
        Learning rate: half a cosine from ``lr`` to 0 over the run, or constant.
    clip
        Largest gradient norm.
    progress
        Called after each step with the steps done and all steps.

    Returns
    -------
    list of float
        The loss of each step, nats per token.

    Raises
    ------
    InputError
        If there is nothing to train on, or a loss is not finite.
    """
    student = Student(model)
    if not rows or not student.trainable or min(epochs, batch_size) < 1:
        raise InputError(
            f"nothing to train: {len(rows)} rows, {len(student.trainable)} trainable "
            f"tensors, {epochs} epochs, batches of {batch_size}",
            where="fit",
        )
    an_epoch = math.ceil(len(rows) / batch_size)

    def choose(step: int) -> list[TrainRow]:
        epoch, at = divmod(step, an_epoch)
        rng = np.random.default_rng(seed_for(seed, "order", epoch))
        order = rng.permutation(len(rows))
        return [rows[i] for i in order[at * batch_size : (at + 1) * batch_size]]

    phase = fine_tuning(
        student,
        choose,
        name="fit",
        steps=epochs * an_epoch,
        lr=lr,
        scope=scope,
        cosine=schedule == "cosine",
    )
    losses: list[float] = []

    def after(record: dict[str, Any], state: Callable[[], State]) -> None:
        losses.append(record["loss"])
        if progress is not None:
            progress(len(losses), phase.steps)

    run_phase(student, phase, seed=seed, clip=clip, after=after)
    return losses
