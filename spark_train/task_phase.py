"""The phase that learns a task, and beside it what is replayed of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spark_audit.errors import InputError
from spark_train.fine_tuning import REPLAY, TASK, covered, response_loss
from spark_train.loop import Phase, Rows, Step, Sums, Term
from spark_train.stream import Stream
from spark_train.training_rows import TrainRow


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
    settings, task, label = stream.settings, stream.tasks[k], stream.label(k)
    rows, scope, size = stream.rows[task], settings.loss.scope, settings.batch_size
    memory: dict[str, list[TrainRow]] = {}
    if recall is not None and k and settings.replay.enabled:
        memory = {name: some for name, some in stream.earlier(k).items() if some}
    old = [row for some in memory.values() for row in some]
    if old and not stream.poisson:
        old = stream.replayed(k, len(rows), purpose="list")
    # Asked only where rows are replayed.
    replay = recall if recall is not None and old else Rehearsal(stream)
    if old and size < 2:
        raise InputError(
            "batch_size 1 has no room for a replayed row next to the current one",
            where="--set",
            fix="give 2 or more",
        )
    n_old = min(max(round(size * settings.replay.ratio), 1), size - 1) if old else 0
    n_new = size - n_old
    an_epoch = math.ceil(len(rows) / n_new)
    steps, expected = settings.epochs * an_epoch, min(n_new, len(rows))
    rates = {task: min(n_new / len(rows), 1.0)}
    for name, some in memory.items():
        rates[name] = min(n_old / len(memory) / len(some), 1.0)
    replayed = sum(rates[name] * len(some) for name, some in memory.items())

    def choose(step: int) -> Step:
        """The rows of a step, each current one once an epoch."""
        epoch, at = divmod(step, an_epoch)
        order = stream.order(k, epoch, size=len(rows), purpose=purpose)
        current = [rows[i] for i in order[at * n_new : (at + 1) * n_new]]
        if not old:
            return Step({TASK: current})
        order = stream.order(k, epoch, size=len(old), purpose=REPLAY)
        # The last batch of an epoch is smaller, in both parts alike.
        end = at * n_old + math.ceil(n_old * len(current) / n_new)
        again = [old[i] for i in order.take(range(at * n_old, end), mode="wrap")]
        return Step({TASK: current, REPLAY: again})

    def sample(step: int) -> Step:
        """The rows of a step by Poisson sampling."""
        current, *earlier = (
            stream.sampled(step, some, rates[name], purpose=f"{label} {name}")
            for name, some in ((task, rows), *memory.items())
        )
        again = {REPLAY: [row for some in earlier for row in some]} if old else {}
        return Step({TASK: current, **again})

    def terms(batch: Rows) -> dict[str, Term]:
        found = {TASK: Term(covered(batch[TASK], scope))} if TASK in batch else {}
        return found | (replay.terms(batch[REPLAY]) if REPLAY in batch else {})

    def loss(role: str, some: Sequence[TrainRow]) -> Sums:
        if role == REPLAY:
            return replay.loss(some)
        return response_loss(stream.student, some, scope=scope)

    return Phase(
        stage=label,
        part=TASK,
        steps=steps,
        lr=settings.lr,
        choose=sample if stream.poisson else choose,
        terms=terms,
        loss=loss,
        start=lambda: replay.start(old, steps),
        end=replay.end,
        size=expected,
        shares=dict.fromkeys(replay.terms([]), (expected, replayed)),
        rates=rates if stream.poisson else None,
    )
