"""Experience replay: half of each batch are rows of earlier tasks."""

from __future__ import annotations

from spark_train.loop import Phase
from spark_train.methods.method import REHEARSAL, Method
from spark_train.phases.task import Rehearsal, learning
from spark_train.stream import Stream


def er(stream: Stream) -> list[Phase]:
    """One phase a task, with the mean NLL of the replayed responses beside its own."""
    recall = Rehearsal(stream)
    return [learning(stream, k, recall=recall) for k in range(len(stream.tasks))]


METHOD = Method("er", er, reads=REHEARSAL, no_epsilon="", summary=__doc__)
