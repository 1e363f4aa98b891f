"""A series of tasks: the folders of its stages, and which of them is meant."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from spark_audit.checkpoints.locate import (
    CONFIGURATIONS,
    NO_WEIGHTS,
    WEIGHT_SUFFIXES,
    check_inside,
    locate,
)
from spark_audit.checkpoints.own_run import check_run
from spark_audit.checkpoints.specs import Spec, is_server, split_stage
from spark_audit.errors import CheckpointError, at, shown
from spark_audit.files import read_regular
from spark_audit.names import CheckpointName

# How makers number the folders of their stages: TRACE `0`, `1`; O-LoRA and spark-train
# `1-dbpedia`; `task_1`; MCITlib `Task1_llava_lora`; the Hugging Face trainer
# `checkpoint-500`.
_NUMBERED = re.compile(
    r"((?i:task|stage|round)[-_]?(?=\d)|checkpoint-(?=\d+$)|)(\d+)([-_].*)?"
)
_PARTS = ("priv", "task", "adapter")
_AS_LIST = "is a .txt file, which is read as a list of checkpoints"
_LIST = "write one path per line, relative to the file, or give a checkpoint instead"


def series(source: str) -> dict[Path, dict[str, Path]]:
    """What :func:`stages_of` gives for a series; none for a single checkpoint."""
    if is_server(source):
        return {}
    path = locate(split_stage(source)[0])
    if not is_series(path):
        return {}
    with at(source):
        return stages_of(path)


def expand(spec: Spec) -> tuple[Spec, ...]:
    """One spec a stage, named ``NAME@K``: a list of paths is itself a series.

    Returns
    -------
    tuple
        The spec alone when it is a single checkpoint or names its stage.
    """
    if len(spec.paths) > 1:
        steps = [(path, spec.stage) for path in spec.paths]
    elif spec.stage is None and (stages := series(spec.paths[0])):
        steps = [(spec.paths[0], str(k)) for k in range(1, len(stages) + 1)]
    else:
        return (spec,)
    return tuple(
        Spec(str(CheckpointName(spec.name, stage=k)), (path,), stage)
        for k, (path, stage) in enumerate(steps, start=1)
    )


def is_series(path: Path) -> bool:
    """Numbered folders of checkpoints and no checkpoint beside them, or a list."""
    if path.is_file():
        return path.suffix == ".txt"
    if not path.is_dir() or any((path / name).exists() for name in CONFIGURATIONS):
        return False
    folders = [folder for _, folder in _numbered(_root(path))]
    return any(_holds(folder / part) for folder in folders for part in ("", *_PARTS))


def stages_of(path: Path) -> dict[Path, dict[str, Path]]:
    """The stages in order, each folder or file with the checkpoints in it.

    Of a correction after each task they are ``priv`` and ``task``, of a folder without
    parts the folder itself, by the name ``""``; the first is what the stage is.

    Raises
    ------
    CheckpointError
        If a stage's folder holds no checkpoint or is a link out of the series, two have
        one number, or numbering mixes two styles.
    """
    if path.is_file():
        return {stage: _checkpoints(stage) for stage in _listed(path)}
    numbered = _numbered(_root(path))
    folders = [folder for _, folder in numbered]
    for place in (_root(path), *folders, *(f / n for f in folders for n in _PARTS)):
        # Listed in a text file, stages may lie anywhere.
        if place != path and os.path.lexists(place):
            check_inside(place, within=path)
    for (number, folder), (after, other) in pairwise(numbered):
        if number == after or number[0] != after[0]:
            what = "numbers stages in two ways"
            if number == after:
                what = "two stages have one number"
            fix = "list the paths in a text file, one stage a line"
            raise CheckpointError(f"{what}: {folder.name}, {other.name}", fix=fix)
    return {folder: _checkpoints(folder) for folder in folders}


def choose_stage(path: Path, number: str | None) -> tuple[Path, tuple[str, ...]]:
    """One stage of a series, and notes: the last, or ``K``, or ``K:task``.

    Raises
    ------
    CheckpointError
        If there is no such stage, or a finished run has lost one.
    OutputError
        If a file of a training run is not as it was written.
    """
    found = stages_of(path)
    number, _, part = (asked := number or str(len(found))).partition(":")
    stage, held = dict(enumerate(found.items(), start=1)).get(int(number), (path, {}))
    own = next(iter(held), "")
    chosen = held.get(part or own)
    if chosen is None:
        what = f"has {len(found)} stages, and no checkpoint @{asked}"
        raise CheckpointError(what, fix=f"write @1 to @{len(found)}")
    note = f"stage {number} of {len(found)}: {stage.name}"
    if "task" in held:
        note += f" ({chosen.name}/)"
    run = check_run(path)
    # A method that corrects after each task reads those settings.
    settings = run.get("settings")
    names = settings if isinstance(settings, dict) else {}
    corrects = any(str(name).startswith("ptpc.") for name in names)
    if corrects and not part and own == "task":
        note += "; its method corrects each stage, this one was not yet"
    last = "priv" if corrects else "task"
    return chosen, (note, *_progress(run, found, last=last))


def _root(path: Path) -> Path:
    """A spark-train run keeps its stages in a folder of that name."""
    return path / "stages" if (path / "stages").is_dir() else path


def _progress(
    run: dict[str, Any], found: Mapping[Path, Mapping[str, Path]], *, last: str
) -> list[str]:
    """That a run goes on, or was stopped, before its last task.

    Parameters
    ----------
    last
        Name of a task's last phase.

    Raises
    ------
    CheckpointError
        If a finished run lacks a stage: its last would be taken for the run's.
    """
    # By phase; a method may learn all tasks in one.
    seconds, tasks, status = (run.get(key) for key in ("seconds", "tasks", "status"))
    there = {f"{stage.name}/{next(iter(held))}" for stage, held in found.items()}
    phases = seconds if status == "complete" and isinstance(seconds, dict) else ()
    for phase in phases:
        if phase.endswith(f"/{last}") and phase not in there:
            what = f"stage {shown(phase)} of the finished run is gone"
            fix = "copy the run folder again, or give the folder of one stage"
            raise CheckpointError(what, fix=fix)
    done = sum(one.endswith(f"/{last}") for one in there)
    of = f"{done} of {len(tasks)}" if isinstance(tasks, list) else f"{done}"
    return [f"the run has not finished: {of} tasks"] if status == "running" else []


def _numbered(root: Path) -> list[tuple[tuple[str, int], Path]]:
    """Numbered folders as ((style, number), folder), in order."""
    found = [(_NUMBERED.fullmatch(folder.name), folder) for folder in root.iterdir()]
    return sorted(
        ((match[1].lower() or str(bool(match[3])), int(match[2])), folder)
        for match, folder in found
        if match and folder.is_dir()
    )


def _holds(folder: Path) -> bool:
    """Whether a folder is itself a checkpoint."""
    return folder.is_dir() and any(
        p.name in CONFIGURATIONS
        or (p.suffix in WEIGHT_SUFFIXES and not p.name.startswith(NO_WEIGHTS))
        for p in folder.iterdir()
    )


def _checkpoints(stage: Path) -> dict[str, Path]:
    """The checkpoints of a stage by the names of their folders in it."""
    if stage.is_file():
        return {"": stage}
    held = {part: stage / part for part in (*_PARTS, "") if _holds(stage / part)}
    if not held:
        what = f"stage folder {stage.name} holds no checkpoint"
        fix = "wait until its training is done, or move the folder away"
        raise CheckpointError(what, fix=fix)
    return held


def _listed(path: Path) -> list[Path]:
    """A text file: one path a line, relative to the file; # begins a comment."""
    try:
        lines = read_regular(path, follow=True).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{_AS_LIST}, and is no text", fix=_LIST) from error
    found: list[Path] = []
    for number, line in enumerate(lines, start=1):
        if not (text := line.partition("#")[0].strip()):
            continue
        stage, what = path.parent / Path(text).expanduser(), ""
        if not stage.exists() or stage.suffix == path.suffix:
            what = "names no checkpoint that exists"
        elif stage in found:
            what = "names a checkpoint again"
        if what:
            raise CheckpointError(f"{_AS_LIST}, and line {number} {what}", fix=_LIST)
        found.append(stage)
    if not found:
        raise CheckpointError(f"{_AS_LIST}, and holds no path", fix=_LIST)
    return found
