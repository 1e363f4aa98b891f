"""Take the first phase of another run that would train the same, byte for byte.

Methods that learn task after task and replay earlier ones have nothing to replay in the
first task. So their runs are the same until the end of it, if they share everything
that this phase reads. The demo trains it once for several runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from spark_audit.files import write_text
from spark_train import loop
from spark_train.adapter_folder import replaced
from spark_train.run_folder import Folder
from spark_train.run_record import FREE_SETTINGS, RunRecord
from spark_train.stage_accuracy import accuracy_csv
from spark_train.stage_keys import answers_key, ends_stage
from spark_train.training_request import NO_PRIVACY

SAME_FIRST_PHASE = ("seqft", "er", "er-ptpc", "sd-replay", "spark")
"""Methods whose first phase is ``learning_phase(stream, 0)``."""

UNREAD_SETTINGS = ("replay.", "sensitivity.", "ptpc.")
"""Beginnings of names of settings that this phase does not read."""

FACTS_OF_ROUNDING = (
    "processes",
    "device",
    "threads",
    "gradient_checkpointing",
    "versions",
)
"""Facts of a start of a run on which the rounding of a step may depend."""


def take_first_phase(
    folder: Folder, record: RunRecord, phases: Sequence[loop.Phase], source: Path
) -> RunRecord:
    """Copy the first phase of another run into a new run; return the run's record.

    The folder is then that of a run that was interrupted after this phase. It and the
    record stay as they are if the other run has not finished the phase, or would not
    train the same.

    Parameters
    ----------
    folder
        Folder of the new run, without a saved state.
    phases
        All phases of the new run.
    source
        Folder of the other run, which may be in progress.
    """
    other_folder = Folder(source)
    other = other_folder.read()
    phase = phases[0]
    if other is None or phase.key not in other.seconds:
        return record
    if _facts_of_first_phase(other) != _facts_of_first_phase(record):
        return record

    seconds = {phase.key: other.seconds[phase.key]}
    has_answers = ends_stage(0, phases)
    if has_answers:
        # Prompts are answered after a stage: the other's stage must end here, too.
        key_of_answers = answers_key(phase.stage)
        stage_keys = [key for key in other.seconds if key.startswith(f"{phase.stage}/")]
        if stage_keys != [phase.key, key_of_answers]:
            return record
        seconds[key_of_answers] = other.seconds[key_of_answers]
        record = record.model_copy(update={"accuracy": other.accuracy[:1]})

    other_folder.check_adapters([phase.key])
    with replaced(folder.stages / phase.key) as adapter:
        source_adapter = other_folder.stages / phase.key
        shutil.copytree(source_adapter, adapter, dirs_exist_ok=True)

    record = record.model_copy(update={"seconds": seconds})
    folder.write(record)
    if has_answers:
        # A run of one stage does not write this file again.
        csv = accuracy_csv(record.accuracy, stages=[phase.stage], tasks=record.tasks)
        write_text(folder.accuracy, csv)
    for line in other_folder.metrics.read_text("utf-8").splitlines()[: phase.steps]:
        folder.log(json.loads(line))
    folder.save(1, loop.PhaseState(), seconds)
    return record


def _facts_of_first_phase(record: RunRecord) -> dict[str, object]:
    """Return all that the weights after the first phase depend on.

    Records whose methods begin otherwise never have the same facts.
    """
    facts = record.identity()
    if record.method in SAME_FIRST_PHASE and record.dp == NO_PRIVACY:
        facts["method"] = "learns the first task"

    # A run in progress may have been continued on another machine.
    starts = []
    for start in record.starts:
        facts_of_start = {name: start.get(name) for name in FACTS_OF_ROUNDING}
        if facts_of_start not in starts:
            starts.append(facts_of_start)

    settings = {}
    for name, value in record.settings.items():
        if name not in FREE_SETTINGS and not name.startswith(UNREAD_SETTINGS):
            settings[name] = value
    return {**facts, "starts": starts, "settings": settings}
