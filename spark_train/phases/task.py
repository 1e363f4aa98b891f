"""Learning: rows are learned, and beside them what is replayed of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spark_audit.errors import InputError
from spark_train.loop import Phase, State, Step, Sums, Term, run_phase
from spark_train.losses import token_nll
from spark_train.model.student import Student
from spark_train.stream import Stream
from spark_train.training_rows import TrainRow, collate

TASK, REPLAY = "task", "replay"
"""Roles of rows: a batch's current and its replayed ones."""


# --- plain fine-tuning ----------------------------------------------------------------


def response_loss(
    student: Student, rows: Sequence[TrainRow], *, scope: str, name: str = TASK
) -> Sums:
    """The summed NLL of the tokens that a scope covers (Eq. "task")."""
    batch = collate(rows, student.device)
    mask = batch.response if scope == "response" else batch.attention
    hidden = student.hidden(batch, mask)
    return {name: student.summed(hidden, batch, mask, mask, token_nll)}


def covered(rows: Sequence[TrainRow], scope: str) -> int:
    """Tokens that :func:`response_loss` covers; a row's first is never predicted."""
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
    """Learn whole rows and nothing else; the loss of each step, nats per token.

    A fresh AdamW without weight decay; any dropout follows ``seed`` alone, so that a
    run on one machine repeats to the bit.

    Parameters
    ----------
    order
        Shape ``(n,)``: indices of the rows as they are read, ``batch_size`` in each
        step.
    lr
        Falls by half a cosine to 0.
    progress
        Called after each step with the steps done and all steps.

    Raises
    ------
    InputError
        If a loss is not finite.
    """
    losses: list[float] = []
    steps = math.ceil(len(order) / batch_size)

    def choose(step: int) -> Step:
        chosen = [rows[i] for i in order[step * batch_size :][:batch_size]]
        return Step({TASK: chosen}, {TASK: Term(covered(chosen, "full"))})

    def after(record: dict[str, Any], state: Callable[[], State]) -> None:
        losses.append(record["loss"])
        progress(len(losses), steps)

    phase = Phase(
        stage=name,
        part=TASK,
        steps=steps,
        lr=lr,
        choose=choose,
        loss=lambda role, some: response_loss(student, some, scope="full"),
    )
    run_phase(student, phase, seed=seed, after=after)
    return losses


# --- a task of a stream ---------------------------------------------------------------


class Rehearsal:
    """Experience replay: replayed rows are learned as current ones are."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def start(self, rows: Sequence[TrainRow], steps: int) -> None:
        """Called before the first of the steps, with all rows that will be replayed."""

    def end(self) -> None:
        """Called after the last step."""

    def terms(self, rows: Sequence[TrainRow]) -> dict[str, Term]:
        """The terms of a batch's replayed rows: here the mean over their responses."""
        settings = self.stream.settings
        count = covered(rows, settings.loss.scope)
        return {REPLAY: Term(count, settings.replay.lambda_)}

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """Their sums over some of these rows."""
        scope = self.stream.settings.loss.scope
        return response_loss(self.stream.student, rows, scope=scope, name=REPLAY)


def learning(
    stream: Stream, k: int, *, recall: Rehearsal | None = None, purpose: str = TASK
) -> Phase:
    """The phase in which task ``k`` is learned.

    ``L_train = L_task + lambda_replay L_replay`` (SPARK, Eq. "train"): the mean NLL of
    the current rows' responses, and what ``recall`` asks of the replayed rows. Each
    current row is seen once an epoch. Of earlier tasks a list as long as the task's own
    rows is drawn once, evenly over them, and reshuffled each epoch **[ours]**.

    Where the stream samples by Poisson, each row comes into a step's batch by a draw of
    its own, at rates that give as many rows as expected: the current ones alike, the
    replayed ones evenly over earlier tasks, out of all that is kept of them.

    Parameters
    ----------
    k
        The task, from 0.
    recall
        What replayed rows are for; ``None``, or the first task: no replay.
    purpose
        Of the order of rows, for its seed.

    Raises
    ------
    InputError
        If a batch is too small to hold a replayed row, too.
    """
    at_work = _Learning(stream, k, recall, purpose)
    return Phase(
        stage=stream.label(k),
        part=TASK,
        steps=at_work.steps,
        lr=stream.settings.lr,
        choose=at_work.sample if stream.poisson else at_work.choose,
        loss=at_work.loss,
        start=lambda: at_work.recall.start(at_work.old, at_work.steps),
        end=at_work.recall.end,
        of_row=at_work.of_row,
        size=at_work.expected,
        rates=at_work.rates if stream.poisson else None,
    )


class _Learning:
    """The rows, terms and losses of one task's learning."""

    def __init__(
        self, stream: Stream, k: int, recall: Rehearsal | None, purpose: str
    ) -> None:
        self.stream, self.k, settings = stream, k, stream.settings
        self.purpose = purpose
        self.task = stream.tasks[k]
        self.rows, self.scope = stream.rows[self.task], settings.loss.scope
        self.old: list[TrainRow] = []
        self.memory: dict[str, list[TrainRow]] = {}
        if recall is not None and k and settings.replay.enabled:
            self.memory = {
                task: some for task, some in stream.earlier(k).items() if some
            }
            self.old = stream.replayed(k, len(self.rows), purpose="list")
            if stream.poisson:
                self.old = [row for some in self.memory.values() for row in some]
        # Asked only where rows are replayed.
        self.recall = recall if recall is not None and self.old else Rehearsal(stream)
        if self.old and settings.batch_size < 2:
            raise InputError(
                "batch_size 1 has no room for a replayed row next to the current one",
                where="--set",
                fix="give 2 or more",
            )
        n_old = round(settings.batch_size * settings.replay.ratio)
        self.n_old = min(max(n_old, 1), settings.batch_size - 1) if self.old else 0
        self.n_new = settings.batch_size - self.n_old
        self.an_epoch = math.ceil(len(self.rows) / self.n_new)
        self.steps = settings.epochs * self.an_epoch
        self.rates = {self.task: min(self.n_new / len(self.rows), 1.0)}
        for task, some in self.memory.items():
            self.rates[task] = min(self.n_old / len(self.memory) / len(some), 1.0)
        self.expected = min(self.n_new, len(self.rows))

    def batch(self, current: list[TrainRow], again: Sequence[TrainRow] = ()) -> Step:
        """Current and replayed rows as a step."""
        terms = {TASK: Term(covered(current, self.scope))}
        if not self.old:
            return Step({TASK: current}, terms)
        more = self.recall.terms(again)
        return Step({TASK: current, REPLAY: again}, {**terms, **more})

    def choose(self, step: int) -> Step:
        """The rows of a step, each current one once an epoch."""
        stream, k, n_old, n_new = self.stream, self.k, self.n_old, self.n_new
        epoch, at = divmod(step, self.an_epoch)
        order = stream.order(k, epoch, size=len(self.rows), purpose=self.purpose)
        current = [self.rows[i] for i in order[at * n_new : (at + 1) * n_new]]
        if not self.old:
            return self.batch(current)
        order = stream.order(k, epoch, size=len(self.old), purpose=REPLAY)
        # The last batch of an epoch is smaller, in both parts alike.
        size = math.ceil(n_old * len(current) / n_new)
        places = range(at * n_old, at * n_old + size)
        return self.batch(
            current, [self.old[i] for i in order.take(places, mode="wrap")]
        )

    def sample(self, step: int) -> Step:
        """The rows of a step by Poisson sampling."""
        label = self.stream.label(self.k)
        current, *earlier = (
            self.stream.sampled(step, some, self.rates[task], purpose=f"{label} {task}")
            for task, some in ((self.task, self.rows), *self.memory.items())
        )
        return self.batch(current, [row for some in earlier for row in some])

    def of_row(self, role: str, row: TrainRow) -> Mapping[str, Term]:
        """The terms of one row's own loss."""
        if role != REPLAY:
            return {TASK: Term(covered([row], self.scope))}
        replayed = sum(self.rates[t] * len(some) for t, some in self.memory.items())
        return {
            name: replace(term, weight=term.weight * self.expected / replayed)
            for name, term in self.recall.terms([row]).items()
        }

    def loss(self, role: str, some: Sequence[TrainRow]) -> Sums:
        """Sums over current rows' responses, or what is asked of replayed ones."""
        if role == REPLAY:
            return self.recall.loss(some)
        return response_loss(self.stream.student, some, scope=self.scope)
