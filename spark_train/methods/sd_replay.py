"""Self-distillation replay: SPARK's first phase alone, without privacy correction."""

from __future__ import annotations

from spark_train.loop import Phase
from spark_train.methods.method import Method
from spark_train.phases.replay import Distillation
from spark_train.phases.task import learning
from spark_train.stream import Stream


def sd_replay(stream: Stream) -> list[Phase]:
    """One phase a task; earlier rows are distilled from the previous checkpoint."""
    return [
        learning(stream, k, recall=Distillation(stream, k))
        for k in range(len(stream.tasks))
    ]


METHOD = Method(
    "sd-replay",
    sd_replay,
    reads=("replay", "sensitivity"),
    no_epsilon="the teacher and the sensitivity scores read rows without noise",
    summary=__doc__,
)
