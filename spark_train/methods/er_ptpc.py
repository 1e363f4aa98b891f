"""Experience replay, with SPARK's privacy correction after each task."""

from __future__ import annotations

from spark_train.loop import Phase
from spark_train.methods.method import REHEARSAL, Method
from spark_train.phases.correction import correction
from spark_train.phases.task import Rehearsal, learning
from spark_train.stream import Stream

NO_EPSILON = (
    "correction draws its rows otherwise than by Poisson sampling, and its teacher "
    "reads them without noise"
)


def er_ptpc(stream: Stream) -> list[Phase]:
    """Two phases a task."""
    recall = Rehearsal(stream)
    return [
        phase
        for k in range(len(stream.tasks))
        for phase in (learning(stream, k, recall=recall), correction(stream, k))
    ]


METHOD = Method(
    "er-ptpc",
    er_ptpc,
    reads=(*REHEARSAL, "ptpc"),
    no_epsilon=NO_EPSILON,
    summary=__doc__,
)
