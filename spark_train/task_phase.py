"""The phase that learns a task and replays rows of earlier tasks.

:func:`learning_phase` decides which rows a step reads, for every method. What the
replayed rows of a step are for is a :class:`Rehearsal`: a method with another use of
them makes a subclass, as ``distilled_replay.py`` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_audit.errors import InputError
from spark_train.fine_tuning import (
    REPLAY_ROLE,
    TASK_ROLE,
    n_covered_tokens,
    response_loss,
)
from spark_train.loop import Phase, Probe, Rows, Step, Sums, Term
from spark_train.stream import Stream
from spark_train.training_rows import TrainRow


class Rehearsal:
    """Experience replay: replayed rows are learned like current ones.

    The phase calls :meth:`start`, then for each step :meth:`terms` with the step's
    replayed rows and :meth:`loss` with parts of them, and at last :meth:`end`.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def start(self, rows: Sequence[TrainRow], steps: int) -> None:
        """Prepare for the phase; called with all rows that will be replayed."""

    def end(self) -> None:
        """Free what :meth:`start` prepared; called after the last step."""

    def terms(self, rows: Sequence[TrainRow]) -> dict[str, Term]:
        """Return the terms of replayed rows: here the mean NLL of their responses."""
        settings = self.stream.settings
        count = n_covered_tokens(rows, settings.loss.scope)
        return {REPLAY_ROLE: Term(count, settings.replay.lambda_)}

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """Return the terms' sums over some of these rows."""
        scope = self.stream.settings.loss.scope
        return response_loss(self.stream.student, rows, scope=scope, name=REPLAY_ROLE)

    def probe(self, rows: Sequence[TrainRow]) -> Probe | None:
        """Return what is recorded of some of the rows now and then: here nothing."""
        return None


def learning_phase(
    stream: Stream,
    k: int,
    *,
    rehearsal: Rehearsal | None = None,
    purpose: str = TASK_ROLE,
) -> Phase:
    """Return the phase in which task ``k`` is learned.

    ``L_train = L_task + lambda_replay L_replay`` (SPARK, Eq. "train"): the mean NLL of
    the current rows' responses, and what ``rehearsal`` asks of the replayed rows. Each
    current row is seen once an epoch. Of earlier tasks a list as long as the task's own
    rows is drawn once, evenly over them, and reshuffled each epoch **[ours]**.

    With Poisson sampling, each row enters a batch by a draw of its own. The rates give
    the same expected numbers of rows: current rows have equal rates, and replayed ones
    are spread evenly over earlier tasks, out of all that are kept.

    Parameters
    ----------
    k
        The task, from 0.
    rehearsal
        What replayed rows are for; ``None``, or the first task: no replay.
    purpose
        Names the order of current rows for its seed, so that another purpose gets
        another order.

    Raises
    ------
    InputError
        If a batch has no room for a replayed row.
    """
    settings = stream.settings
    scope = settings.loss.scope

    memory: dict[str, list[TrainRow]] = {}
    if rehearsal is not None:
        memory = _memory(stream, k)
    batches = _batches(stream, k, memory, purpose=purpose)
    steps = settings.epochs * batches.steps_per_epoch

    # Without replayed rows nothing asks the rehearsal, so any will do: a distillation
    # would ask its teacher in vain.
    replay = Rehearsal(stream)
    if rehearsal is not None and batches.old_rows:
        replay = rehearsal

    def terms(batch: Rows) -> dict[str, Term]:
        """Return the terms of a batch; DP-SGD asks for a single row, of one role."""
        terms_by_name: dict[str, Term] = {}
        if TASK_ROLE in batch:
            terms_by_name[TASK_ROLE] = Term(n_covered_tokens(batch[TASK_ROLE], scope))
        if REPLAY_ROLE in batch:
            terms_by_name |= replay.terms(batch[REPLAY_ROLE])
        return terms_by_name

    def loss(role: str, rows_of_role: Sequence[TrainRow]) -> Sums:
        """Return the sums of the terms of a role's rows."""
        if role == REPLAY_ROLE:
            return replay.loss(rows_of_role)
        return response_loss(stream.student, rows_of_role, scope=scope)

    # For DP-SGD: replayed and current rows are in a batch in other numbers.
    expected_rows = (batches.expected_new, batches.expected_old)
    names_of_replay_terms = list(replay.terms([]))
    return Phase(
        stage=stream.stage_name(k),
        part=TASK_ROLE,
        steps=steps,
        lr=settings.lr,
        choose=batches.sample if stream.poisson else batches.choose,
        terms=terms,
        loss=loss,
        start=lambda: replay.start(batches.old_rows, steps),
        end=replay.end,
        expected_rows=batches.expected_new,
        weight_ratios=dict.fromkeys(names_of_replay_terms, expected_rows),
        sampling_rates=batches.rates if stream.poisson else None,
        probe=replay.probe(batches.old_rows),
    )


@dataclass(frozen=True)
class LearningBatches:
    """The rows of each step of a phase that learns task ``k``.

    Attributes
    ----------
    purpose
        Names the order of current rows for its seed.
    rows
        Rows of the task.
    memory
        Task before ``k`` -> its rows that may be replayed; empty: no replay.
    old_rows
        Rows of earlier tasks that batches take: with Poisson sampling all of
        ``memory``, otherwise a list that each epoch passes through.
    n_new, n_old
        Current and replayed rows of a full batch.
    """

    stream: Stream
    k: int
    purpose: str
    rows: Sequence[TrainRow]
    memory: Mapping[str, Sequence[TrainRow]]
    old_rows: Sequence[TrainRow]
    n_new: int
    n_old: int

    @property
    def steps_per_epoch(self) -> int:
        """Return in how many steps each current row is read once."""
        return math.ceil(len(self.rows) / self.n_new)

    @property
    def task(self) -> str:
        """Return the name of the task."""
        return self.stream.tasks[self.k]

    @property
    def rates(self) -> dict[str, float]:
        """Map each task to the probability of each of its rows in a sampled batch."""
        current_rate = _rates({self.task: self.rows}, self.n_new)
        return current_rate | _rates(self.memory, self.n_old)

    @property
    def expected_new(self) -> int:
        """Return the expected number of current rows in a sampled batch."""
        # A rate is at most 1, so a small task has fewer than its place in a batch.
        return min(self.n_new, len(self.rows))

    @property
    def expected_old(self) -> float:
        """Return the expected number of replayed rows in a sampled batch."""
        rates = self.rates
        return sum(rates[task] * len(rows) for task, rows in self.memory.items())

    def choose(self, step: int) -> Step:
        """Return the rows of a step; each epoch has each current row once."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        order = self.stream.epoch_order(
            self.k, epoch, size=len(self.rows), purpose=self.purpose
        )
        new_indices = order[batch * self.n_new : (batch + 1) * self.n_new]
        new = [self.rows[i] for i in new_indices]
        if not self.old_rows:
            return Step({TASK_ROLE: new})

        # The last batch of an epoch may be smaller, in both parts.
        start = batch * self.n_old
        end = start + math.ceil(self.n_old * len(new) / self.n_new)
        old_order = self.stream.epoch_order(
            self.k, epoch, size=len(self.old_rows), purpose=REPLAY_ROLE
        )
        # If an epoch needs more rows than the list has, it begins anew.
        old_indices = old_order.take(range(start, end), mode="wrap")
        old = [self.old_rows[i] for i in old_indices]
        return Step({TASK_ROLE: new, REPLAY_ROLE: old})

    def sample(self, step: int) -> Step:
        """Return the rows of a step by Poisson sampling; there may be none."""
        label = self.stream.stage_name(self.k)
        rates = self.rates
        new = self.stream.sample_poisson(
            step, self.rows, rates[self.task], purpose=f"{label} {self.task}"
        )
        if not self.old_rows:
            return Step({TASK_ROLE: new})

        old: list[TrainRow] = []
        for task, rows in self.memory.items():
            old += self.stream.sample_poisson(
                step, rows, rates[task], purpose=f"{label} {task}"
            )
        return Step({TASK_ROLE: new, REPLAY_ROLE: old})


def _batches(
    stream: Stream, k: int, memory: Mapping[str, Sequence[TrainRow]], *, purpose: str
) -> LearningBatches:
    """Return the batches of task ``k``, whose replayed rows come from a memory.

    Raises
    ------
    InputError
        If a batch has no room for a replayed row.
    """
    settings = stream.settings
    rows = stream.rows[stream.tasks[k]]
    old_rows: list[TrainRow] = []
    for earlier_rows in memory.values():
        old_rows += earlier_rows
    # Drawn once for the whole phase, evenly over the earlier tasks.
    if old_rows and not stream.poisson:
        old_rows = stream.draw_replayed(k, len(rows), purpose="list")

    n_new, n_old = _batch_sizes(
        settings.batch_size, ratio=settings.replay.ratio, has_old=bool(old_rows)
    )
    return LearningBatches(
        stream=stream,
        k=k,
        purpose=purpose,
        rows=rows,
        memory=memory,
        old_rows=old_rows,
        n_new=n_new,
        n_old=n_old,
    )


def _memory(stream: Stream, k: int) -> dict[str, list[TrainRow]]:
    """Return the rows that may be replayed, by task before ``k``."""
    if not k or not stream.settings.replay.enabled:
        return {}
    return {task: rows for task, rows in stream.replayable_rows(k).items() if rows}


def _rates(
    rows_by_task: Mapping[str, Sequence[TrainRow]], n_drawn: int
) -> dict[str, float]:
    """Return the probability of a row of each task in a batch, evenly over tasks.

    The expected number of a task's rows is ``n_drawn`` over the number of tasks, if the
    task has so many.

    Parameters
    ----------
    n_drawn
        Expected number of rows of these tasks in a batch.
    """
    rates = {}
    for task, rows in rows_by_task.items():
        rates[task] = min(n_drawn / len(rows_by_task) / len(rows), 1.0)
    return rates


def _batch_sizes(size: int, *, ratio: float, has_old: bool) -> tuple[int, int]:
    """Return how many rows of a batch are current, and how many are replayed.

    If any are replayed, there is at least one of each.

    Raises
    ------
    InputError
        If the batch is too small for both.
    """
    if not has_old:
        return size, 0
    if size < 2:
        raise InputError(
            "batch_size 1 has no room for a replayed row next to the current one",
            where="--set",
            fix="give 2 or more",
        )
    n_old = min(max(round(size * ratio), 1), size - 1)
    return size - n_old, n_old
