"""The names of stages and phases, by which the record of a run has its seconds.

A stage is named after its number and task (``2-yelp``). The key of a phase is its stage
and its part (``2-yelp/task``), and that of a stage's answers ``2-yelp/answers``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_train import loop
from spark_train.run_record import PhaseSeconds

ANSWERS_SUFFIX = "/answers"
"""End of the key of a stage's answers, behind the stage, among the seconds of a run."""


def ends_stage(number: int, phases: Sequence[loop.Phase]) -> bool:
    """Return whether a phase is the last one of its stage."""
    next_phases = phases[number + 1 :]
    return all(phase.stage != phases[number].stage for phase in next_phases)


def number_and_task(stage: str) -> tuple[int, str]:
    """Return the number of a stage, from 1, and its task: ``2-yelp`` is (2, "yelp")."""
    number, _, task = stage.partition("-")
    return int(number), task


def answers_key(stage: str) -> str:
    """Return the key of the seconds that the answers after a stage took."""
    return f"{stage}{ANSWERS_SUFFIX}"


def finished_stage_keys(seconds: PhaseSeconds) -> Iterator[str]:
    """Yield the key of the last phase of each answered stage, such as ``2-yelp/priv``.

    The answers of a stage stand right behind its last phase.
    """
    previous_key = ""
    for key in seconds:
        if key.endswith(ANSWERS_SUFFIX):
            yield previous_key
        previous_key = key
