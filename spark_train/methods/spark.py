"""SPARK: self-distillation replay, then privacy correction after each task."""

from __future__ import annotations

from spark_train.loop import Phase
from spark_train.methods.method import Method
from spark_train.phases.correction import correction
from spark_train.phases.replay import Distillation
from spark_train.phases.task import learning
from spark_train.stream import Stream

NO_EPSILON = (
    "the teacher and the sensitivity scores read rows without noise, and correction "
    "draws its rows otherwise than by Poisson sampling"
)


def spark(stream: Stream) -> list[Phase]:
    """Two phases a task: theta_{k-1}^priv -> theta_k^task -> theta_k^priv."""
    return [
        phase
        for k in range(len(stream.tasks))
        for phase in (
            learning(stream, k, recall=Distillation(stream, k)),
            correction(stream, k),
        )
    ]


METHOD = Method(
    "spark",
    spark,
    reads=("replay", "sensitivity", "ptpc"),
    no_epsilon=NO_EPSILON,
    summary=__doc__,
)
