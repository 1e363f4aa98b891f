"""The job on one page: from checkpoints and a manifest to a report folder.

The union of the passes that the audits need is scored once per checkpoint into a
store that resumes, by an engine: on this machine, by workers that share a folder, or
on Ray. Of several workers one that finds nothing missing writes the report.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from spark_audit.audits import about
from spark_audit.audits.base import Tables, baselines_of, originals
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.setup_guards import setup_guards
from spark_audit.errors import IncompleteError
from spark_audit.files import alone, sha256_file
from spark_audit.manifest.file import ids_identify
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE, CONTROL
from spark_audit.pipeline.folders import (
    accumulated,
    check_folder,
    inputs_of,
    keep_inputs,
    unchanged,
)
from spark_audit.pipeline.job import Job, Progress, Scored
from spark_audit.pipeline.request import Request
from spark_audit.report.assemble import assemble, matching
from spark_audit.report.folder import read_report, write_report
from spark_audit.results import AuditResult, Guard, ManifestFacts, Report
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.store import Scores
from spark_audit.terminal.console import say
from spark_audit.terminal.progress import awaited
from spark_audit.terminal.progress import progress as shown

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


def run(request: Request, *, progress: Progress | None = None) -> Outcome:
    """Audit checkpoints against a manifest and write the report folder.

    Raises
    ------
    SparkError
        For anything that the user gave and that cannot be used; what was scored until
        then is kept, and the same request resumes.
    """
    if (folder := unchanged(request)) is not None:
        return Outcome(folder, read_report(folder), anew=False)
    # What headers show to be wrong is refused here, before anything is scored.
    job = Job.of(request, progress)
    inputs = inputs_of(request, job.opening)
    lacking = job.lacking()
    there = job.stored(lacking)
    if there is not None and (there[0] or request.scores is not None):
        say(f"{there[0]} of {there[1]} passes are stored in {job.store.folder}")
    engine = import_module(f"spark_audit.pipeline.engines.{request.engine}")
    scored: list[Scored] = engine.score(job, lacking)
    with job.clock("gathering"):
        missing = job.missing(scored)
    if missing and request.shard[1] > 1:
        return Outcome(job.folder, None, missing=missing)
    if missing:
        raise IncompleteError(f"{missing} items could not be scored")
    # Commands, and workers of one, wait for one another.
    with alone(job.folder / LOCK):
        if request.shard[1] > 1 and unchanged(request) is not None:
            return Outcome(job.folder, read_report(job.folder), anew=False)
        report = conclude(job, job.noted(scored))
        keep_inputs(request, inputs, job.folder, report)
    return Outcome(job.folder, report)


def audit(
    ckpt: Any,
    *,
    audits: Any = ("matched",),
    progress: bool | None = None,
    **options: Any,
) -> Report:
    """Audit checkpoints against a manifest, write the report folder, return the report.

    Parameters
    ----------
    ckpt
        Path of a checkpoint, several of them, or ``{name: path}``.
    audits
        Names of audits, or audits with options (``sa.audits.Matched(...)``).
    progress
        Whether progress is shown; by default where a person waits.
    options
        The other fields of :class:`Request`: ``base``, ``manifest``, ``output``,
        ``formats``, ``baseline`` ...

    Raises
    ------
    SparkError
        As :func:`run`.
    """
    request = Request(ckpt=ckpt, audits=audits, **options)
    show_it = awaited() if progress is None else progress
    with shown(quiet=not show_it) as show:
        report = run(request, progress=show).report
    if report is None:
        raise IncompleteError("other workers have not scored their part")
    return report


# --- from complete tables to the report folder ----------------------------------------

STATISTICS = "statistics, audits"
"""What is being done after scoring."""


def conclude(job: Job, scored: Sequence[Scored]) -> Report:
    """Conclude from what is stored, all of it, and write the report's folder."""
    request, folder = job.request, job.folder
    tables = {
        one.facts.name: Scores(job.store, one.keys, served=one.facts.format == "server")
        for one in scored
    }
    # Another command may have finished here in the meantime.
    before = check_folder(folder, job.manifest, job.order, request)
    results = _results(job, scored, tables)
    manifest, view = job.manifest, job.view
    partial = len(view.examples) < len(manifest.examples)
    report = assemble(
        results,
        status="partial" if partial else "complete",
        command=list(request.command),
        settings=request.shared_settings(manifest)
        | {
            "caliper": manifest.settings.caliper,
            "reference": manifest.reference.name,
            **{
                f"{name}.{key}": value
                for name, result in results.items()
                for key, value in result.settings.items()
            },
        },
        manifest=manifest_facts(view),
        checkpoints=[one.facts for one in scored],
        guards=_setup(job, scored, tables),
        tables=matching(view),
        timing={k: round(seconds, 3) for k, seconds in job.clock.items()},
    )
    if before is not None:
        report = accumulated(before, report, folder=folder)
    fresh = {name: result.evidence for name, result in results.items()}
    sums = report.evidence | write_evidence(folder, fresh)
    write_report(
        report.model_copy(update={"evidence": sums, "files": score_files(sums)}),
        folder,
        # The report itself is always written: all else is rendered from it.
        formats=("json", *request.formats) if request.formats else (),
        manifest=job.view,
        show_text=request.show_text,
        language=request.language,
    )
    return read_report(folder)  # it knows now what stands beside it


def write_evidence(
    folder: Path, evidence: Mapping[str, Evidence | None]
) -> dict[str, str]:
    """Write what comparisons conclude from, by audit; the checksum of each file."""
    sums: dict[str, str] = {}
    for name, one in evidence.items():
        if one is not None and len(one):
            path = folder / "scores" / about(name).evidence_file()
            one.write(path)
            sums[path.name] = sha256_file(path)
    return sums


def score_files(evidence: Iterable[str]) -> dict[str, list[str]]:
    """What a report names of its folder ``scores``, with some files of evidence."""
    return {"scores": sorted(f"scores/{name}" for name in evidence)}


def _results(
    job: Job, scored: Sequence[Scored], tables: Tables
) -> dict[str, AuditResult]:
    """What each audit concludes."""
    results: dict[str, AuditResult] = {}
    request, audits = job.request, job.request.audits
    quantised = originals(one.facts for one in scored)
    for count, audit in enumerate(audits):
        job.show(STATISTICS, count, len(audits))
        with job.clock(f"statistics: {audit.name}"):
            seen = {k: own for k, own in tables.items() if job.order.sees(k, audit)}
            # A series is held against a series, by their own names.
            names = dict.fromkeys(map(job.order.entry, seen))
            result = audit(
                seen,
                job.view,
                baseline=baselines_of(request.baseline, names) | quantised,
                preset=request.preset,
                seed=request.seed,
            )
            results[audit.name] = with_entries(result)
    job.show(STATISTICS, len(audits), len(audits))
    return results


def _setup(job: Job, scored: Sequence[Scored], tables: Tables) -> list[Guard]:
    """The setup guards that fail, of a series by its last stage."""
    stages = job.order.stages
    names = {job.order.entry(name): name for name in tables if name in stages}
    names |= {name: name for name in tables if name not in stages | {CONTROL}}
    weights = {BASE: job.manifest.reference.weights_sha256}
    for one in (one.facts for one in scored):
        # What is made of other weights bears their hash.
        made = one.quantised_from or one.relearned_from
        if made is None and one.format != "live":
            weights[one.name] = one.weights_sha256
    with job.clock("statistics: setup"):
        return setup_guards(tables, job.view, names=names, weights=weights)


def manifest_facts(manifest: Manifest) -> ManifestFacts:
    """What a report says of the manifest, or of the part of it that was audited."""
    by_id = manifest.by_id
    trained = [
        (one.source_id, one.cluster, pair.pii.token_end - pair.pii.token_start)
        for pair in manifest.pairs
        for one in (by_id[pair.example],)
        if one.split == "train"
    ]
    return ManifestFacts(
        name=manifest.name,
        digest=manifest.digest,
        key=secrets.token_hex(16),
        ids_identify=ids_identify(manifest),
        n_sources=len({source for source, _, _ in trained}),
        n_clusters=len({cluster for _, cluster, _ in trained}),
        n_spans=len(trained),
        n_tokens=sum(tokens for _, _, tokens in trained),
    )
