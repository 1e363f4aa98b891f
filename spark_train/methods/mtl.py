"""MTL: one phase over the rows of all tasks."""

from __future__ import annotations

import math
from dataclasses import replace

from spark_train.loop import Each, Phase, Term
from spark_train.methods.method import Method
from spark_train.phases.task import covered, fine_tuning
from spark_train.stream import Stream
from spark_train.training_rows import TrainRow

STAGE = "1-all"
"""The one stage: there is a single checkpoint, after all tasks at once."""


def mtl(stream: Stream) -> list[Phase]:
    """Multi-task learning: tasks shuffled together; the paper's upper bound, no BWT.

    Accuracy is measured on each.
    """
    settings = stream.settings
    rows = [row for task in stream.tasks for row in stream.rows[task]]
    size = settings.batch_size
    an_epoch = math.ceil(len(rows) / size)
    rate = min(size / len(rows), 1.0)
    each = Each(
        min(size, len(rows)),
        lambda role, row: {"task": Term(covered([row], settings.loss.scope))},
        dict.fromkeys(stream.tasks, rate) if stream.poisson else None,
    )

    def choose(step: int) -> list[TrainRow]:
        if stream.poisson:
            return stream.sampled(step, rows, rate, purpose=STAGE)
        epoch, at = divmod(step, an_epoch)
        order = stream.order(0, epoch, size=len(rows), purpose="all tasks")
        return [rows[i] for i in order[at * size : (at + 1) * size]]

    phase = fine_tuning(
        stream.student,
        choose,
        name=STAGE,
        steps=settings.epochs * an_epoch,
        lr=settings.lr,
        scope=settings.loss.scope,
    )
    return [replace(phase, tasks=stream.tasks, each=each)]


MTL = Method("mtl", mtl, no_epsilon="")
