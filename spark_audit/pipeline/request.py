"""What a user asks of the audits; the fields are the flags of the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError
from spark_audit.sentences import LANGUAGES
from spark_audit.terminal.flags import Flag, Seed, ShowText


def auto_or_number(text: str, *, flag: str = "--batch-size") -> int | Literal["auto"]:
    """``auto`` or a number from 1."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"cannot be {text!r}", where=flag, fix="give auto or N")
    return int(text)


def formats_of(text: str | None) -> tuple[str, ...]:
    """The value of ``--format``; nothing stands for all formats."""
    return () if text is None else tuple(part.strip() for part in text.split(","))


def shard_of(text: str | None) -> tuple[int, int]:
    """The part of this worker: from ``--shard``, else from the launcher's variables."""
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if text is None and rank in os.environ and world in os.environ:
            text = f"{os.environ[rank]}/{os.environ[world]}"
    index, _, count = (text or "0/1").partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise InputError(
            f"{text!r} is no part of a whole", where="--shard", fix="give I/N, I < N"
        )
    return int(index), int(count)


def _path(value: str | Path) -> Path:
    return Path(value).expanduser()


_LISTS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("audits", "ckpt", "formats"), str),
    "data": _path,
}
"""Fields that are lists, and what each value becomes."""

BatchSize: TypeAlias = Annotated[
    int | Literal["auto"],
    Flag(
        "Rows scored at once; auto: by tokens.",
        metavar="auto|N",
        read=auto_or_number,
        env="SPARK_AUDIT_BATCH_SIZE",
    ),
]
Formats: TypeAlias = Annotated[
    tuple[str, ...],
    Flag(
        "Formats to write: html, md, csv, latex, figures, json, dossier, "
        "card, with commas; default: all but the last two.",
        metavar="NAMES",
        name="format",
        read=formats_of,
    ),
]
Language: TypeAlias = Annotated[
    str,
    Flag(
        "Language of the first screen, advice and dossier; the rest is English.",
        choices=LANGUAGES,
    ),
]
Preset: TypeAlias = Annotated[
    str | None,
    Flag(
        "Default: that of the manifest.",
        metavar="robust|paper",
        choices=("robust", "paper"),
    ),
]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is audited, how, and where the report goes.

    From Python one text stands for a list of one, and text for a path.

    Attributes
    ----------
    audits
        Their names.
    data
        Stands for a manifest where only the tasks themselves are audited.
    formats
        What is rendered beside ``report.json``; none stands for all.
    shard
        The part of this worker, from 0, and how many workers there are.
    audit_options
        Options of the audits beyond the common ones, by name.
    command
        What was typed.
    """

    audits: tuple[str, ...]
    ckpt: Annotated[
        tuple[str, ...],
        Flag(
            "Checkpoints: a Hugging Face folder, a PEFT adapter, a weight file, a "
            "series (its last stage; PATH@K another).",
            metavar="[NAME=]PATH...",
        ),
    ]
    base: Annotated[
        str | None,
        Flag(
            "Base model of adapters; audited as 'base'.",
            metavar="MODEL",
            env="SPARK_AUDIT_BASE",
        ),
    ] = None
    baseline: Annotated[
        str | None,
        Flag("The same run without the correction; gives contrasts.", metavar="NAME"),
    ] = None
    manifest: Annotated[
        Path | None,
        Flag(
            "Default: the one in manifests/ that fits the checkpoint.",
            metavar="FILE|DIR",
            env="SPARK_AUDIT_MANIFEST",
        ),
    ] = None
    data: Annotated[
        tuple[Path, ...],
        Flag(
            "JSONL of `data`, in place of a manifest: its test rows are answered.",
            metavar="DIR|DATA...",
        ),
    ] = ()
    output: Annotated[
        Path | None,
        Flag("Default: reports/<manifest>-<names>.", metavar="DIR", short="-o"),
    ] = None
    preset: Preset = None
    seed: Seed = 0
    formats: Formats = ()
    language: Language = "en"
    limit: Annotated[
        int | None, Flag("Score only N examples; the report is partial.", min=1)
    ] = None
    scores: Annotated[
        Path | None,
        Flag(
            "Score store to share between reports.",
            metavar="DIR",
            env="SPARK_AUDIT_SCORES",
        ),
    ] = None
    batch_size: BatchSize = "auto"
    shard: Annotated[
        tuple[int, int],
        Flag("Part of this worker, from 0/N; N workers.", metavar="I/N", read=shard_of),
    ] = (0, 1)
    jobs: Annotated[
        int | Literal["auto"],
        Flag(
            "Processes on this machine's CPU; auto: one per core, as memory allows.",
            metavar="auto|N",
            read=partial(auto_or_number, flag="--jobs"),
        ),
    ] = "auto"
    engine: Annotated[
        str,
        Flag(
            "Scores in this process (and workers of --shard or a launcher), or on Ray.",
            # Workers that share a folder or a machine are known by their numbers.
            choices=("local", "ray"),
        ),
    ] = "local"
    address: Annotated[
        str | None,
        Flag("The Ray cluster; default: RAY_ADDRESS, else here.", metavar="HOST:PORT"),
    ] = None
    show_text: ShowText = False
    loading: Loading = Loading()
    audit_options: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, read in _LISTS.items():
            value = getattr(self, name)
            several = [value] if isinstance(value, str | Path) else value
            object.__setattr__(self, name, tuple(read(one) for one in several))
        for name in ("manifest", "output", "scores"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _path(value))
        if self.data and self.manifest is not None:
            raise InputError(
                "stands in place of a manifest", where="--data", fix="leave one out"
            )
        if self.jobs not in ("auto", 1) and self.way != "jobs":
            raise InputError(
                "shares the CPU of one machine, in one process a model",
                where="--jobs",
                fix="leave it out with --shard, launchers, Ray and --device-map",
            )
        if self.address is not None and self.engine != "ray":
            raise InputError(
                "is that of a Ray cluster", where="--address", fix="add --engine ray"
            )
        # A batch script of SLURM says that it is the first of all tasks.
        if self.engine == "ray" and self.shard[0]:
            raise InputError(
                "Ray shares the work itself: one command for all",
                where="--engine ray",
                fix="leave --shard out, and start it once, not by torchrun or srun",
            )

    @property
    def way(self) -> str:
        """The engine that scores."""
        if self.engine != "local":
            return self.engine
        alone = self.jobs == 1 or self.shard[1] > 1 or self.loading.device_map
        return "local" if alone else "jobs"
