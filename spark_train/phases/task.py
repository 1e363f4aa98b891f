"""Learning a task: its rows, and beside them what is replayed of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from spark_audit.errors import InputError
from spark_train.data import TrainRow
from spark_train.loop import Each, Phase, Step, Sums, Term
from spark_train.phases.fine_tuning import covered, response_loss
from spark_train.stream import Stream

TASK, REPLAY = "task", "replay"
"""Roles of rows: a batch's current and its replayed ones."""


class Recall(Protocol):
    """What is asked of replayed rows."""

    def start(self, rows: Sequence[TrainRow]) -> None:
        """Called with all rows that will be replayed, before the first step."""

    def end(self) -> None:
        """Called after the last step."""

    def told(self, steps: int) -> str:
        """What a reader must know, once started, of a task of so many steps."""

    def terms(self, rows: Sequence[TrainRow]) -> Mapping[str, Term]:
        """The terms of a batch's replayed rows."""

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """Their sums over some of these rows."""


class Rehearsal:
    """Experience replay: replayed rows are learned as current ones are."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def start(self, rows: Sequence[TrainRow]) -> None:
        """Nothing to prepare."""

    def end(self) -> None:
        """Nothing to let go of."""

    def told(self, steps: int) -> str:
        """Nothing to know."""
        return ""

    def terms(self, rows: Sequence[TrainRow]) -> dict[str, Term]:
        """One term: the mean over the replayed responses."""
        settings = self._stream.settings
        count = covered(rows, settings.loss.scope)
        return {"replay": Term(count, settings.replay.lambda_)}

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """The NLL of the replayed responses."""
        scope = self._stream.settings.loss.scope
        return response_loss(self._stream.student, rows, scope=scope, name="replay")


def learning(stream: Stream, k: int, *, recall: Recall | None = None) -> Phase:
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

    Raises
    ------
    InputError
        If a batch is too small to hold a replayed row, too.
    """
    at_work = _Learning(stream, k, recall)
    return Phase(
        stage=stream.label(k),
        part="task",
        steps=stream.settings.epochs * at_work.an_epoch,
        lr=stream.settings.lr,
        choose=at_work.sample if stream.poisson else at_work.choose,
        loss=at_work.loss,
        start=at_work.start,
        end=at_work.end,
        each=Each(
            at_work.expected,
            at_work.of_row,
            at_work.rates if stream.poisson else None,
        ),
    )


class _Learning:
    """The rows, terms and losses of one task's learning."""

    def __init__(self, stream: Stream, k: int, recall: Recall | None) -> None:
        self.stream, self.k = stream, k
        self.task, settings = stream.tasks[k], stream.settings
        self.rows, self.scope = stream.rows[self.task], settings.loss.scope
        self.old: list[TrainRow] = []
        self.memory: dict[str, list[TrainRow]] = {}
        if recall is not None and k and settings.replay.enabled:
            earlier = stream.earlier(k)
            self.memory = {task: some for task, some in earlier.items() if some}
            if stream.poisson:
                self.old = [row for some in self.memory.values() for row in some]
            else:
                self.old = stream.replayed(k, len(self.rows), purpose="list")
        # Asked only where rows are replayed.
        self.recall: Recall = Rehearsal(stream)
        if recall is not None and self.old:
            self.recall = recall
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
        self.rates = {self.task: min(self.n_new / len(self.rows), 1.0)}
        for task, some in self.memory.items():
            self.rates[task] = min(self.n_old / len(self.memory) / len(some), 1.0)
        self.expected = self.rates[self.task] * len(self.rows)

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
        order = stream.order(k, epoch, size=len(self.rows), purpose=TASK)
        current = [self.rows[i] for i in order[at * n_new : (at + 1) * n_new]]
        if not self.old:
            return self.batch(current)
        order = stream.order(k, epoch, size=len(self.old), purpose=REPLAY)
        # The last batch of an epoch is smaller, in both parts alike.
        size = math.ceil(n_old * len(current) / n_new)
        places = range(at * n_old, at * n_old + size)
        again = [self.old[i] for i in order.take(places, mode="wrap")]
        return self.batch(current, again)

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
        student = self.stream.student
        return response_loss(student, some, scope=self.scope, name=TASK)

    def start(self) -> None:
        """Prepare what is asked of replayed rows."""
        if self.old:
            self.recall.start(self.old)
            steps = self.stream.settings.epochs * self.an_epoch
            if said := self.recall.told(steps):
                self.stream.note(f"{self.stream.label(self.k)}: {said}")

    def end(self) -> None:
        """Let go of it."""
        if self.old:
            self.recall.end()
