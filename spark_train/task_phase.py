"""The phase that learns a task and replays rows of earlier tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spark_audit.errors import InputError
from spark_train.fine_tuning import (
    REPLAY_ROLE,
    TASK_ROLE,
    n_covered_tokens,
    response_loss,
)
from spark_train.loop import Phase, Rows, Step, Sums, Term
from spark_train.stream import Stream
from spark_train.training_rows import TrainRow


class Rehearsal:
    """Experience replay: replayed rows are learned like current ones."""

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
        Purpose of the order of rows, for its seed.

    Raises
    ------
    InputError
        If a batch has no room for a replayed row.
    """
    settings = stream.settings
    scope = settings.loss.scope
    task = stream.tasks[k]
    label = stream.stage_name(k)
    rows = stream.rows[task]

    # Which rows of earlier tasks are replayed. Poisson sampling draws from all that are
    # kept; else a list is gone through.
    memory = _memory(stream, k) if rehearsal is not None else {}
    old_rows: list[TrainRow] = []
    for earlier_rows in memory.values():
        old_rows += earlier_rows
    if old_rows and not stream.poisson:
        old_rows = stream.draw_replayed(k, len(rows), purpose="list")
    # Asked only where rows are replayed.
    replay = rehearsal if rehearsal is not None and old_rows else Rehearsal(stream)

    n_new, n_old = _batch_sizes(
        settings.batch_size, ratio=settings.replay.ratio, has_old=bool(old_rows)
    )
    steps_per_epoch = math.ceil(len(rows) / n_new)
    steps = settings.epochs * steps_per_epoch

    rates = _rates({task: rows}, n_new) | _rates(memory, n_old)
    expected_new = min(n_new, len(rows))
    expected_old = sum(
        rates[name] * len(earlier_rows) for name, earlier_rows in memory.items()
    )

    def choose(step: int) -> Step:
        """Return the rows of a step; each epoch has each current row once."""
        epoch, batch = divmod(step, steps_per_epoch)
        order = stream.epoch_order(k, epoch, size=len(rows), purpose=purpose)
        new = [rows[i] for i in order[batch * n_new : (batch + 1) * n_new]]
        if not old_rows:
            return Step({TASK_ROLE: new})

        # The last batch of an epoch is smaller, in both parts.
        start = batch * n_old
        end = start + math.ceil(n_old * len(new) / n_new)
        order = stream.epoch_order(k, epoch, size=len(old_rows), purpose=REPLAY_ROLE)
        # The list is as long as the task's rows, or shorter: then it begins anew.
        old = [old_rows[i] for i in order.take(range(start, end), mode="wrap")]
        return Step({TASK_ROLE: new, REPLAY_ROLE: old})

    def sample(step: int) -> Step:
        """Return the rows of a step by Poisson sampling."""
        new = stream.sample_poisson(step, rows, rates[task], purpose=f"{label} {task}")
        if not old_rows:
            return Step({TASK_ROLE: new})

        old: list[TrainRow] = []
        for name, earlier_rows in memory.items():
            draw = f"{label} {name}"
            old += stream.sample_poisson(step, earlier_rows, rates[name], purpose=draw)
        return Step({TASK_ROLE: new, REPLAY_ROLE: old})

    def terms(batch: Rows) -> dict[str, Term]:
        terms_by_name: dict[str, Term] = {}
        if TASK_ROLE in batch:
            terms_by_name[TASK_ROLE] = Term(n_covered_tokens(batch[TASK_ROLE], scope))
        if REPLAY_ROLE in batch:
            terms_by_name |= replay.terms(batch[REPLAY_ROLE])
        return terms_by_name

    def loss(role: str, rows_of_role: Sequence[TrainRow]) -> Sums:
        if role == REPLAY_ROLE:
            return replay.loss(rows_of_role)
        return response_loss(stream.student, rows_of_role, scope=scope)

    return Phase(
        stage=label,
        part=TASK_ROLE,
        steps=steps,
        lr=settings.lr,
        choose=sample if stream.poisson else choose,
        terms=terms,
        loss=loss,
        start=lambda: replay.start(old_rows, steps),
        end=replay.end,
        expected_rows=expected_new,
        weight_ratios=dict.fromkeys(replay.terms([]), (expected_new, expected_old)),
        sampling_rates=rates if stream.poisson else None,
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
