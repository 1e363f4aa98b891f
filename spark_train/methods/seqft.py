"""Sequential fine-tuning: task after task, nothing done against forgetting."""

from __future__ import annotations

from spark_train.loop import Phase
from spark_train.methods import METHODS
from spark_train.phases.task import learning
from spark_train.stream import Stream


@METHODS.register(reads=lambda: (), no_epsilon=lambda: "")
def seqft(stream: Stream) -> list[Phase]:
    """One phase a task."""
    return [learning(stream, k) for k in range(len(stream.tasks))]
