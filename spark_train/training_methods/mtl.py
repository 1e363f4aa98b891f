"""Multi-task learning: all tasks at once."""

from __future__ import annotations

from dataclasses import replace

from spark_train.loop import Phase
from spark_train.method import Method
from spark_train.stream import Stream
from spark_train.task_phase import learning_phase


def mtl(stream: Stream) -> list[Phase]:
    """Multi-task learning: tasks shuffled together; the paper's upper bound, no BWT.

    All rows are one task, whose stage is ``1-all``. Accuracy is measured on each task
    of the stream.
    """
    rows = [row for task in stream.tasks for row in stream.rows[task]]
    phase = learning_phase(replace(stream, rows={"all": rows}), 0, purpose="all tasks")

    # DP-SGD has an epsilon for each task, and all have the same rate here.
    rates = None
    if phase.sampling_rates is not None:
        rates = dict.fromkeys(stream.tasks, phase.sampling_rates["all"])
    return [replace(phase, tasks=stream.tasks, sampling_rates=rates)]


MTL = Method("mtl", mtl, no_epsilon="")
