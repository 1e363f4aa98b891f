"""What a path is: its format decided by content, and how it is put together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.formats import bare_weights, hf_folder, peft_adapter
from spark_audit.checkpoints.gguf_file import gguf_file
from spark_audit.checkpoints.locate import (
    HUB,
    WEIGHT_SUFFIXES,
    check_inside,
    locate,
    printable,
    readable,
)
from spark_audit.checkpoints.own_run import check_run
from spark_audit.checkpoints.sidecar import NOISE, written_down
from spark_audit.checkpoints.specs import Loading, Spec, is_server, split_stage
from spark_audit.checkpoints.weight_files import (
    CONFIGURATIONS,
    NO_WEIGHTS,
    lone_file,
    weights_of,
)
from spark_audit.errors import CheckpointError, InputError, at, shown
from spark_audit.files import read_regular
from spark_audit.names import BASE, CheckpointName, seeds_of
from spark_audit.terminal.suggestions import instead


def read_headers(source: str, loading: Loading) -> Checkpoint:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, number = split_stage(source)
    path = loading.locate(text)
    with at(source), readable():
        places = formats_of(path)
        if len(places) != 1:
            raise _no_checkpoint(path, [*places])
        ((name, place),) = places.items()
        if name == SERIES:
            stage, stages, notes = choose_stage(path, number)
            made = read_headers(str(stage), loading)
            return replace(
                made,
                source=printable(text) + (f"@{number}" if number else ""),
                where=source,
                stages=stages,
                notes=(*notes, *made.notes),
            )
        if number is not None:
            what = f"is one checkpoint, not a series: @{number} does not apply"
            raise CheckpointError(what)
        if place != path:
            check_inside(place)
        made = READERS[name](place, loading)
        # The file of an adapter's folder is what the folder is.
        trained_on, noise_sha256 = written_down(made.folder, made.files)
    given: Any = {"loading": loading, "base": loading.base or made.base}
    given |= {"source": printable(source), "where": source, "format": name}
    return replace(
        made,
        **given,
        host=made.host and replace(made.host, **given),
        trained_on=trained_on,
        noise_sha256=noise_sha256,
    )


def _no_checkpoint(path: Path, formats: list[str]) -> CheckpointError:
    what = f"reads as {' and as '.join(formats)}" if formats else "is no checkpoint"
    children = sorted(path.iterdir()) if path.is_dir() else []
    inside = [one.name for one in children if one.is_dir() and formats_of(one)]
    if inside:
        what += f" (these folders in it are: {', '.join(inside[:5])})"
    otherwise = (
        "give a folder with config.json or adapter_config.json, or a weights file"
    )
    return CheckpointError(what, fix=instead(path, otherwise))


SERIES = "task-series"
READERS: Mapping[str, Callable[[Path, Loading], Checkpoint]] = {
    "bare-weights": bare_weights,
    "gguf-file": gguf_file,
    "hf-folder": hf_folder,
    "peft-adapter": peft_adapter,
}
"""By the format's name: how a path of it is put together."""


def formats_of(path: Path) -> dict[str, Path]:
    """The formats that a path is of, by its content, each with what is read for it."""
    model, adapter = ((path / name).exists() for name in CONFIGURATIONS)
    full = weights_of(path) is not None
    places = {
        "bare-weights": lone_file(path, WEIGHT_SUFFIXES, CONFIGURATIONS),
        "gguf-file": lone_file(path, (".gguf",), CONFIGURATIONS[:1]),
        "hf-folder": path if model and (full or not adapter) else None,
        "peft-adapter": path if adapter and not full else None,
        SERIES: path if is_series(path) else None,
    }
    return {name: place for name, place in places.items() if place is not None}


def series(source: str) -> tuple[Stage, ...]:
    """The stages of a series in order; none when it is a single checkpoint."""
    if is_server(source):
        return ()
    path = locate(split_stage(source)[0])
    if not is_series(path):
        return ()
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


def read_all(specs: Sequence[Spec], loading: Loading) -> list[Checkpoint]:
    """The checkpoints of a call, the base first where one is needed.

    Raises
    ------
    CheckpointError
        If an adapter's base is not known, not here, or itself an adapter, or two
        adapters name different ones.
    """
    for spec in specs:
        if spec.name == BASE:
            loading = _with_base(spec, loading)
    items = [
        replace(read_headers(source, loading), name=name)
        for spec in specs
        if spec.name != BASE
        for name, source in zip(
            seeds_of(spec.name, len(spec.sources)), spec.sources, strict=True
        )
    ]
    adapters, given = [item for item in items if not item.complete], loading.base
    for item in adapters:
        if given is None:
            given = _named(item)
        elif not same_path(given, str(item.base)):
            raise CheckpointError(
                f"the adapters name different bases ({given}, {item.base})",
                where="--ckpt",
                fix="give --base if both are one model, else audit them separately",
            )
    if given is None or not (adapters or loading.include_base):
        return items
    base = replace(read_headers(given, loading), name=BASE)
    if base.adapter:
        raise CheckpointError(
            "the base is itself an adapter",
            where=base.where,
            fix="give the model it was trained on",
        )
    return [base, *(_on(base, item) for item in items)]


def _named(item: Checkpoint) -> str:
    """The base that an adapter names: a path only, for whoever made it asks no host."""
    with at(item.where):
        if item.base is None:
            raise CheckpointError("the adapter names no base", fix="give --base MODEL")
        try:
            locate(item.base, hub=False)
        except CheckpointError as error:
            raise CheckpointError(
                f"the adapter's base {shown(item.base)} is not here",
                fix=f"give --base MODEL (a folder, or {HUB}ORG/NAME)",
            ) from error
    return item.base


def _on(base: Checkpoint, item: Checkpoint) -> Checkpoint:
    """An adapter on its base; full weights as they are.

    Raises
    ------
    CheckpointError
        If the base has frozen noise, or the adapter was trained on another one: shapes
        do not tell, the adapter fits every model of that architecture.
    """
    if item.complete:
        return item
    with at(item.where):
        if os.path.lexists(base.folder / NOISE):
            raise CheckpointError(
                f"the base has frozen noise of its own ({NOISE}): with an adapter on "
                "it, neither says whether it holds",
                fix="give the model without it as the base",
            )
        there = base.sha256
        if item.trained_on not in (None, there):
            both = f"{str(item.trained_on)[:16]}, not {there[:16]}"
            raise CheckpointError(
                f"was trained on another base ({both})",
                fix="give the one it was trained on by --base",
            )
    return replace(item, host=base)


def _with_base(spec: Spec, loading: Loading) -> Loading:
    """``--ckpt base=MODEL`` says what ``--base MODEL`` says."""
    if len(spec.paths) > 1:
        raise InputError("the base is one model, not several", where="--ckpt base=")
    if loading.base is not None and not same_path(loading.base, spec.sources[0]):
        raise InputError(
            f"the base is given twice: {loading.base} and {spec.sources[0]}",
            where="--ckpt base=",
            fix="give one of them",
        )
    return replace(loading, base=spec.sources[0], include_base=True)


def same_path(one: str, other: str) -> bool:
    """Whether two paths name one place."""
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


# --- a series of tasks ----------------------------------------------------------------


class Stage(NamedTuple):
    """One stage of a series.

    ``label`` is its folder's name, ``path`` its checkpoint, ``task`` the one before
    correction (``PATH@K:task``).
    """

    label: str
    path: Path
    task: Path | None = None


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


def is_series(path: Path) -> bool:
    """Numbered folders of checkpoints and no checkpoint beside them, or a list."""
    if path.is_file():
        return path.suffix == ".txt"
    if not path.is_dir() or any((path / name).exists() for name in CONFIGURATIONS):
        return False
    folders = [folder for _, folder in _numbered(_root(path))]
    return any(_holds(folder / part) for folder in folders for part in ("", *_PARTS))


def stages_of(path: Path) -> tuple[Stage, ...]:
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


def choose_stage(
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
    found = stages_of(path)
    number, _, part = (asked := number or str(len(found))).partition(":")
    chosen = None
    if int(number) <= len(found):
        stage = found[int(number) - 1]
        chosen = stage.task if part == "task" else stage.path
    if chosen is None:
        what = f"has {len(found)} stages, and no checkpoint @{asked}"
        raise CheckpointError(what, fix=f"write @1 to @{len(found)}")
    note = f"stage {number} of {len(found)}: {stage.label}"
    if stage.task is not None:
        note += f" ({chosen.name}/)"
    run = check_run(path)
    # A method that corrects after each task reads those settings.
    settings = run.get("settings")
    names = settings if isinstance(settings, dict) else {}
    corrects = any(str(name).startswith("ptpc.") for name in names)
    if part != "task" and corrects and stage.path == stage.task:
        note += "; its method corrects each stage, this one was not yet"
    last = "priv" if corrects else "task"
    notes = (note, *_progress(run, found, last=last))
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
