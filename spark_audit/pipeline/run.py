"""Plan, score, audit, report: from checkpoints and a manifest to a report folder.

The union of the passes that the audits need is scored once per checkpoint into a
store that resumes, by an engine: here, by workers that share a folder, or elsewhere.
Of several workers with the same flags one that finds nothing missing writes the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.checkpoints.specs import parse_specs
from spark_audit.errors import IncompleteError, InputError
from spark_audit.files import check_writable
from spark_audit.locks import alone
from spark_audit.manifest.compatibility import check_fit
from spark_audit.manifest.file import load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.conclude import conclude
from spark_audit.pipeline.engines.contract import Call, Clock, Engine, Progress
from spark_audit.pipeline.folders import check_folder, default_folder, manifest_for
from spark_audit.pipeline.inputs import Inputs, unchanged
from spark_audit.pipeline.lineup import (
    Lineup,
    check_baseline,
    learned_order,
    lineup,
    make_plans,
    with_order,
)
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.score import Scored, Work
from spark_audit.report.folder import check_formats, folder_of, read_report
from spark_audit.results import Report
from spark_audit.terminal.console import say

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.store import Store

LOCK = ".report.lock"
"""Held in a report folder by whoever writes the report."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    ``report`` is ``None`` while ``missing`` items of other workers are not scored.
    ``anew`` is false where the folder held the report, and nothing had changed.
    """

    folder: Path
    report: Report | None
    anew: bool = True
    missing: int = 0


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
    if concludes and (folder := unchanged(request)) is not None:
        return Outcome(folder, read_report(folder), anew=False)
    engine, order, learned = _asked(request, progress)
    with engine:
        return _run(engine, order, learned, concludes=concludes)


def _asked(
    request: Request, progress: Progress | None
) -> tuple[Engine, Lineup, Sequence[str]]:
    """Who scores what, once the options are seen to go together."""
    check_formats(request.formats)
    order = lineup(parse_specs(list(request.ckpt)), request.audits)
    learned = learned_order(order, request)
    check_baseline(request.baseline, order.names)
    for audit in request.audits:
        audit.check_names(order.names)
    if not order.stages and all(audit.alone for audit in request.audits):
        raise InputError(
            request.audits[0].alone,
            where="--ckpt",
            fix="give the folder of a series, or its stages as [PATH,PATH,...]",
        )

    def show(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(what, done, total)

    call = Call(order.specs, request, Clock(), show)
    return _engine(call), order, learned


def _engine(call: Call) -> Engine:
    """The engine that a request asks for."""
    way = call.request.way
    if way == "jobs":
        from spark_audit.pipeline.engines.jobs import Jobs

        return Jobs(call)
    if way == "ray":
        from spark_audit.pipeline.engines.ray.cluster import check
        from spark_audit.pipeline.engines.ray.engine import Ray

        check(call.request.address)
        return Ray(call)
    return Engine(call)


@dataclass(frozen=True)
class Checked:
    """What is known of a request before any weights are read.

    Attributes
    ----------
    there
        Passes that the score store holds, and passes that there are; ``None`` where
        nobody can know yet.
    """

    work: Work
    folder: Path
    store: Path
    there: tuple[int, int] | None


def checked(request: Request) -> Checked:
    """Refuse what :func:`run` would refuse, from headers; nothing is written.

    Of scores that are nowhere the work has a store in memory.

    Raises
    ------
    SparkError
        As :func:`run` before it scores.
    """
    from spark_audit.scoring.store import Store

    asked, order, learned = _asked(request, None)
    engine = Engine(asked.call)
    manifest, folder = _fitting(engine, order)
    work = _work(engine, order, learned, manifest, folder)
    place = work.store.folder
    assert place is not None
    # A store that is made gets a salt; there is nothing in one that is not.
    if not (place / "salt").exists():
        return Checked(replace(work, store=Store(None)), folder, place, None)
    return Checked(work, folder, place, work.passes_there(engine.described))


def _fitting(
    engine: Engine, order: Lineup, first: Loaded | None = None
) -> tuple[Manifest, Path]:
    """The manifest, which all checkpoints fit, and the folder of the report.

    Parameters
    ----------
    first
        A checkpoint that a manifest is looked for by, where headers do not tell.
    """
    request, manifest = engine.call.request, None
    if request.manifest is not None:
        # Before headers are read: both are refused in a second.
        manifest = original(load_manifest(request.manifest))
    elif request.output is not None:
        check_writable(request.output)
    if manifest is not None:
        _report_folder(manifest, order, request)
    if manifest is None:
        one = first or next(iter(engine.described), None)
        if one is None:
            raise InputError(
                "which one fits is known after a checkpoint is loaded only",
                where="--manifest",
                fix="give one for --dry-run",
            )
        manifest = original(manifest_for(one, request))
    for one in engine.described:
        check_fit(manifest, one, base_sha256=one.base_sha256)
    if engine.described:
        names = [*order.names, *(one.name for one in engine.described)]
        check_baseline(request.baseline, names)
    return manifest, _report_folder(manifest, order, request)


def _report_folder(manifest: Manifest, order: Lineup, request: Request) -> Path:
    folder = request.output or default_folder(manifest, order.names)
    check_folder(folder, manifest, order, request)
    return folder


def _work(
    engine: Engine,
    order: Lineup,
    learned: Sequence[str],
    manifest: Manifest,
    folder: Path,
) -> Work:
    from spark_audit.scoring.store import Store

    request = with_order(engine.call.request, learned, manifest)
    view, plans = make_plans(
        manifest, request.audits, preset=request.preset, limit=request.limit
    )
    store = Store(store_of(request.scores) or folder / "scores" / "store")
    return Work(manifest, view, order, plans, store, request, engine)


def store_of(scores: Path | None) -> Path | None:
    """The store that ``--scores`` names: itself, or that of a report folder.

    Raises
    ------
    InputError
        If it is a file, or a folder of something else.
    """
    if scores is None:
        return None
    place = folder_of(scores)
    within = [place / "scores" / "store", place / "store"]
    found = next((one for one in within if (one / "salt").exists()), place)
    foreign = place.is_dir() and not (found / "salt").exists() and any(place.iterdir())
    if found == place and (place.is_file() or foreign):
        raise InputError(
            "holds no scores",
            where=f"--scores {scores}",
            fix="give a report folder with scores/store, or a folder for scores",
        )
    return found


def _run(
    engine: Engine, order: Lineup, learned: Sequence[str], *, concludes: bool
) -> Outcome:
    """Open, score and conclude by an engine."""
    request, clock = engine.call.request, engine.call.clock
    stream = engine.checkpoints()
    # Data become a manifest by a model that is opened; own code is known then only.
    first = checkpoint = None
    if request.manifest is None and (request.data or not engine.described):
        first = checkpoint = next(stream)
    manifest, folder = _fitting(engine, order, first)
    del first
    inputs = Inputs.of(engine) if concludes else None
    work = _work(engine, order, learned, manifest, folder)
    request, store = work.request, work.store
    if concludes:
        _say_there(work)
    scored: list[Scored] = []
    checkpoint = checkpoint or next(stream, None)
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
    if missing and request.shard[1] > 1:
        return Outcome(folder, None, missing=missing)
    if missing:
        raise IncompleteError(f"{missing} items could not be scored")
    # Commands, and workers of one, wait for one another.
    with alone(folder / LOCK):
        if request.shard[1] > 1 and unchanged(request) is not None:
            return Outcome(folder, read_report(folder), anew=False)
        report = conclude(work, folder, scored)
        if inputs is not None:
            inputs.keep(folder, report)
    return Outcome(folder, report)


def _say_there(work: Work) -> None:
    """Say what needs no scoring, where there may be anything of that."""
    if work.request.scores is None and work.store.empty:
        return
    if (there := work.passes_there(work.engine.described)) is not None:
        say(f"{there[0]} of {there[1]} passes are there: {work.store.folder}")


def _missing(store: Store, scored: Sequence[Scored]) -> int:
    """How many items nobody has scored yet."""
    store.refresh()
    asked = (list(keys().values()) for one in scored for keys in one.keys.values())
    lacking = ((keys, store.lacking(keys)) for keys in asked)
    return sum(key in lost for keys, lost in lacking for key in keys)
