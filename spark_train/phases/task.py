"""Learning a task: its rows, and beside them what is replayed of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from spark_audit.errors import InputError
from spark_train.data import TrainRow
from spark_train.loop import Each, Phase, Step, Sums, Term, covered, response_loss
from spark_train.stream import Stream

TASK, REPLAY = "task", "replay"
"""Roles of rows: a batch's current and its replayed ones."""


class Recall(Protocol):
    """What is asked of replayed rows."""

    def start(self, rows: Sequence[TrainRow]) -> None:
        """Called with all rows that will be replayed, before the first step."""

    def end(self) -> None:
        """Called after the last step."""

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
    settings, rows = stream.settings, stream.rows[stream.tasks[k]]
    old: list[TrainRow] = []
    memory: dict[str, list[TrainRow]] = {}
    if recall is not None and k and settings.replay.enabled:
        memory = {task: some for task, some in stream.earlier(k).items() if some}
        if stream.poisson:
            old = [row for some in memory.values() for row in some]
        else:
            old = stream.replayed(k, len(rows), purpose="list")
    if old and settings.batch_size < 2:
        raise InputError(
            "batch_size 1 has no room for a replayed row beside the current one",
            where="--set",
            fix="give 2 or more",
        )
    n_old = round(settings.batch_size * settings.replay.ratio) if old else 0
    n_old = min(max(n_old, 1), settings.batch_size - 1) if old else 0
    n_new = settings.batch_size - n_old
    an_epoch = math.ceil(len(rows) / n_new)
    rates = {stream.tasks[k]: min(n_new / len(rows), 1.0)}
    for task, some in memory.items():
        rates[task] = min(n_old / len(memory) / len(some), 1.0)
    size = rates[stream.tasks[k]] * len(rows)
    size_old = sum(rates[task] * len(some) for task, some in memory.items())

    def together(current: list[TrainRow], again: Sequence[TrainRow] = ()) -> Step:
        terms = {TASK: Term(covered(current, settings.loss.scope))}
        if not old:
            return Step({TASK: current}, terms)
        assert recall is not None
        return Step({TASK: current, REPLAY: again}, {**terms, **recall.terms(again)})

    def choose(step: int) -> Step:
        epoch, at = divmod(step, an_epoch)
        order = stream.order(k, epoch, size=len(rows), purpose=TASK)
        current = [rows[i] for i in order[at * n_new : (at + 1) * n_new]]
        if not old:
            return together(current)
        order = stream.order(k, epoch, size=len(old), purpose=REPLAY)
        # The last batch of an epoch is smaller, in both parts alike.
        size = math.ceil(n_old * len(current) / n_new)
        places = range(at * n_old, at * n_old + size)
        return together(current, [old[i] for i in order.take(places, mode="wrap")])

    def sample(step: int) -> Step:
        label = stream.label(k)

        def draw(task: str, some: Sequence[TrainRow]) -> list[TrainRow]:
            purpose = f"{label} {task}"
            return stream.sampled(step, some, rates[task], purpose=purpose)

        current = draw(stream.tasks[k], rows)
        return together(
            current, [row for task, some in memory.items() for row in draw(task, some)]
        )

    def own(role: str, row: TrainRow) -> Mapping[str, Term]:
        if role != REPLAY:
            return {TASK: Term(covered([row], settings.loss.scope))}
        assert recall is not None
        return {
            name: replace(term, weight=term.weight * size / size_old)
            for name, term in recall.terms([row]).items()
        }

    def loss(role: str, some: Sequence[TrainRow]) -> Sums:
        if role == REPLAY:
            assert recall is not None
            return recall.loss(some)
        scope = settings.loss.scope
        return response_loss(stream.student, some, scope=scope, name=TASK)

    def start() -> None:
        if old and recall is not None:
            recall.start(old)

    def end() -> None:
        if old and recall is not None:
            recall.end()

    return Phase(
        stage=stream.label(k),
        part="task",
        steps=settings.epochs * an_epoch,
        lr=settings.lr,
        choose=sample if stream.poisson else choose,
        loss=loss,
        start=start,
        end=end,
        each=Each(size, own, rates if stream.poisson else None),
    )
