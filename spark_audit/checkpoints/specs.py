"""What a user types after ``--ckpt``: names, lists of seeds, stages of a series.

A series is numbered folders, a list of paths, or the folder of a spark-train run, whose
records tell how far it came.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from spark_audit import errors, options
from spark_audit.checkpoints import untrusted
from spark_audit.errors import CheckpointError, InputError, OutputError, at, shown
from spark_audit.files import (
    DAMAGED,
    fault,
    intact,
    intact_file,
    parse_json,
    read_regular,
)
from spark_audit.names import BASE, CheckpointName

SCHEMES = ("http://", "https://")
DTYPES = ("float32", "bfloat16", "float16", "auto")
DEVICES = re.compile(r"(auto|cpu|cuda|mps|xpu)(:\d+)?")
_NAME_AND_PATH = re.compile(r"([A-Za-z0-9._+-]+)=(.+)", re.DOTALL)
HALVES = {
    "full": ("hf-folder", "bare-weights"),
    "adapter": ("peft-adapter", "mlx-adapter"),
}
"""What ``PATH@full`` and ``PATH@adapter`` select of a folder that holds both."""
_STAGE = re.compile(r"[1-9]\d*(:(task|full|adapter))?|full|adapter")


def is_server(source: str) -> bool:
    """Whether a checkpoint is given as an address."""
    return source.startswith(SCHEMES)


@options.fields_in(options.WHERE)
@dataclass(frozen=True, kw_only=True)
class Loading:
    """How checkpoints are opened; fields are named like the flags.

    Attributes
    ----------
    device
        Where to score; ``auto``: CUDA when there is one.
    dtype
        Of the model's body; the output head is always float32. ``auto``: as saved.
    device_map
        Spread each model over GPUs, then the CPU, then the disk.
    tokenizer
        Tokenizer, if not the checkpoint's or the base's.
    lora_alpha
        Needed for LoRA weights without adapter_config.json.
    revision
        Of a model on the hub.
    trust_remote_code
        Run code that a checkpoint brings.
    quantize
        Audit each checkpoint but the base with rounded weights too.
    model
        Name of the model on the server of ``--ckpt http://HOST:PORT/v1``.
    agree
        Local copy of the served checkpoint.
    base
        The base of an adapter or of a weights file; by default the folder that the
        adapter names, never a model on the hub.
    include_base
        Open the base that is given also where no adapter needs it.

    Raises
    ------
    InputError
        If the device or dtype is unknown.
    """

    device: Annotated[
        str, Parameter(metavar="auto|cpu|cuda", env_var="SPARK_AUDIT_DEVICE")
    ] = "auto"
    dtype: Annotated[str, Parameter(choices=DTYPES, env_var="SPARK_AUDIT_DTYPE")] = (
        "float32"
    )
    device_map: Annotated[str | None, Parameter(choices=("auto",))] = None
    tokenizer: Annotated[
        str | None, Parameter(group=options.ADVANCED, metavar="DIR")
    ] = None
    lora_alpha: options.LoraAlpha = None
    revision: Annotated[str | None, Parameter(group=options.ADVANCED)] = None
    trust_remote_code: Annotated[bool, Parameter(group=options.ADVANCED)] = False
    quantize: Annotated[tuple[str, ...], Parameter(metavar="int8|int4")] = ()
    model: str | None = None
    agree: Annotated[str | None, Parameter(metavar="PATH")] = None
    base: Annotated[str | None, options.NO_OPTION] = None
    include_base: Annotated[bool, options.NO_OPTION] = False

    def locate(self, source: str) -> Path:
        """The local path of a model that the user gave."""
        return untrusted.locate(
            source, revision=self.revision, code=self.trust_remote_code
        )

    def __post_init__(self) -> None:
        if not DEVICES.fullmatch(self.device):
            what = f"unknown device {self.device!r}"
            raise InputError(what, where="--device", fix="give auto, cpu or cuda[:N]")
        errors.one_of(self.dtype, "--dtype", DTYPES)
        if self.device_map and self.quantize:
            what = "rounds whole models, not models spread by --device-map"
            raise InputError(what, where="--quantize")


@dataclass(frozen=True)
class Spec:
    """One checkpoint of a call.

    Attributes
    ----------
    name
        What reports call it.
    paths
        One path or ``hf:ORG/NAME``; several are replicates (seeds) of one method.
    stage
        ``K`` or ``K:task`` of ``PATH@K``, the same for all paths; ``None`` is the last.
    """

    name: str
    paths: tuple[str, ...]
    stage: str | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Each path with its stage, as it is given to ``open_checkpoint``."""
        at = "" if self.stage is None else f"@{self.stage}"
        return tuple(path + at for path in self.paths)


def exists(text: str) -> bool:
    """Whether the text names a file or folder here."""
    return bool(text) and os.path.exists(os.path.expanduser(text))


def split_stage(text: str) -> tuple[str, str | None]:
    """``PATH@K[:task]`` in two; ``@`` is read only when what precedes it exists.

    Of a folder of full weights and an adapter ``PATH@full`` and ``PATH@adapter`` are
    one of them, in a series ``PATH@K:full`` and ``PATH@K:adapter``.

    Raises
    ------
    InputError
        If something else than a stage follows.
    """
    head, at, tail = text.rpartition("@")
    if not at or exists(text) or not exists(head):
        return text, None
    if not _STAGE.fullmatch(tail):
        fix = "write PATH@K with K from 1, or PATH@K:task"
        raise InputError(f"{tail!r} is no stage", where=text, fix=fix)
    return head, tail


def split_half(stage: str | None) -> tuple[str | None, str | None]:
    """The number of a stage, and which half of a folder is meant, each if given."""
    if stage is None or stage in HALVES:
        return None, stage
    number, _, part = stage.partition(":")
    return (number, part) if part in HALVES else (stage, None)


def parse_specs(texts: Sequence[str]) -> list[Spec]:
    """Read the values of ``--ckpt``.

    ``NAME=`` is split off only when NAME is made of letters, digits and ``._+-`` and
    the whole is no existing path. ``NAME=[p1,p2]`` lists replicates. Without a name it
    is the shortest path suffix that no other checkpoint of the call has. A pattern in
    quotes (``'out/*'``) is what a shell makes of it.

    Raises
    ------
    InputError
        On an empty value, a list without a name, a name given twice, the same path
        twice, or replicates at different stages.
    """
    drafts = [_draft(text) for pattern in texts for text in _matches(pattern)]
    names, unnamed = set[str](), []
    audited: dict[tuple[str, ...], str] = {}
    for spec in drafts:
        if spec.name in names:
            fix = "name each checkpoint differently, or write NAME=[p1,p2] for seeds"
            what = f"the name {spec.name!r} is given twice"
            raise InputError(what, where="--ckpt", fix=fix)
        # What is called base may be audited too.
        for path in spec.paths if spec.name != BASE else ():
            place = _parts(path, spec.stage)
            if place in audited:
                what, fix = "the same checkpoint is given twice", "leave one out"
                raise InputError(what, where=f"--ckpt {audited[place]}", fix=fix)
            audited[place] = path
            if not spec.name:
                unnamed.append(place)
        if spec.name:
            names.add(spec.name)
    defaults = iter(_suffixes(unnamed, taken={*names, BASE}))
    return [
        spec if spec.name else replace(spec, name=next(defaults)) for spec in drafts
    ]


def default_name(source: str) -> str:
    """The name of a checkpoint that is opened alone: the last part of its path."""
    return _suffixes([_parts(*split_stage(source))], taken={BASE})[0]


def _matches(text: str) -> list[str]:
    """The folders and weights files that a pattern matches; the text if it is none.

    Behind ``NAME=`` the matches are replicates.
    """
    named = _NAME_AND_PATH.fullmatch(text.strip())
    name, pattern = (named[1], named[2]) if named else ("", text.strip())
    is_pattern = glob.has_magic(pattern) and not pattern.startswith("[")
    if not is_pattern or is_server(pattern) or exists(text) or exists(pattern):
        return [text]
    suffixes = (*untrusted.WEIGHT_SUFFIXES, ".gguf")
    matches = [
        path
        for path in sorted(glob.glob(os.path.expanduser(pattern)))
        if os.path.isdir(path) or path.endswith(suffixes)
    ]
    if not matches:
        what = "matches no folder and no weights file"
        raise InputError(what, where=f"--ckpt {text}", fix="check the pattern")
    return [f"{name}=[{','.join(matches)}]"] if name else matches


def _draft(text: str) -> Spec:
    """The spec of a text; its name is empty where none is given."""
    name, value = "", text.strip()
    match = _NAME_AND_PATH.fullmatch(value)
    if match and not exists(value):
        name, value = match[1], match[2].strip()
    front, _, path = value.partition("=")
    here = exists(value)
    listed = value.startswith("[") and value.endswith("]") and not here
    parts = [p.strip() for p in value[1:-1].split(",")] if listed else [value]
    paths, stages = zip(*map(split_stage, parts), strict=True)
    odd = not name and not here and exists(path.strip())
    letters = "write a name of letters, digits and . _ + - alone"
    apart = "replicates of one method are at different stages"
    for wrong, what, fix in (
        (odd, f"{front!r} is no name for a checkpoint", letters),
        (not all(parts), "is empty", "give a path"),
        (listed and not name, "a list of seeds has no name", "write NAME=[PATH,PATH]"),
        (len({*stages}) > 1, apart, "give every path the same @K, or none"),
    ):
        if wrong:
            where = f"--ckpt {text.strip() or repr(text)}"
            raise InputError(what, where=where, fix=fix)
    return Spec(name, paths, stages[0])


def _suffixes(paths: list[tuple[str, ...]], *, taken: set[str]) -> list[str]:
    """Shortest suffix of each path that no other has and that is not taken."""
    names = []
    for own in paths:
        for n in range(1, len(own) + 1):
            name, ends = "/".join(own[-n:]), [path[-n:] for path in paths]
            if ends.count(own[-n:]) == 1 and name not in taken:
                names.append(name)
                break
        else:
            what, fix = f"the name {own[-1]!r} is taken", "name it: NAME=PATH"
            raise InputError(what, where="--ckpt", fix=fix)
    return names


def _parts(path: str, stage: str | None) -> tuple[str, ...]:
    if exists(path):
        path = os.path.abspath(os.path.expanduser(path))
    elif path.startswith(untrusted.HUB):
        # A revision is no stage, and may hold a slash.
        name, at, revision = path.partition("@")
        path = name + at.replace("@", "-") + revision.replace("/", "-")
    *above, last = [part for part in Path(path).parts if part != os.sep] or [path]
    return (*above, last if stage is None else f"{last}@{stage}")


# --- a series of tasks ----------------------------------------------------------------

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
    return _suffixes([_parts(str(stage), None) for stage in stages], taken=set())


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


# --- what the folder of a spark-train run tells ---------------------------------------

RECORD, STATE = "run.json", "state.safetensors"
"""What a run is, and where one that goes on stands: both hold checksums of the rest."""
_RUN_FIELDS = {"status": str, "starts": list, "tasks": list}
_RUN_FIELDS |= {name: dict for name in ("settings", "seconds", "files")}
"""What is read of ``run.json``, with its type."""


def read_run(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder, or of the folder above ``stages``; else nothing.

    What is of another type than spark-train writes is left out.

    Raises
    ------
    OutputError
        If it is not as it was written, or no JSON beside a folder ``stages``.
    """
    place = _home(path) / RECORD
    try:
        data = read_regular(place)
        found = parse_json(data, place=str(place), finite=False)
        damaged = intact(data) is False
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, InputError):
        # Without stages it may be anyone's file.
        found, damaged = {}, (place.parent / "stages").is_dir()
    if damaged:
        raise _damaged(place, DAMAGED)
    if not isinstance(found, dict) or found.get("kind") != "spark-train-run":
        return {}
    return {
        key: found[key]
        for key in _RUN_FIELDS
        if isinstance(found.get(key), _RUN_FIELDS[key])
    }


def check_run(path: Path) -> dict[str, Any]:
    """Hold the files of a run folder against their checksums; return ``run.json``.

    Of a run that goes on, what its last state tells of is held against it. Adapters
    have checksums of their own, which are looked at when they are opened.

    Raises
    ------
    OutputError
        With the name of a file that is not as it was written.
    """
    run, home = read_run(path), _home(path)
    goes_on, told = run.get("status") != "complete", run
    if run and goes_on:
        told = {}
        with suppress(FileNotFoundError):  # it has only begun, or has just ended
            told = read_state(home / STATE)
    check_files(home, told.get("files"), grows=goes_on)
    return run


def check_files(home: Path, files: object, *, grows: bool) -> None:
    """Hold files of a run against what was written down of them.

    Parameters
    ----------
    files
        Name -> size and SHA-256; of ``scores/``, which nothing reads, only what is
        there is looked at.
    grows
        More may have been written since.

    Raises
    ------
    OutputError
        With the name of a file that is not as it was written.
    """
    for name, told in files.items() if isinstance(files, dict) else ():
        place = home / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise _damaged(home / RECORD, "names a file outside its folder")
        if place.parent != home and not place.exists():
            continue
        if (what := fault(place, told, grows=grows)) is not None:
            raise _damaged(place, what)


def read_state(path: Path) -> dict[str, Any]:
    """What the header of a run's state says of the run.

    Raises
    ------
    FileNotFoundError
        If there is none.
    OutputError
        If it is not as it was written.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if intact_file(path) is False:
            raise _damaged(path, DAMAGED)
        with safe_open(path, framework="np") as file:
            told = file.metadata()["state"].encode()
        return dict(parse_json(told, place=str(path), finite=False))
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, InputError, LookupError, TypeError) as error:
        raise _damaged(path, "is damaged or no state of a run") from error


def _damaged(path: Path, what: str) -> OutputError:
    fix = "copy the run folder again, or remove it and train again"
    return OutputError(what, where=str(path), fix=fix)


def trained_order(path: Path) -> tuple[str, ...]:
    """The tasks of a run as it learned them; nothing where the folder is no run."""
    tasks = read_run(path).get("tasks", ())
    return tuple(tasks) if all(isinstance(task, str) for task in tasks) else ()


def _home(path: Path) -> Path:
    return path.resolve().parent if path.resolve().name == "stages" else path
