"""Checkpoints on a command line: ``NAME=PATH``, ``PATH@K``, and how they are opened."""

# Annotations are evaluated here, not later: command lines read those of `Loading` from
# subclasses in other files, where its names are not imported.

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter

from spark_audit import errors, options
from spark_audit.checkpoints import untrusted
from spark_audit.errors import InputError
from spark_audit.names import BASE

OptionT = TypeVar("OptionT")

SCHEMES = ("http://", "https://")
"""Beginnings of the address of a server."""
DTYPES = ("float32", "bfloat16", "float16", "auto")
DEVICES = re.compile(r"(auto|cpu|cuda|mps|xpu)(:\d+)?")
"""Pattern of a device, with the number of a GPU."""
# A name has only characters that need no quotes.
_NAME_AND_PATH = re.compile(r"([A-Za-z0-9._+-]+)=(.+)", re.DOTALL)

HALVES = {
    "full": ("hf-folder", "bare-weights"),
    "adapter": ("peft-adapter", "mlx-adapter"),
}
"""What ``PATH@full`` and ``PATH@adapter`` select of a folder that holds both."""

# K, K:task, K:full, K:adapter, full or adapter.
_STAGE = re.compile(r"[1-9]\d*(:(task|full|adapter))?|full|adapter")


def is_server(source: str) -> bool:
    """Return whether a checkpoint is given as the address of a server."""
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
    quantize: Annotated[tuple[str, ...], Parameter(metavar="int8|int4|nf4")] = ()
    model: str | None = None
    agree: Annotated[str | None, Parameter(metavar="PATH")] = None
    base: Annotated[str | None, options.NO_OPTION] = None
    include_base: Annotated[bool, options.NO_OPTION] = False

    def locate(self, source: str) -> Path:
        """Return the local path of a model that the user named."""
        return untrusted.locate(
            source, revision=self.revision, code=self.trust_remote_code
        )

    def with_options(
        self,
        *,
        base: str | Path | None = None,
        device: str | None = None,
        dtype: str | None = None,
        device_map: str | None = None,
        tokenizer: str | Path | None = None,
        lora_alpha: float | None = None,
        revision: str | None = None,
        trust_remote_code: bool | None = None,
        quantize: str | Sequence[str] = (),
        model: str | None = None,
        agree: str | Path | None = None,
    ) -> "Loading":
        """Return this loading with the options that are given; others stay.

        Raises
        ------
        InputError
            If the device or dtype is unknown.
        """
        roundings = (quantize,) if isinstance(quantize, str) else tuple(quantize)
        return replace(
            self,
            base=_given_or(_text(base), self.base),
            device=_given_or(device, self.device),
            dtype=_given_or(dtype, self.dtype),
            device_map=_given_or(device_map, self.device_map),
            tokenizer=_given_or(_text(tokenizer), self.tokenizer),
            lora_alpha=_given_or(lora_alpha, self.lora_alpha),
            revision=_given_or(revision, self.revision),
            trust_remote_code=_given_or(trust_remote_code, self.trust_remote_code),
            quantize=roundings or self.quantize,
            model=_given_or(model, self.model),
            agree=_given_or(_text(agree), self.agree),
        )

    def __post_init__(self) -> None:
        # Checked before PyTorch is imported, which takes seconds.
        if not DEVICES.fullmatch(self.device):
            problem = f"unknown device {self.device!r}"
            raise InputError(
                problem, where="--device", fix="give auto, cpu or cuda[:N]"
            )
        errors.one_of(self.dtype, "--dtype", DTYPES)

        # Layers of a spread model may be on disk, without numbers to round.
        if self.device_map and self.quantize:
            problem = "rounds whole models, not models spread by --device-map"
            raise InputError(problem, where="--quantize")


def _given_or(value: OptionT | None, default: OptionT) -> OptionT:
    """Return the value of an option; the default if the option is not given."""
    return default if value is None else value


def _text(path: str | Path | None) -> str | None:
    """Return a path as text; ``None`` stays."""
    return None if path is None else str(path)


@dataclass(frozen=True)
class Spec:
    """One checkpoint of a call.

    Attributes
    ----------
    name
        Its name in reports.
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
        suffix = "" if self.stage is None else f"@{self.stage}"
        return tuple(path + suffix for path in self.paths)


def names_server(specs: Sequence[Spec], loading: Loading) -> bool:
    """Return whether a call names a server, or has options that only a server has."""
    if loading.model or loading.agree:
        return True
    paths: list[str] = []
    for spec in specs:
        paths += spec.paths
    return any(is_server(path) for path in paths)


def exists(text: str) -> bool:
    """Return whether a text names a local file or folder."""
    return bool(text) and os.path.exists(os.path.expanduser(text))


def split_stage(text: str) -> tuple[str, str | None]:
    """Split ``PATH@K[:task]``; ``@`` counts only if the path in front of it exists.

    For a folder with both full weights and an adapter, ``PATH@full`` and
    ``PATH@adapter`` select one of them; in a series ``PATH@K:full`` and
    ``PATH@K:adapter``.

    Returns
    -------
    tuple
        The path, and the stage if there is one.

    Raises
    ------
    InputError
        If anything but a stage follows.
    """
    path, separator, stage = text.rpartition("@")
    if not separator or exists(text) or not exists(path):
        return text, None

    if not _STAGE.fullmatch(stage):
        raise InputError(
            f"{stage!r} is not a stage",
            where=text,
            fix="write PATH@K with K from 1, or PATH@K:task",
        )
    return path, stage


def split_half(stage: str | None) -> tuple[str | None, str | None]:
    """Split a stage into its number and the half of a folder, each if given."""
    if stage is None or stage in HALVES:
        return None, stage
    number, _, half = stage.partition(":")
    if half in HALVES:
        return number, half

    # The rest, ":task", belongs to the number.
    return stage, None


def parse_specs(texts: Sequence[str]) -> list[Spec]:
    """Parse the values of ``--ckpt``.

    ``NAME=`` is split off only if NAME consists of letters, digits and ``._+-``, and if
    the whole text is not an existing path. ``NAME=[p1,p2]`` lists replicates. Without a
    name, a checkpoint gets the shortest suffix of its path that is unique in the call.
    A quoted pattern (``'out/*'``) is expanded as in a shell.

    Raises
    ------
    InputError
        For an empty value, a list without a name, a repeated name or path, or
        replicates at different stages.
    """
    drafts: list[Spec] = []
    for text in texts:
        for match in _expanded_pattern(text):
            drafts.append(_parse_spec(match))

    # Given names come first, because default names must avoid them.
    names: set[str] = set()
    unnamed: list[tuple[str, ...]] = []
    path_by_parts: dict[tuple[str, ...], str] = {}
    for spec in drafts:
        if spec.name in names:
            raise InputError(
                f"the name {spec.name!r} is given twice",
                where="--ckpt",
                fix="name each checkpoint differently, or write NAME=[p1,p2] for seeds",
            )
        if spec.name:
            names.add(spec.name)
        # A checkpoint with the name base is audited, too.
        if spec.name == BASE:
            continue

        for path in spec.paths:
            parts = path_parts(path, spec.stage)
            if parts in path_by_parts:
                raise InputError(
                    "the same checkpoint is given twice",
                    where=f"--ckpt {path_by_parts[parts]}",
                    fix="leave one out",
                )
            path_by_parts[parts] = path
            if not spec.name:
                unnamed.append(parts)

    # A checkpoint without a name has one path, so the defaults have the same order.
    defaults = iter(distinct_suffixes(unnamed, taken={*names, BASE}))
    return [
        spec if spec.name else replace(spec, name=next(defaults)) for spec in drafts
    ]


def default_name(source: str) -> str:
    """Return the default name of a single checkpoint: the last part of its path."""
    path, stage = split_stage(source)
    return distinct_suffixes([path_parts(path, stage)], taken={BASE})[0]


def _expanded_pattern(text: str) -> list[str]:
    """Return the folders and weights files that a pattern matches.

    After ``NAME=``, the matches are replicates. A text that is not a pattern is
    returned unchanged.

    Raises
    ------
    InputError
        If nothing matches.
    """
    name = ""
    pattern = text.strip()
    named = _NAME_AND_PATH.fullmatch(pattern)
    if named is not None:
        name = named[1]
        pattern = named[2]

    # "[a,b]" is a list, and an existing folder may have a name like a pattern.
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
        raise InputError(
            "matches no folder and no weights file",
            where=f"--ckpt {text}",
            fix="check the pattern",
        )
    return [f"{name}=[{','.join(matches)}]"] if name else matches


def _parse_spec(text: str) -> Spec:
    """Parse a text into a spec; its name is empty if none is given.

    Raises
    ------
    InputError
        If a path or the name is missing, or if the name is invalid.
    """
    where = f"--ckpt {text.strip() or repr(text)}"
    name = ""
    value = text.strip()
    named = _NAME_AND_PATH.fullmatch(value)
    if named is not None and not exists(value):
        name = named[1]
        value = named[2].strip()

    is_path = exists(value)
    # "my model=PATH" counts as a path, because its name contains a blank.
    wrong_name, _, path = value.partition("=")
    if not name and not is_path and exists(path.strip()):
        raise InputError(
            f"{wrong_name!r} is no name for a checkpoint",
            where=where,
            fix="write a name of letters, digits and . _ + - alone",
        )

    is_list = value.startswith("[") and value.endswith("]") and not is_path
    sources = [value]
    if is_list:
        sources = [source.strip() for source in value[1:-1].split(",")]
    split_sources = [split_stage(source) for source in sources]

    if not all(sources):
        raise InputError("is empty", where=where, fix="give a path")
    if is_list and not name:
        raise InputError(
            "a list of seeds has no name", where=where, fix="write NAME=[PATH,PATH]"
        )

    stages = {stage for _, stage in split_sources}
    if len(stages) > 1:
        raise InputError(
            "replicates of one method are at different stages",
            where=where,
            fix="give every path the same @K, or none",
        )

    (stage,) = stages
    return Spec(name, tuple(path for path, _ in split_sources), stage)


def distinct_suffixes(paths: list[tuple[str, ...]], *, taken: set[str]) -> list[str]:
    """Return the shortest unique suffix of each path that is not already taken.

    Parameters
    ----------
    paths
        Results of :func:`path_parts`.

    Raises
    ------
    InputError
        If a whole path equals a name that is taken.
    """
    return [_distinct_suffix(path, paths, taken) for path in paths]


def _distinct_suffix(
    path: tuple[str, ...], paths: list[tuple[str, ...]], taken: set[str]
) -> str:
    """Return a path's shortest suffix that is unique and not taken."""
    for n_parts in range(1, len(path) + 1):
        suffix = path[-n_parts:]
        suffixes = [other_path[-n_parts:] for other_path in paths]
        name = "/".join(suffix)
        if suffixes.count(suffix) == 1 and name not in taken:
            return name
    raise InputError(
        f"the name {path[-1]!r} is taken", where="--ckpt", fix="name it: NAME=PATH"
    )


def path_parts(path: str, stage: str | None) -> tuple[str, ...]:
    """Return the folders and the last part of a path, with the stage at the end."""
    if exists(path):
        path = os.path.abspath(os.path.expanduser(path))
    elif path.startswith(untrusted.HUB):
        # A revision is not a stage, and may contain a slash.
        name, separator, revision = path.partition("@")
        path = name + separator.replace("@", "-") + revision.replace("/", "-")

    # A path of separators alone has no parts and is kept.
    parts = [part for part in Path(path).parts if part != os.sep] or [path]
    last = parts[-1]
    if stage is not None:
        last = f"{last}@{stage}"
    return (*parts[:-1], last)
