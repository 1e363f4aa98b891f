"""SPARK, and what is left of it without one part or more: one task after the other."""

from __future__ import annotations

from dataclasses import replace

from spark_train.loop import Phase
from spark_train.phases import Distillation, Rehearsal, correction, learning
from spark_train.stream import REHEARSAL, Method, Stream, task_by_task

_READS = "the teacher and the sensitivity scores read rows without noise"
_NOT_POISSON = "correction draws its rows otherwise than by Poisson sampling"


@task_by_task
def seqft(stream: Stream, k: int) -> list[Phase]:
    """Sequential fine-tuning: task after task, nothing done against forgetting."""
    return [learning(stream, k)]


@task_by_task
def er(stream: Stream, k: int) -> list[Phase]:
    """Experience replay: half of each batch are rows of earlier tasks."""
    return [learning(stream, k, recall=Rehearsal(stream))]


@task_by_task
def er_ptpc(stream: Stream, k: int) -> list[Phase]:
    """Experience replay, with SPARK's privacy correction after each task."""
    return [learning(stream, k, recall=Rehearsal(stream)), correction(stream, k)]


@task_by_task
def sd_replay(stream: Stream, k: int) -> list[Phase]:
    """Self-distillation replay: SPARK's first phase alone, without privacy correction.

    Earlier rows are distilled from the previous checkpoint.
    """
    return [learning(stream, k, recall=Distillation(stream, k))]


@task_by_task
def spark(stream: Stream, k: int) -> list[Phase]:
    """SPARK: self-distillation replay, then privacy correction after each task.

    Two phases a task: theta_{k-1}^priv -> theta_k^task -> theta_k^priv.
    """
    return [learning(stream, k, recall=Distillation(stream, k)), correction(stream, k)]


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


# --- all tasks at once ----------------------------------------------------------------


def mtl(stream: Stream) -> list[Phase]:
    """Multi-task learning: tasks shuffled together; the paper's upper bound, no BWT.

    One task of all rows, ``1-all``; accuracy is measured on each of them.
    """
    rows = [row for task in stream.tasks for row in stream.rows[task]]
    phase = learning(replace(stream, rows={"all": rows}), 0, purpose="all tasks")
    rates = phase.rates and dict.fromkeys(stream.tasks, phase.rates["all"])
    return [replace(phase, tasks=stream.tasks, rates=rates)]


MTL = Method("mtl", mtl, no_epsilon="")
