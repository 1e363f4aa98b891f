"""Checkpoints on a command line: ``NAME=PATH``, ``PATH@K``, and how they are opened."""

# Annotations are evaluated here, not later: command lines read those of `Loading` from
# subclasses in other files, where its names are not imported.

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from spark_audit import errors, options
from spark_audit.checkpoints import untrusted
from spark_audit.errors import InputError
from spark_audit.names import BASE

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
            place = path_parts(path, spec.stage)
            if place in audited:
                what, fix = "the same checkpoint is given twice", "leave one out"
                raise InputError(what, where=f"--ckpt {audited[place]}", fix=fix)
            audited[place] = path
            if not spec.name:
                unnamed.append(place)
        if spec.name:
            names.add(spec.name)
    defaults = iter(distinct_suffixes(unnamed, taken={*names, BASE}))
    return [
        spec if spec.name else replace(spec, name=next(defaults)) for spec in drafts
    ]


def default_name(source: str) -> str:
    """The name of a checkpoint that is opened alone: the last part of its path."""
    return distinct_suffixes([path_parts(*split_stage(source))], taken={BASE})[0]


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


def distinct_suffixes(paths: list[tuple[str, ...]], *, taken: set[str]) -> list[str]:
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


def path_parts(path: str, stage: str | None) -> tuple[str, ...]:
    """Return the folders of a path and its last part, the stage at its end."""
    if exists(path):
        path = os.path.abspath(os.path.expanduser(path))
    elif path.startswith(untrusted.HUB):
        # A revision is no stage, and may hold a slash.
        name, at, revision = path.partition("@")
        path = name + at.replace("@", "-") + revision.replace("/", "-")
    *above, last = [part for part in Path(path).parts if part != os.sep] or [path]
    return (*above, last if stage is None else f"{last}@{stage}")
