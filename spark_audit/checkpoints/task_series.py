"""A series of tasks: TRACE, O-LoRA, checkpoint-N, spark-train, a list of paths."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from spark_audit.checkpoints.checkpoint import Stage
from spark_audit.checkpoints.locate import WEIGHT_SUFFIXES, check_inside
from spark_audit.checkpoints.own_run import check_run
from spark_audit.checkpoints.weight_files import CONFIGURATIONS, NO_WEIGHTS
from spark_audit.errors import CheckpointError, shown
from spark_audit.files import read_regular

# How makers number the folders of their stages: TRACE `0`, `1`; O-LoRA and spark-train
# `1-dbpedia`; `task_1`; MCITlib `Task1_llava_lora`; the Hugging Face trainer
# `checkpoint-500`.
_NUMBERED = (
    re.compile(r"(\d+)"),
    re.compile(r"(\d+)[-_].+"),
    re.compile(r"(?i:task|stage|round)[-_]?(\d+)(?:[-_].*)?"),
    re.compile(r"checkpoint-(\d+)"),
)
_PARTS = ("priv", "task", "adapter")
_AS_LIST = "is a .txt file, which is read as a list of checkpoints"
_LIST = "write one path per line, relative to the file, or give a checkpoint instead"


def detect(path: Path) -> bool:
    """Numbered folders of checkpoints and no checkpoint beside them, or a list."""
    if path.is_file():
        return path.suffix == ".txt"
    if not path.is_dir() or any((path / name).exists() for name in CONFIGURATIONS):
        return False
    folders = [folder for _, folder in _numbered(_root(path))]
    return any(_holds(folder / part) for folder in folders for part in ("", *_PARTS))


def stages(path: Path) -> tuple[Stage, ...]:
    """The stages in order.

    Raises
    ------
    CheckpointError
        If a stage's folder holds no checkpoint or is a link out of the series, two have
        one number, or numbering mixes two styles.
    """
    if path.is_file():
        return _listed(path)
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
    return tuple(_stage(folder) for _, folder in numbered)


def choose(
    path: Path, number: str | None
) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """One stage of a series: the last, or ``K``, or ``K:task``.

    Returns
    -------
    tuple
        Its path, the names of all stages, and notes.

    Raises
    ------
    CheckpointError
        If there is no such stage, or a finished run has lost one.
    OutputError
        If a file of a training run is not as it was written.
    """
    found = stages(path)
    number, _, part = (asked := number or str(len(found))).partition(":")
    chosen = None
    if int(number) <= len(found):
        stage = found[int(number) - 1]
        chosen = stage.task if part == "task" else stage.path
    if chosen is None:
        what = f"has {len(found)} stages, and no checkpoint @{asked}"
        raise CheckpointError(what, fix=f"write @1 to @{len(found)}")
    corrected = [s.label for s in found if s.task is not None and s.task != s.path]
    note = f"stage {number} of {len(found)}: {stage.label}"
    if stage.task is not None:
        note += f" ({chosen.name}/)"
    run = check_run(path)
    # A method that corrects after each task reads those settings.
    settings = run.get("settings")
    names = settings if isinstance(settings, dict) else {}
    corrects = any(str(name).startswith("ptpc.") for name in names)
    if part != "task" and stage.label not in corrected:
        if corrected:
            note += "; earlier stages were corrected, this one was not"
        elif corrects and stage.task is not None:
            note += "; its method corrects each stage, this one was not yet"
    last = "priv" if corrects else "task"
    notes = (note, *_gaps(path), *_progress(run, found, last=last))
    return chosen, tuple(stage.label for stage in found), notes


def _root(path: Path) -> Path:
    """A spark-train run keeps its stages in a folder of that name."""
    return path / "stages" if (path / "stages").is_dir() else path


def _progress(run: dict[str, Any], found: Sequence[Stage], *, last: str) -> list[str]:
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
    there = {f"{stage.label}/{stage.path.name}" for stage in found}
    phases = seconds if status == "complete" and isinstance(seconds, dict) else ()
    for phase in phases:
        if phase.endswith(f"/{last}") and phase not in there:
            what = f"stage {shown(phase)} of the finished run is gone"
            fix = "copy the run folder again, or give the folder of one stage"
            raise CheckpointError(what, fix=fix)
    done = sum(stage.path.name == last for stage in found)
    of = f"{done} of {len(tasks)}" if isinstance(tasks, list) else f"{done}"
    return [f"the run has not finished: {of} tasks"] if status == "running" else []


def _numbered(root: Path) -> list[tuple[tuple[int, int], Path]]:
    """Numbered folders as ((style, number), folder), in order."""
    found: dict[Path, tuple[int, int]] = {}
    for style, pattern in enumerate(_NUMBERED):
        for folder in root.iterdir():
            if folder.is_dir() and (match := pattern.fullmatch(folder.name)):
                found.setdefault(folder, (style, int(match[1])))
    return sorted((number, folder) for folder, number in found.items())


def _gaps(path: Path) -> list[str]:
    """That numbers are missing between stages; those of training steps are others."""
    found = [] if path.is_file() else _numbered(_root(path))
    numbers = [number for (style, number), _ in found if style < len(_NUMBERED) - 1]
    if not numbers or numbers[0] > 1:
        return []
    gone = sorted({*range(numbers[0], numbers[-1])} - {*numbers})
    if not gone or len(gone) > len(numbers):
        return []
    missing = ", ".join(map(str, gone))
    return [f"no folder numbered {missing}: stages are counted as they are there"]


def _holds(folder: Path) -> bool:
    """Whether a folder is itself a checkpoint."""
    if not folder.is_dir():
        return False
    return any((folder / name).exists() for name in CONFIGURATIONS) or any(
        p.suffix in WEIGHT_SUFFIXES and not p.name.startswith(NO_WEIGHTS)
        for p in folder.iterdir()
    )


def _stage(folder: Path) -> Stage:
    held = [part for part in (*_PARTS, "") if _holds(folder / part)]
    if not held:
        what = f"stage folder {folder.name} holds no checkpoint"
        fix = "wait until its training is done, or move the folder away"
        raise CheckpointError(what, fix=fix)
    task = folder / "task" if "task" in held else None
    return Stage(folder.name, folder / held[0], task)


def _listed(path: Path) -> tuple[Stage, ...]:
    """A text file: one path a line, relative to the file; # begins a comment."""
    try:
        lines = read_regular(path, follow=True).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{_AS_LIST}, and is no text", fix=_LIST) from error
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        stage = path.parent / Path(text).expanduser()
        if not stage.exists() or stage.suffix == path.suffix:
            what = f"{_AS_LIST}, and line {number} names no checkpoint that exists"
            raise CheckpointError(what, fix=_LIST)
        found.append(_stage(stage) if stage.is_dir() else Stage(text, stage))
    if not found:
        raise CheckpointError(f"{_AS_LIST}, and holds no path", fix=_LIST)
    return tuple(found)
