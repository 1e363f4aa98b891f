"""Sequential fine-tuning: task after task, nothing done against forgetting."""

from __future__ import annotations

from spark_train.loop import Phase
from spark_train.methods.method import Method
from spark_train.phases.task import learning
from spark_train.stream import Stream


def seqft(stream: Stream) -> list[Phase]:
    """One phase a task."""
    return [learning(stream, k) for k in range(len(stream.tasks))]


METHOD = Method("seqft", seqft, no_epsilon="", summary=__doc__)
