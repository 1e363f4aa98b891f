"""Plan, score, audit, report: from checkpoints and a manifest to a report folder.

The union of the passes that the audits need is scored once per checkpoint into a
store that resumes. Any number of workers may share the work: each scores the items
that fall to it by hash, and the one that finds nothing left writes the report.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd
import pyarrow as pa

from spark_audit.audits import AUDITS
from spark_audit.build import manifest_items
from spark_audit.errors import InputError
from spark_audit.facts import check_writable, now, versions, write_text
from spark_audit.manifest import Manifest, check_fit, limited, read_manifest
from spark_audit.reports import SCOPE, read_report, write_report
from spark_audit.results import (
    AuditResult,
    CheckpointFacts,
    Guard,
    ManifestFacts,
    Report,
)
from spark_audit.scoring import Item, Store, collect, drift, missing, score
from spark_audit.table import Pass, TokenTable, write_parquet

if TYPE_CHECKING:
    from spark_audit.checkpoints import Loaded

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Request:
    """What a user asked for; field names are those of the command line."""

    audits: tuple[str, ...]
    ckpt: tuple[str, ...]
    manifest: Path | None = None
    base: str | None = None
    baseline: str | None = None
    output: Path | None = None
    preset: str | None = None
    seed: int = 0
    limit: int | None = None
    scores: Path | None = None
    batch_size: int | str = "auto"
    show_text: bool = False
    shard: tuple[int, int] = (0, 1)
    loading: Mapping[str, Any] = field(default_factory=dict)
    audit_options: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a run came to; ``report`` is ``None`` for a worker that others outlast."""

    folder: Path
    report: Report | None
    missing: int = 0


@dataclass(frozen=True)
class _Scored:
    """A checkpoint after its passes, without its model."""

    facts: CheckpointFacts
    keys: dict[Pass, dict[str, str]]
    seconds: float


def run(request: Request, *, progress: Progress | None = None) -> Outcome:
    """Audit checkpoints against a manifest and write the report folder.

    Raises
    ------
    SparkError
        For anything the user gave that cannot be used (see the class's exit code).
    """
    from spark_audit.checkpoints import open_checkpoints, parse_specs

    started = time.monotonic()
    specs = parse_specs(list(request.ckpt))
    names = [spec.name for spec in specs]
    if request.baseline is not None and request.baseline not in (*names, "base"):
        raise InputError(
            f"the baseline {request.baseline!r} is none of the checkpoints",
            where="--baseline",
            fix=f"choose one of: {', '.join(map(str, names))}, base",
        )
    manifest = read_manifest(request.manifest) if request.manifest else None
    if manifest is not None and request.output is not None:
        check_output(request.output, manifest)
    loaded = open_checkpoints(
        specs,
        base=request.base,
        include_base=request.base is not None,
        **request.loading,
    )
    first = next(loaded)
    if manifest is None:
        manifest = find_manifest(first)
    folder = request.output or default_output(manifest, [str(n) for n in names])
    check_output(folder, manifest)
    check_writable(folder)

    full, partial = manifest, False
    if request.limit is not None:
        manifest = _first(manifest, request)
        partial = len(manifest.examples) < len(full.examples)
    plan = _plan(manifest, request)
    store = Store(request.scores or folder / "scores" / "store")
    scored: list[_Scored] = []
    left = 0
    for checkpoint in chain([first], loaded):
        done, rest = _score(checkpoint, manifest, plan, store, request, progress)
        scored.append(done)
        left += rest
        # Full weights are freed before the next checkpoint is loaded.
        del checkpoint, first
        first = None  # type: ignore[assignment]
    return _finish(
        request, full, manifest, plan, store, scored, folder, partial, started
    )
