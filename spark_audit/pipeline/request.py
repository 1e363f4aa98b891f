"""A user's request, whose fields are options of the command line.

A further option is a field of :class:`Request`: its text for ``--help`` stands in the
docstring under ``Attributes``, its name and group in ``Parameter``. A conflict of
options is a line of ``_REFUSED``, with its condition in ``_check_options``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter, Token
from cyclopts.types import PositiveInt

from spark_audit import options
from spark_audit.arguments import CheckedFields, checked_value
from spark_audit.audits import Audit
from spark_audit.audits.known import audit_of, audits_of
from spark_audit.checkpoints.endpoint_options import Asking
from spark_audit.checkpoints.given import GivenCheckpoint
from spark_audit.checkpoints.specs import Loading, is_server
from spark_audit.errors import InputError, one_of
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.settings import PRESETS

GivenPaths: TypeAlias = str | Path | Sequence[str | Path]
"""One path or several, as Python code gives them."""

GivenAudit: TypeAlias = str | Audit | type[Audit]
"""An audit as Python code gives it: its name, its class, or one with options.

The name ``all`` stands for the audits that the command ``all`` runs by default.
"""

GivenAudits: TypeAlias = GivenAudit | Sequence[GivenAudit]
"""One audit or several."""

NamedPaths: TypeAlias = GivenPaths | Mapping[str, GivenPaths]
"""Checkpoints as paths; several paths of one name are its seeds."""

SeveralCheckpoints: TypeAlias = GivenCheckpoint | Sequence[GivenCheckpoint]
"""One checkpoint or several: paths, open ones, or models in memory."""

GivenCheckpoints: TypeAlias = SeveralCheckpoints | Mapping[str, SeveralCheckpoints]
"""Checkpoints as Python code gives them; several paths of one name are its seeds."""

LAUNCHER_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
"""Variables in which torchrun and srun give a process its number and their total."""


def shard_of(text: str | None) -> tuple[int, int]:
    """Return the number of this worker, from 0, and how many workers there are.

    Without ``--shard`` they come from the first launcher that has set both of its
    variables; without a launcher the worker is the only one.

    Parameters
    ----------
    text
        The value of ``--shard``, ``I/N``; ``None``: it was not given.
    """
    for rank, world in LAUNCHER_VARIABLES:
        if text is None and rank in os.environ and world in os.environ:
            text = f"{os.environ[rank]}/{os.environ[world]}"

    index, _, count = (text or "0/1").partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise InputError(
            f"{text!r} is not a valid shard",
            where="--shard",
            fix="write I/N with I below N, for example 1/4",
        )
    return int(index), int(count)


def _shard(kind: object, tokens: Sequence[Token]) -> tuple[int, int]:
    """Read the typed value of ``--shard``; called by the command line's parser.

    A lambda in a field's type would not see the names of this module.
    """
    return shard_of(tokens[0].value)


def _path(value: str | Path) -> Path:
    """Return a path with ``~`` expanded."""
    return Path(os.path.expanduser(value))


def given_paths(paths: GivenPaths) -> tuple[Path, ...]:
    """Return one path or several, with ``~`` expanded."""
    if isinstance(paths, str | Path):
        paths = [paths]
    return tuple(_path(path) for path in paths)


def given_texts(texts: GivenPaths) -> tuple[str, ...]:
    """Return one text or several, such as names of formats; a path is a text, too."""
    if isinstance(texts, str | Path):
        texts = [texts]
    return tuple(str(text) for text in texts)


def given_audits(audits: GivenAudits) -> tuple[Audit, ...]:
    """Return audits that are given by name, class, or with options, or as ``all``."""
    return tuple(audit_of(audit) for audit in audits_of(audits))


def typed_checkpoints(checkpoints: NamedPaths) -> tuple[str, ...]:
    """Return checkpoints as they are typed on a command line.

    Each item of ``{name: path}`` becomes ``NAME=PATH``; several paths of one name, its
    seeds, become several texts.
    """
    if not isinstance(checkpoints, Mapping):
        return given_texts(checkpoints)

    typed: list[str] = []
    for name, paths in checkpoints.items():
        for path in given_texts(paths):
            typed.append(f"{name}={path}")
    return tuple(typed)


ENGINES = ("local", "ray")
"""Engines that score the passes of a request."""

_REFUSED = {
    "--data": "takes the place of a manifest, for audits of series alone; leave it out",
    "--relearn": "trains whole models on this machine; leave out --device-map and Ray",
    "--relearn-lr": "is not a learning rate; give a number above 0",
    "--relearn-steps": "is not a number of steps; give one of 1 or more",
    "--limit": "is not a number of examples; give one of 1 or more",
    "--batch-size": "is not a number of texts; give one of 1 or more, or auto",
    "--shard": "is no part of the work; give its number from 0 and how many there are, "
    "as (0, 4)",
    "--jobs": "shares the CPU of one machine, in one process a model; leave it out "
    "with --shard, launchers, Ray and --device-map",
    "--address": "is the address of a Ray cluster; add --engine ray",
    "--by": "compares scores of rows, and an endpoint that gives only text has none; "
    "leave it out",
    "--engine ray": "Ray shares the work itself: one command for all; leave --shard "
    "out, and start it once, not by torchrun or srun",
}
"""Problems of conflicting options or bad values, by option."""


@options.fields_in(options.WHAT)
@dataclass(frozen=True, kw_only=True)
class Request(CheckedFields):
    """What is audited, how, and where the report goes.

    From Python one text stands for a list of one, text for a path, and ``{name: path}``
    for checkpoints (``{name: [path, ...]}`` for the seeds of one).

    Attributes
    ----------
    audits
        With their options; from Python a name stands for one with its defaults.
    checkpoints
        Checkpoints: a Hugging Face folder, a PEFT adapter, a weight file, a series
        (its last stage; PATH@K another).
    base
        Base model: the model before this training. Needed for adapters that do not
        name theirs, and to compare full weights with it; audited as 'base'.
    baseline
        The same run without the correction; gives contrasts.
    manifest
        Default: the one in manifests/ that fits the checkpoint.
    data
        JSONL of ``data``, for audits of series in place of a manifest: its test rows
        are answered.
    relearn
        Rows of ``data`` to train each checkpoint on for a few steps, and audit it again
        as NAME+relearn: does what was suppressed come back? The base is treated alike.
    relearn_steps, relearn_lr
        Steps of that training, 8 rows each, and its peak learning rate.
    output
        Default: reports/<manifest>-<names>.
    formats
        What is rendered beside ``report.json``; none stands for all.
    limit
        Score only N examples; the report is partial.
    scores
        Score store to share between reports.
    shard
        Part of this worker, from 0, and how many workers there are.
    jobs
        Processes on this machine's CPU; auto: one per core, as memory allows.
    engine
        Scores in this process (and workers of --shard or a launcher), or on Ray.
    address
        The Ray cluster; default: RAY_ADDRESS, else here.
    open_manifest
        A manifest in memory, in place of ``manifest``.
    opened
        Checkpoints that are open already, and models in memory, each with its name
        (``NamedOpen`` of ``opened.py``); the base among them is named ``base``.
    command
        What was typed.

    Examples
    --------
    >>> request = sa.Request(
    ...     audits="nll", checkpoints={"mine": "runs/mine"}, manifest="m.json"
    ... )
    >>> request.seed
    0
    """

    audits: Annotated[tuple[Audit, ...], options.NO_OPTION] = ()
    checkpoints: Annotated[
        tuple[str, ...], Parameter("--ckpt", metavar="[NAME=]PATH...")
    ]
    base: Annotated[
        str | None, Parameter(metavar="MODEL", env_var="SPARK_AUDIT_BASE")
    ] = None
    baseline: Annotated[str | None, Parameter(metavar="NAME")] = None
    manifest: Annotated[
        Path | None, Parameter(metavar="FILE", env_var="SPARK_AUDIT_MANIFEST")
    ] = None
    output: Annotated[Path | None, Parameter(metavar="DIR", alias="-o")] = None
    formats: Annotated[options.Formats, Parameter(group=options.WHAT)] = ()
    data: Annotated[
        tuple[Path, ...], Parameter(group=options.HOW, metavar="DIR|DATA...")
    ] = ()
    relearn: Annotated[
        tuple[Path, ...], Parameter(group=options.HOW, metavar="DIR|DATA...")
    ] = ()
    relearn_steps: Annotated[PositiveInt, Parameter(group=options.HOW)] = 50
    relearn_lr: Annotated[float, Parameter(group=options.HOW)] = 1e-3
    preset: options.Preset = None
    seed: options.Seed = 0
    limit: Annotated[PositiveInt | None, Parameter(group=options.HOW)] = None
    scores: Annotated[
        Path | None,
        Parameter(group=options.WHERE, metavar="DIR", env_var="SPARK_AUDIT_SCORES"),
    ] = None
    batch_size: options.BatchSize = "auto"
    shard: Annotated[
        tuple[int, int],
        Parameter(
            group=options.WHERE,
            metavar="I/N",
            converter=_shard,
            n_tokens=1,
        ),
    ] = (0, 1)
    jobs: options.Count = "auto"
    engine: Annotated[str, Parameter(group=options.WHERE, choices=ENGINES)] = "local"
    address: Annotated[
        str | None, Parameter(group=options.WHERE, metavar="HOST:PORT")
    ] = None
    show_text: options.ShowText = False
    loading: Annotated[Loading, options.NO_OPTION] = Loading()
    asking: Annotated[Asking, options.NO_OPTION] = Asking()
    open_manifest: Annotated[Any, options.NO_OPTION] = None
    opened: Annotated[tuple[Any, ...], options.NO_OPTION] = ()
    command: Annotated[tuple[str, ...], options.NO_OPTION] = ()

    def __post_init__(self) -> None:
        checked_value("checkpoints", self.checkpoints, NamedPaths)
        checked_value("formats", self.formats, GivenPaths)
        checked_value("data", self.data, GivenPaths)
        checked_value("relearn", self.relearn, GivenPaths)

        # A frozen dataclass sets its own fields by object's method.
        given = {
            "checkpoints": typed_checkpoints(self.checkpoints),
            "audits": given_audits(self.audits),
            "formats": given_texts(self.formats),
            "data": given_paths(self.data),
            "relearn": given_paths(self.relearn),
        }
        for name, values in given.items():
            object.__setattr__(self, name, values)

        for name in ("manifest", "output", "scores"):
            value = checked_value(name, getattr(self, name), Path | None)
            if value is not None:
                object.__setattr__(self, name, _path(value))
        self.check_fields()

        options.text_in_dossier(self.formats, show_text=self.show_text)
        self._check_options()

    def _check_options(self) -> None:
        """Refuse conflicting options and values out of range.

        The command line checks choices and counts itself; Python does not.
        """
        one_of(self.engine, "--engine", ENGINES)
        one_of(self.preset, "--preset", (None, *PRESETS))

        on_ray = self.engine == "ray"
        only_series = all(audit.of_series for audit in self.audits)

        # Option -> whether it is wrong, if true; the first that is wrong is refused.
        is_wrong = {
            "--data": self.data and (self.has_manifest or not only_series),
            "--relearn": self.relearn and (self.loading.device_map or on_ray),
            "--relearn-lr": not 0 < self.relearn_lr < math.inf,
            "--relearn-steps": not options.is_count(self.relearn_steps),
            "--limit": self.limit is not None and not options.is_count(self.limit),
            "--batch-size": self.batch_size != "auto"
            and not options.is_count(self.batch_size),
            "--shard": not 0 <= self.shard[0] < self.shard[1],
            "--jobs": self.jobs not in ("auto", 1) and not self.can_use_processes,
            "--address": self.address is not None and not on_ray,
            "--by": self.asks_endpoint
            and any(getattr(audit, "by", None) for audit in self.audits),
            # A batch script of SLURM sets the variables of its first task: no error.
            "--engine ray": on_ray and self.shard[0],
        }
        for option, wrong in is_wrong.items():
            if wrong:
                raise InputError(_REFUSED[option], where=option)
        self._check_asking()

    def _check_asking(self) -> None:
        """Refuse options of endpoints where none is audited."""
        given_options = self.asking.given_options
        if given_options and not self.asks_endpoint:
            raise InputError(
                "is for an endpoint that gives only text",
                where=given_options[0],
                fix="leave it out, or give --ckpt NAME=https://HOST/v1 without --agree",
            )

    @property
    def has_manifest(self) -> bool:
        """True if the manifest is given, as a file or in memory."""
        return self.manifest is not None or self.open_manifest is not None

    @property
    def asks_endpoint(self) -> bool:
        """Return whether a checkpoint is an endpoint that gives only text.

        A server is one where no checkpoint here is given that it must agree with.
        """
        if self.loading.agree is not None:
            return False
        for text in self.checkpoints:
            path = text.partition("=")[2].strip().removeprefix("[")
            if is_server(text.strip()) or is_server(path):
                return True
        return False

    @property
    def reads_text_files(self) -> bool:
        """Return whether files of text take the place of checkpoints."""
        return any(audit.of_files for audit in self.audits)

    @property
    def can_use_processes(self) -> bool:
        """Return whether several processes of this machine may share the work."""
        n_workers = self.shard[1]
        must_be_single = (
            self.jobs == 1
            or n_workers > 1
            or bool(self.loading.device_map)
            # Another process has no access to what is open in this one.
            or bool(self.opened)
        )
        return self.engine == "local" and not must_be_single

    def shared_settings(self, manifest: Manifest) -> dict[str, object]:
        """Return the settings that all audits of a report share."""
        return {
            "preset": self.preset or manifest.settings.preset,
            "seed": self.seed,
            "baseline": self.baseline,
            "limit": self.limit,
        }
