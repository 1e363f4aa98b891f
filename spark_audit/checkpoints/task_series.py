"""Series of tasks: a folder with one checkpoint per task, or a list of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.run_record import check_run
from spark_audit.checkpoints.specs import (
    Spec,
    distinct_suffixes,
    is_server,
    path_parts,
    split_stage,
)
from spark_audit.errors import CheckpointError, at, shown
from spark_audit.files import read_regular
from spark_audit.names import CheckpointName

# Numbered folders of stages by tool: TRACE `0`, `1`; O-LoRA and spark-train
# `1-dbpedia`; `task_1`; MCITlib `Task1_llava_lora`; torchtune `epoch_0`; the Hugging
# Face trainer `checkpoint-500`.
_NUMBERED = re.compile(
    r"((?i:task|stage|round|epoch)[-_]?(?=\d)|checkpoint-(?=\d+$)|)(\d+)([-_].*)?"
)
_STAGE_PARTS = ("priv", "task", "adapter")
"""Folders in a stage that may hold its checkpoint; the first that is there is taken.
``task`` is the model after learning the task, ``priv`` that after its correction."""
_READ_AS_LIST = "is a .txt file, which is read as a list of checkpoints"
_WRITE_LIST = (
    "write one path per line, relative to the file, or give a checkpoint instead"
)


@dataclass(frozen=True, order=True)
class _NumberedFolder:
    """A folder whose name has a number.

    Attributes
    ----------
    style
        The text in front of the number, or whether any text follows it. Folders of one
        series have one style.
    """

    style: str
    number: int
    folder: Path


def series(source: str) -> dict[Path, dict[str, Path]]:
    """Return the stages of a typed path as :func:`stages_of` does.

    Returns
    -------
    dict
        Stage -> its checkpoints; empty for a single checkpoint.
    """
    with at(source):
        if is_server(source):
            return {}

        path = untrusted.locate(split_stage(source)[0])
        return stages_of(path) if is_series(path) else {}


def expand(spec: Spec) -> tuple[Spec, ...]:
    """Return one spec per stage, named ``NAME@K``; a list of paths is itself a series.

    Returns
    -------
    tuple
        Only the given spec if it is a single checkpoint or names its stage.
    """
    sources: list[tuple[str, str | None]] = []
    if len(spec.paths) > 1:
        # The paths are the stages, in the given order.
        sources = [(path, spec.stage) for path in spec.paths]
    elif spec.stage is None:
        (path,) = spec.paths
        n_stages = len(series(path))
        sources = [(path, str(number)) for number in range(1, n_stages + 1)]
    if not sources:
        return (spec,)

    stages: list[Spec] = []
    for number, (path, stage) in enumerate(sources, start=1):
        name = str(CheckpointName(spec.name, stage=number))
        stages.append(Spec(name, (path,), stage))
    return tuple(stages)


def is_series(path: Path) -> bool:
    """Return whether a path is a folder of numbered checkpoints, or a list in a file.

    A folder that is itself a checkpoint is not a series, whatever is in it.
    """
    if path.is_file():
        return path.suffix == ".txt"
    if not path.is_dir() or _has_configuration(path):
        return False
    return any(
        _checkpoints_of_stage(numbered.folder)
        for numbered in _numbered_folders(_stages_folder(path))
    )


def stages_of(path: Path) -> dict[Path, dict[str, Path]]:
    """Return the stages in order, each with its checkpoints.

    With a correction after each task, a stage has the checkpoints ``priv`` and
    ``task``. A folder without parts is its own checkpoint, with the name ``""``. The
    first checkpoint represents the stage.

    Raises
    ------
    CheckpointError
        If a stage has no checkpoint or is a link out of the series, if two stages have
        one number, or if the numbering mixes two styles.
    """
    # Stages in a text file may be anywhere.
    stages = _listed_stages(path) if path.is_file() else _stages_in_folder(path)

    checkpoints_by_stage: dict[Path, dict[str, Path]] = {}
    for stage in stages:
        checkpoints = _checkpoints_of_stage(stage)
        if not checkpoints:
            problem = f"stage folder {stage.name} holds no checkpoint"
            remedy = "wait until its training is done, or move the folder away"
            raise CheckpointError(problem, fix=remedy)
        checkpoints_by_stage[stage] = checkpoints
    return checkpoints_by_stage


def stage_names(stages: Iterable[Path]) -> list[str]:
    """Return names of stages, with as many parent folders as needed to be unique."""
    paths = [path_parts(str(stage), None) for stage in stages]
    return distinct_suffixes(paths, taken=set())


def choose_stage(path: Path, number: str | None) -> tuple[Path, tuple[str, ...]]:
    """Return the checkpoint of a stage of a series, and notes for reports.

    Parameters
    ----------
    path
        The series.
    number
        ``K`` from 1, or ``K:task`` for the checkpoint before the stage's correction;
        ``None``: the last stage.

    Raises
    ------
    CheckpointError
        If there is no such stage, or if a finished run lacks one.
    OutputError
        If a file of a training run was changed.
    """
    stages = stages_of(path)
    n_stages = len(stages)
    wanted = number or str(n_stages)
    stage_number, _, wanted_part = wanted.partition(":")
    no_such_stage = CheckpointError(
        f"has {n_stages} stages, and no checkpoint @{wanted}",
        fix=f"write @1 to @{n_stages}",
    )

    # Numbers of stages begin at 1.
    index = int(stage_number) - 1
    if index >= n_stages:
        raise no_such_stage
    checkpoints = list(stages.values())[index]
    # The first part represents the stage: the corrected checkpoint, if there is one.
    first_part = next(iter(checkpoints))
    chosen = checkpoints.get(wanted_part or first_part)
    if chosen is None:
        raise no_such_stage

    note = f"stage {stage_number} of {n_stages}: {stage_names(stages)[index]}"
    if "task" in checkpoints:
        note += f" ({chosen.name}/)"

    run = check_run(path)
    corrects = _corrects_each_stage(run)
    if corrects and not wanted_part and first_part == "task":
        note += "; its method corrects each stage, this one was not yet"
    return chosen, (note, *_notes_on_run(run, stages, corrects=corrects))


def _corrects_each_stage(run: Mapping[str, Any]) -> bool:
    """Return whether the method of a run corrects after each task.

    Only such a method has these settings.
    """
    return any(str(name).startswith("ptpc.") for name in run.get("settings", ()))


def _notes_on_run(
    run: Mapping[str, Any],
    stages: Mapping[Path, Mapping[str, Path]],
    *,
    corrects: bool,
) -> list[str]:
    """Return notes on the progress of an unfinished run.

    Parameters
    ----------
    run
        Its record; empty if the series is not from spark-train.
    corrects
        Whether a stage is complete only after its correction.

    Raises
    ------
    CheckpointError
        If a finished run lacks a stage: another stage would be taken for the last.
    """
    status = run.get("status")
    last_part = "/priv" if corrects else "/task"
    # Phases of the run are named STAGE/PART; these are those whose result is there.
    present = {
        f"{stage.name}/{next(iter(checkpoints))}"
        for stage, checkpoints in stages.items()
    }

    if status == "complete":
        # Seconds are recorded by phase, and a method may learn all tasks in one.
        for phase in run.get("seconds", ()):
            if phase.endswith(last_part) and phase not in present:
                problem = f"stage {shown(phase)} of the finished run is gone"
                remedy = "copy the run folder again, or give the folder of one stage"
                raise CheckpointError(problem, fix=remedy)
    if status != "running":
        return []

    n_done = sum(stage.endswith(last_part) for stage in present)
    done = str(n_done)
    if "tasks" in run:
        done += f" of {len(run['tasks'])}"
    return [f"the run has not finished: {done} tasks"]


def _has_configuration(folder: Path) -> bool:
    """Return whether a folder has the configuration of a checkpoint."""
    return any((folder / name).exists() for name in untrusted.CONFIGURATIONS)


def _stages_folder(path: Path) -> Path:
    """Return the folder of the stages, which in a spark-train run has this name."""
    return path / "stages" if (path / "stages").is_dir() else path


def _numbered_folders(root: Path) -> list[_NumberedFolder]:
    """Return the numbered folders in a folder, in order."""
    numbered: list[_NumberedFolder] = []
    for folder in root.iterdir():
        match = _NUMBERED.fullmatch(folder.name)
        if match and folder.is_dir():
            # Without a word in front, "1" and "1-name" are two styles.
            style = match[1].lower() or str(bool(match[3]))
            numbered.append(_NumberedFolder(style, int(match[2]), folder))
    return sorted(numbered)


def _stages_in_folder(path: Path) -> list[Path]:
    """Return the folders of the stages of a series, in order.

    Raises
    ------
    CheckpointError
        If one is a link out of the series, or if their order is unknown.
    """
    root = _stages_folder(path)
    numbered = _numbered_folders(root)
    folders = [stage.folder for stage in numbered]

    # Every folder that a stage may be read from must be inside the series.
    opened = [root, *folders]
    for folder in folders:
        opened += [folder / name for name in _STAGE_PARTS]
    for entry in opened:
        if entry != path and os.path.lexists(entry):
            untrusted.check_inside(entry, within=path)

    # The list is sorted by style and number, so problems appear between neighbours.
    for stage, following in pairwise(numbered):
        if stage.style != following.style:
            problem = "numbers stages in two ways"
        elif stage.number == following.number:
            problem = "two stages have one number"
        else:
            continue

        problem += f": {stage.folder.name}, {following.folder.name}"
        remedy = "list the paths in a text file, one stage a line"
        raise CheckpointError(problem, fix=remedy)
    return folders


def _checkpoints_of_stage(stage: Path) -> dict[str, Path]:
    """Return the checkpoints of a stage by the names of their folders in it."""
    if stage.is_file():
        return {"": stage}

    checkpoints: dict[str, Path] = {}
    for name in (*_STAGE_PARTS, ""):
        folder = stage / name
        if not folder.is_dir():
            continue
        if untrusted.weights_in(folder) or _has_configuration(folder):
            checkpoints[name] = folder
    return checkpoints


def _listed_stages(path: Path) -> list[Path]:
    """Return the paths in a text file: one per line, relative to it; # is a comment.

    Raises
    ------
    CheckpointError
        Names a line that is not a checkpoint, or that repeats one.
    """
    try:
        lines = read_regular(path, follow=True).decode().splitlines()
    except (OSError, UnicodeDecodeError):
        raise CheckpointError(
            f"{_READ_AS_LIST}, and is no text", fix=_WRITE_LIST
        ) from None

    stages: list[Path] = []
    listed: set[str] = set()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue

        stage = path.parent / Path(os.path.expanduser(text))
        # A list of lists is not a list of checkpoints.
        if not stage.exists() or stage.suffix == path.suffix:
            problem = (
                f"{_READ_AS_LIST}, and line {number} names no checkpoint that exists"
            )
            raise CheckpointError(problem, fix=_WRITE_LIST)
        if os.path.abspath(stage) in listed:
            problem = f"{_READ_AS_LIST}, and line {number} names a checkpoint again"
            raise CheckpointError(problem, fix=_WRITE_LIST)

        listed.add(os.path.abspath(stage))
        stages.append(stage)

    if not stages:
        raise CheckpointError(f"{_READ_AS_LIST}, and holds no path", fix=_WRITE_LIST)
    return stages
