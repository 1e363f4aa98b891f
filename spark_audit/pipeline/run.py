"""Plan, score, audit, report: from checkpoints and a manifest to a report folder.

The union of the passes that the audits need is scored once per checkpoint into a
store that resumes, by an engine: here, by workers that share a folder, or elsewhere.
Of several workers with the same flags the first that finds nothing missing writes the
report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.checkpoints.specs import parse_specs
from spark_audit.errors import IncompleteError
from spark_audit.files import check_writable
from spark_audit.locks import alone
from spark_audit.manifest.file import load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.conclude import conclude
from spark_audit.pipeline.engines import ENGINES
from spark_audit.pipeline.engines.contract import Call, Clock, Engine, Progress
from spark_audit.pipeline.folders import check_folder, default_folder, manifest_for
from spark_audit.pipeline.lineup import (
    Lineup,
    Plans,
    check_baseline,
    check_options,
    learned_order,
    lineup,
    make_plans,
    with_order,
)
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.score import Scored, Work
from spark_audit.pipeline.workers import NOT_GIVEN, Worker
from spark_audit.report.folder import check_formats
from spark_audit.results import Report

if TYPE_CHECKING:
    from spark_audit.scoring.store import Store

PLACE = (
    *("device", "device_map", "tp", "probe"),
    *("trust_remote_code", "base", "include_base"),
)
"""Options of opening that may differ from one worker to another."""
LOCK = ".report.lock"
"""Held in a report folder by whoever writes the report."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to; ``report`` is ``None`` where another worker wrote it."""

    folder: Path
    report: Report | None


def run(
    request: Request, *, progress: Progress | None = None, concludes: bool = True
) -> Outcome:
    """Audit checkpoints against a manifest and write the report folder.

    Parameters
    ----------
    concludes
        Else it helps to score, and another process writes the report.

    Raises
    ------
    SparkError
        For anything that the user gave and that cannot be used; what was scored until
        then is kept, and the same request resumes.
    """
    clock = Clock()
    check_formats(request.formats)
    check_options(request)
    order = lineup(parse_specs(list(request.ckpt)), request.audits)
    learned = learned_order(order, request)
    check_baseline(request.baseline, order.names)
    check_options(request, order.names)

    def show(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(what, done, total)

    call = Call(order.specs, request, clock, show)
    with ENGINES.get(request.way).run(call) as engine:
        return _run(engine, order, learned, concludes=concludes)


def _run(
    engine: Engine, order: Lineup, learned: Sequence[str], *, concludes: bool
) -> Outcome:
    """Open, score and conclude by an engine."""
    from spark_audit.scoring.store import Store

    request, clock = engine.call.request, engine.call.clock

    def report_folder(manifest: Manifest) -> Path:
        folder = request.output or default_folder(manifest, order.names)
        check_folder(folder, manifest, order, request)
        return folder

    manifest = None
    if request.manifest is not None:
        manifest = original(load_manifest(request.manifest))
        report_folder(manifest)
    elif request.output is not None:
        check_writable(request.output)
    stream = engine.checkpoints()
    checkpoint = next(stream, None)
    assert checkpoint is not None
    if manifest is None:
        manifest = original(manifest_for(checkpoint, request))
    folder = report_folder(manifest)
    request = with_order(request, learned, manifest)
    view, plans = _plans(manifest, request)
    worker = _worker(folder, request, manifest, told=concludes)
    with worker.at_work():
        store = Store(request.scores or folder / "scores" / "store")
        work = Work(manifest, view, order, plans, store, request, engine)
        scored: list[Scored] = []
        while checkpoint is not None:
            if order.scores(checkpoint.name):
                scored.append(work.score(checkpoint))
            # Let go of full weights before the next checkpoint is loaded.
            checkpoint = None
            checkpoint = next(stream, None)
        names = [*order.names, *(one.facts.name for one in scored)]
        check_baseline(request.baseline, names)
        scored = work.settle(scored)
        if not concludes:
            return Outcome(folder, None)
        with clock("gathering"):
            missing = _missing(store, scored)
        if missing:
            raise IncompleteError(f"{missing} items could not be scored")
        # Commands, and workers of one, wait for one another.
        with alone(folder / LOCK):
            if worker.ended:
                return Outcome(folder, None)
            report = conclude(work, folder, scored)
            worker.finish()
    return Outcome(folder, report)


def _missing(store: Store, scored: Sequence[Scored]) -> int:
    """How many items nobody has scored yet."""
    store.refresh()
    asked = (list(keys().values()) for one in scored for keys in one.keys.values())
    lacking = ((keys, store.lacking(keys)) for keys in asked)
    return sum(key in lost for keys, lost in lacking for key in keys)


def _worker(
    folder: Path, request: Request, manifest: Manifest, *, told: bool
) -> Worker:
    part = "/".join(map(str, request.shard))
    return Worker(
        folder / "scores" / "workers",
        "+".join(request.audits),
        part if told and request.way == "shard" else None,
        _flags(request, manifest),
    )


def _flags(request: Request, manifest: Manifest) -> dict[str, str]:
    """What all workers of a report must have alike: all that shapes it, by its flag."""
    texts = "data" if request.data else "manifest"
    flags = {
        **request.audit_options,
        **{k: v for k, v in vars(request.loading).items() if k not in PLACE},
        "ckpt": request.ckpt,
        "base": request.base,
        "baseline": request.baseline,
        texts: f"{manifest.name} {manifest.digest[:12]}",
        "preset": request.preset or manifest.settings.preset,
        "seed": request.seed,
        "limit": request.limit,
        "scores": request.scores,
        "format": request.formats,
        "show-text": request.show_text,
    }
    return {
        f"--{name.replace('_', '-')}": " ".join(map(str, value))
        if isinstance(value, tuple)
        else str(NOT_GIVEN if value is None else value)
        for name, value in sorted(flags.items())
    }


def _plans(manifest: Manifest, request: Request) -> tuple[Manifest, Plans]:
    return make_plans(
        manifest,
        request.audits,
        preset=request.preset,
        options=request.audit_options,
        limit=request.limit,
    )
