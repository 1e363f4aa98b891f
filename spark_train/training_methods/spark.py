"""SPARK and its ablations, which train one task after the other.

Phase 1 learns a task (``spark_train/task_phase.py``) and replays earlier ones, plainly
or distilled (``spark_train/distilled_replay.py``). Phase 2 is the privacy correction
(``spark_train/correction.py``).
"""

from __future__ import annotations

from spark_train.correction import correction_phase
from spark_train.distilled_replay import Distillation
from spark_train.loop import Phase
from spark_train.method import REHEARSAL, Method, task_by_task
from spark_train.stream import Stream
from spark_train.task_phase import Rehearsal, learning_phase

_READS = "the teacher and the sensitivity scores read rows without noise"
_NOT_POISSON = "correction draws its rows otherwise than by Poisson sampling"
"""Why no epsilon can be claimed for a method under DP-SGD."""


@task_by_task
def seqft(stream: Stream, k: int) -> list[Phase]:
    """Sequential fine-tuning: task after task, nothing done against forgetting."""
    return [learning_phase(stream, k)]


@task_by_task
def er(stream: Stream, k: int) -> list[Phase]:
    """Experience replay: half of each batch are rows of earlier tasks."""
    return [learning_phase(stream, k, rehearsal=Rehearsal(stream))]


@task_by_task
def er_ptpc(stream: Stream, k: int) -> list[Phase]:
    """Experience replay, with SPARK's privacy correction after each task."""
    return [
        learning_phase(stream, k, rehearsal=Rehearsal(stream)),
        correction_phase(stream, k),
    ]


@task_by_task
def sd_replay(stream: Stream, k: int) -> list[Phase]:
    """Self-distillation replay: SPARK's first phase alone, without privacy correction.

    Earlier rows are distilled from the previous checkpoint.
    """
    return [learning_phase(stream, k, rehearsal=Distillation(stream, k))]


@task_by_task
def spark(stream: Stream, k: int) -> list[Phase]:
    """SPARK: self-distillation replay, then privacy correction after each task.

    Two phases a task: theta_{k-1}^priv -> theta_k^task -> theta_k^priv.
    """
    return [
        learning_phase(stream, k, rehearsal=Distillation(stream, k)),
        correction_phase(stream, k),
    ]


SEQFT = Method("seqft", seqft, no_epsilon="")

ER = Method("er", er, reads=REHEARSAL, no_epsilon="")

ER_PTPC = Method(
    "er-ptpc",
    er_ptpc,
    reads=(*REHEARSAL, "ptpc"),
    no_epsilon=f"{_NOT_POISSON}, and its teacher reads them without noise",
)

SD_REPLAY = Method(
    "sd-replay", sd_replay, reads=("replay", "sensitivity"), no_epsilon=_READS
)

SPARK = Method(
    "spark",
    spark,
    reads=("replay", "sensitivity", "ptpc"),
    no_epsilon=f"{_READS}, and {_NOT_POISSON}",
)
