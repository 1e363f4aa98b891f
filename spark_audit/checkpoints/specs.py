"""What a user types after ``--ckpt``: names, lists of seeds, stages of a series."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from spark_audit.checkpoints.locate import HUB, HUB_PAGE, locate
from spark_audit.errors import InputError
from spark_audit.names import BASE
from spark_audit.terminal.flags import (
    ADVANCED,
    NO_OPTION,
    WHERE,
    LoraAlpha,
    fields_in,
    one_of,
)

SCHEMES = ("http://", "https://")
DTYPES = ("float32", "bfloat16", "float16", "auto")
DEVICES = re.compile(r"(auto|cpu|cuda|mps|xpu)(:\d+)?")
_NAMED = re.compile(r"([A-Za-z0-9._+-]+)=(.+)", re.DOTALL)
_STAGE = re.compile(r"[1-9]\d*(:task)?")


def is_server(source: str) -> bool:
    """Whether a checkpoint is given as an address."""
    return source.startswith(SCHEMES)


@fields_in(WHERE)
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
        Local copy of the served checkpoint, or a table of its scores.
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
    tokenizer: Annotated[str | None, Parameter(group=ADVANCED, metavar="DIR")] = None
    lora_alpha: LoraAlpha = None
    revision: Annotated[str | None, Parameter(group=ADVANCED)] = None
    trust_remote_code: Annotated[bool, Parameter(group=ADVANCED)] = False
    quantize: Annotated[tuple[str, ...], Parameter(metavar="int8|int4")] = ()
    model: str | None = None
    agree: Annotated[str | None, Parameter(metavar="PATH")] = None
    base: Annotated[str | None, NO_OPTION] = None
    include_base: Annotated[bool, NO_OPTION] = False

    def locate(self, source: str) -> Path:
        """The local path of a model that the user gave."""
        return locate(source, revision=self.revision, code=self.trust_remote_code)

    def __post_init__(self) -> None:
        if not DEVICES.fullmatch(self.device):
            what = f"unknown device {self.device!r}"
            raise InputError(
                what, where="--device", fix="give auto, cpu, cuda or cuda:N"
            )
        one_of(self.dtype, "--dtype", DTYPES)
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


def parse_specs(texts: Sequence[str]) -> list[Spec]:
    """Read the values of ``--ckpt``.

    ``NAME=`` is split off only when NAME is made of letters, digits and ``._+-`` and
    the whole is no existing path. ``NAME=[p1,p2]`` lists replicates. Without a name it
    is the shortest path suffix that no other checkpoint of the call has.

    Raises
    ------
    InputError
        On an empty value, a list without a name, a name given twice, the same path
        twice, or replicates at different stages.
    """
    drafts = [_draft(text) for text in texts]
    names = [spec.name for spec in drafts if spec.name]
    # What is called base may be audited too.
    audited = [(p, one.stage) for one in drafts if one.name != BASE for p in one.paths]
    places = [_parts(*one) for one in audited]
    for name in names:
        if names.count(name) > 1:
            fix = "name each checkpoint differently, or write NAME=[p1,p2] for seeds"
            what = f"the name {name!r} is given twice"
            raise InputError(what, where="--ckpt", fix=fix)
    for (path, _), place in zip(audited, places, strict=True):
        if places.count(place) > 1:
            what, fix = "the same checkpoint is given twice", "leave one out"
            raise InputError(what, where=f"--ckpt {path}", fix=fix)
    unnamed = [(spec.paths[0], spec.stage) for spec in drafts if not spec.name]
    defaults = iter(_suffixes(unnamed, taken={*names, BASE}))
    return [
        spec if spec.name else replace(spec, name=next(defaults)) for spec in drafts
    ]


def default_name(source: str) -> str:
    """The name of a checkpoint that is opened alone: the last part of its path."""
    path, stage = split_stage(source)
    return _suffixes([(path, stage)], taken={BASE})[0]


def _draft(text: str) -> Spec:
    """The spec of a text; its name is empty where none is given."""
    name, value = "", text.strip()
    match = _NAMED.fullmatch(value)
    if match and not exists(value):
        name, value = match[1], match[2].strip()
    front, _, path = value.partition("=")
    here = exists(value)
    listed = value.startswith("[") and value.endswith("]") and not here
    parts = [p.strip() for p in value[1:-1].split(",")] if listed else [value]
    paths, stages = zip(*map(split_stage, parts), strict=True)
    odd = not name and not here and exists(path.strip())
    letters = "write a name of letters, digits and . _ + - alone"
    page = any(HUB_PAGE in part for part in parts)
    apart = "replicates of one method are at different stages"
    for wrong, what, fix in (
        (odd, f"{front!r} is no name for a checkpoint", letters),
        (not all(parts), "is empty", "give a path"),
        (page, "is a web page", f"write a model on the hub as {HUB}ORG/NAME"),
        (listed and not name, "a list of seeds has no name", "write NAME=[PATH,PATH]"),
        (len({*stages}) > 1, apart, "give every path the same @K, or none"),
    ):
        if wrong:
            where = f"--ckpt {text.strip() or repr(text)}"
            raise InputError(what, where=where, fix=fix)
    return Spec(name, paths, stages[0])


def _suffixes(sources: list[tuple[str, str | None]], *, taken: set[str]) -> list[str]:
    """Shortest suffix of each path that no other has and that is not taken."""
    parts, names = [_parts(path, stage) for path, stage in sources], []
    for own in parts:
        ends = (own[-n:] for n in range(1, len(own) + 1))
        single = (e for e in ends if sum(p[-len(e) :] == e for p in parts) == 1)
        found = next((n for n in map("/".join, single) if n not in taken), None)
        if found is None:
            what, fix = f"the name {own[-1]!r} is taken", "name it: NAME=PATH"
            raise InputError(what, where="--ckpt", fix=fix)
        names.append(found)
    return names


def _parts(path: str, stage: str | None) -> tuple[str, ...]:
    if exists(path):
        path = os.path.abspath(os.path.expanduser(path))
    elif path.startswith(HUB):
        # A revision is no stage, and may hold a slash.
        name, at, revision = path.partition("@")
        path = name + at.replace("@", "-") + revision.replace("/", "-")
    parts = [part for part in Path(path).parts if part != os.sep]
    parts = parts or [path]
    return (*parts[:-1], parts[-1] + ("" if stage is None else f"@{stage}"))
