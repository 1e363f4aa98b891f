"""MTL: one phase over the rows of all tasks."""

from __future__ import annotations

from dataclasses import replace

from spark_train.loop import Phase
from spark_train.methods.method import Method
from spark_train.phases.task import learning
from spark_train.stream import Stream


def mtl(stream: Stream) -> list[Phase]:
    """Multi-task learning: tasks shuffled together; the paper's upper bound, no BWT.

    One task of all rows, ``1-all``; accuracy is measured on each of them.
    """
    rows = [row for task in stream.tasks for row in stream.rows[task]]
    phase = learning(replace(stream, rows={"all": rows}), 0, purpose="all tasks")
    each = phase.each
    if each is not None and each.rates:
        rates = dict.fromkeys(stream.tasks, each.rates["all"])
        each = replace(each, rates=rates)
    return [replace(phase, tasks=stream.tasks, each=each)]


MTL = Method("mtl", mtl, no_epsilon="")
