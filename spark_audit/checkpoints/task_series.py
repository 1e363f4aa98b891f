"""Series of tasks: a folder with one checkpoint per task, or a list of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

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

# How makers number the folders of their stages: TRACE `0`, `1`; O-LoRA and spark-train
# `1-dbpedia`; `task_1`; MCITlib `Task1_llava_lora`; torchtune `epoch_0`; the Hugging
# Face trainer `checkpoint-500`.
_NUMBERED = re.compile(
    r"((?i:task|stage|round|epoch)[-_]?(?=\d)|checkpoint-(?=\d+$)|)(\d+)([-_].*)?"
)
_STAGE_PARTS = ("priv", "task", "adapter")
_AS_LIST = "is a .txt file, which is read as a list of checkpoints"
_LIST = "write one path per line, relative to the file, or give a checkpoint instead"


def series(source: str) -> dict[Path, dict[str, Path]]:
    """What :func:`stages_of` gives for a series; none for a single checkpoint."""
    with at(source):
        path = None if is_server(source) else untrusted.locate(split_stage(source)[0])
        return stages_of(path) if path and is_series(path) else {}


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
    if not path.is_dir() or _described(path):
        return False
    return any(_held(folder) for _, folder in _numbered(_root(path)))


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
    root = _root(path)
    # Listed in a text file, stages may lie anywhere.
    numbered = [] if path.is_file() else _numbered(root)
    folders = [folder for _, folder in numbered]
    for place in (
        root,
        *folders,
        *(f / name for f in folders for name in _STAGE_PARTS),
    ):
        if place != path and os.path.lexists(place):
            untrusted.check_inside(place, within=path)
    for (number, folder), (after, other) in pairwise(numbered):
        if number == after or number[0] != after[0]:
            twice = "two stages have one number"
            what = twice if number == after else "numbers stages in two ways"
            fix = "list the paths in a text file, one stage a line"
            raise CheckpointError(f"{what}: {folder.name}, {other.name}", fix=fix)
    found = {}
    for stage in folders or _listed(path):
        found[stage] = _held(stage)
        if not found[stage]:
            what = f"stage folder {stage.name} holds no checkpoint"
            fix = "wait until its training is done, or move the folder away"
            raise CheckpointError(what, fix=fix)
    return found


def stage_names(stages: Iterable[Path]) -> list[str]:
    """What stages are called: files of one name by as many folders as it takes."""
    return distinct_suffixes(
        [path_parts(str(stage), None) for stage in stages], taken=set()
    )


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
    k, _, part = (asked := number or str(len(found))).partition(":")
    stages = enumerate(zip(found.values(), stage_names(found), strict=True), start=1)
    held, name = dict(stages).get(int(k), ({}, ""))
    own = next(iter(held), "")
    chosen = held.get(part or own)
    if chosen is None:
        what = f"has {len(found)} stages, and no checkpoint @{asked}"
        raise CheckpointError(what, fix=f"write @1 to @{len(found)}")
    note = f"stage {k} of {len(found)}: {name}"
    if "task" in held:
        note += f" ({chosen.name}/)"
    run = check_run(path)
    # A method that corrects after each task reads those settings.
    corrects = any(str(name).startswith("ptpc.") for name in run.get("settings", ()))
    if corrects and not part and own == "task":
        note += "; its method corrects each stage, this one was not yet"
    # Seconds are by phase; a method may learn all tasks in one.
    last = "/priv" if corrects else "/task"
    there = {f"{stage.name}/{next(iter(held))}" for stage, held in found.items()}
    status = run.get("status")
    for phase in run.get("seconds", ()) if status == "complete" else ():
        # Another stage would be taken for the last of the run.
        if phase.endswith(last) and phase not in there:
            what = f"stage {shown(phase)} of the finished run is gone"
            fix = "copy the run folder again, or give the folder of one stage"
            raise CheckpointError(what, fix=fix)
    if status != "running":
        return chosen, (note,)
    done = f"{sum(one.endswith(last) for one in there)}"
    done += f" of {len(run['tasks'])}" if "tasks" in run else ""
    return chosen, (note, f"the run has not finished: {done} tasks")


def _described(folder: Path) -> bool:
    return any((folder / name).exists() for name in untrusted.CONFIGURATIONS)


def _root(path: Path) -> Path:
    """A spark-train run keeps its stages in a folder of that name."""
    return path / "stages" if (path / "stages").is_dir() else path


def _numbered(root: Path) -> list[tuple[tuple[str, int], Path]]:
    """Numbered folders as ((style, number), folder), in order."""
    found = []
    for folder in root.iterdir():
        match = _NUMBERED.fullmatch(folder.name)
        if match and folder.is_dir():
            style = match[1].lower() or str(bool(match[3]))
            found.append(((style, int(match[2])), folder))
    return sorted(found)


def _held(stage: Path) -> dict[str, Path]:
    """The checkpoints of a stage by the names of their folders in it."""
    if stage.is_file():
        return {"": stage}
    held = {}
    for part in (*_STAGE_PARTS, ""):
        place = stage / part
        if place.is_dir() and (untrusted.weights_in(place) or _described(place)):
            held[part] = place
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
        elif os.path.abspath(stage) in map(os.path.abspath, found):
            what = "names a checkpoint again"
        if what:
            raise CheckpointError(f"{_AS_LIST}, and line {number} {what}", fix=_LIST)
        found.append(stage)
    if not found:
        raise CheckpointError(f"{_AS_LIST}, and holds no path", fix=_LIST)
    return found
