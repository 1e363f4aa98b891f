"""The job on one page: from checkpoints and a manifest to a report folder.

The union of the passes that the audits need is scored once per checkpoint into a
store that resumes, by an engine: on this machine, by workers that share a folder, or
on Ray. Of several workers one that finds nothing missing writes the report.
"""

from __future__ import annotations

import resource
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.audits import about
from spark_audit.audits.base import Tables, baselines_of, originals
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.setup_guards import setup_guards
from spark_audit.errors import IncompleteError, InputError, at, free_bytes
from spark_audit.files import alone, sha256_file
from spark_audit.manifest.schema import Manifest
from spark_audit.messages import awaited, say
from spark_audit.messages import progress as shown
from spark_audit.names import BASE, RELEARNED_BASE
from spark_audit.pipeline import folders
from spark_audit.pipeline.job import CheckpointJob, Job, Lacking, Progress, missing_base
from spark_audit.pipeline.local_engine import processes
from spark_audit.pipeline.request import Request
from spark_audit.report.assemble import assemble, matching
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.kept import keep_if_replaced, other_models
from spark_audit.results import AuditResult, Guard, ManifestFacts, Report
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.store import Scores

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
    if (folder := folders.unchanged(request)) is not None:
        return Outcome(folder, read_report(folder), anew=False)
    # What headers show to be wrong is refused here, before anything is scored.
    job = _job(request, progress)
    inputs = folders.inputs_of(request, job.opening)
    lacking = job.lacking()
    if note := missing_base(job.manifest, job.opening.described, request):
        say(f"note: {note}")
    there = job.stored(lacking)
    if there is not None and (there[0] or there[2] or request.scores is not None):
        say(f"{stored_passes(*there)} are stored in {job.store.folder}")
    engine = import_module(f"spark_audit.pipeline.{request.engine}_engine")
    scored: list[CheckpointJob] = engine.score(job, lacking)
    with job.clock("gathering"):
        missing = job.missing(scored)
    if missing and request.shard[1] > 1:
        return Outcome(job.folder, None, missing=missing)
    if missing:
        raise IncompleteError(f"{missing} items could not be scored")
    # Commands, and workers of one, wait for one another.
    with alone(job.folder / LOCK):
        if request.shard[1] > 1 and folders.unchanged(request) is not None:
            return Outcome(job.folder, read_report(job.folder), anew=False)
        report = conclude(job, job.noted(scored))
        folders.keep_inputs(request, inputs, job.folder, report)
    return Outcome(job.folder, report)


def _job(request: Request, progress: Progress | None = None) -> Job:
    """The request, refused for what headers show to be wrong, or for no cluster."""
    if request.engine == "ray":
        from spark_audit.pipeline.ray_engine import check

        check(request.address)
    return Job.of(request, progress)


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


def conclude(job: Job, scored: Sequence[CheckpointJob]) -> Report:
    """Conclude from what is stored, all of it, and write the report's folder."""
    request, folder = job.request, job.folder
    tables = {
        one.facts.name: Scores(job.store, one.keys, served=one.facts.format == "server")
        for one in scored
    }
    # Another command may have finished here in the meantime.
    before = folders.check_folder(folder, job.manifest, job.order.specs, request)
    results: Mapping[str, AuditResult] = _results(job, scored, tables)
    manifest, view = job.manifest, job.view
    partial = len(view.examples) < len(manifest.examples)
    settings = {
        f"{name}.{key}": value
        for name, result in results.items()
        for key, value in result.settings.items()
    }
    facts: dict[str, Any] = {
        "status": "partial" if partial else "complete",
        "command": list(request.command),
        "settings": request.shared_settings(manifest)
        | {"caliper": manifest.settings.caliper, "reference": manifest.reference.name}
        | settings,
        "manifest": manifest_facts(view),
        "checkpoints": [one.facts for one in scored],
        "guards": _setup(job, scored, tables),
        "tables": matching(view),
        "timing": {k: round(seconds, 3) for k, seconds in job.clock.items()},
    }
    # Of other models of the same names nothing is taken over.
    if before is not None and not other_models(before, facts["checkpoints"]):
        with at(str(folder)):
            results, facts = folders.joined(before, results, facts)
    report = assemble(results, **facts)
    keep_if_replaced(folder, before, report)
    evidence = {name: result.evidence for name, result in results.items()}
    sums = report.evidence | write_evidence(folder, evidence)
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
    job: Job, scored: Sequence[CheckpointJob], tables: Tables
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


def _setup(job: Job, scored: Sequence[CheckpointJob], tables: Tables) -> list[Guard]:
    """The setup guards that fail, of a series by its last stage."""
    stages = job.order.stages
    names = {job.order.entry(name): name for name in tables if name in stages}
    names |= {name: name for name in tables if name not in stages | {RELEARNED_BASE}}
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
        n_sources=len({source for source, _, _ in trained}),
        n_clusters=len({cluster for _, cluster, _ in trained}),
        n_spans=len(trained),
        n_tokens=sum(tokens for _, _, tokens in trained),
    )


# --- what a run would take ------------------------------------------------------------

TIMED = 4096
"""Tokens of a pass that are timed."""


def estimate(request: Request) -> dict[str, Any]:
    """What a run of the request takes on this machine, as busy as it is now, for JSON.

    ``passes`` has a record for each kind of pass: what is still to be scored of it.
    ``there`` are how many passes over checkpoints the ``store`` holds, and how many
    there are; ``None`` where there is no store yet. Statistics, pictures and short
    trainings (``--relearn``) are not timed.

    Raises
    ------
    SparkError
        As a run raises it before it scores.
    """
    from spark_audit.scoring.store import Store

    job = _job(request)
    described, place = job.opening.described, job.store.folder
    if any(one.served for one in described):
        fix = "leave it out: all else was checked, and a run that is stopped resumes"
        raise InputError(
            "how long a server takes is not known", where="--dry-run", fix=fix
        )
    # A store that is made gets a salt; there is nothing in one that is not.
    begun = place is not None and (place / "salt").exists()
    job = job if begun else replace(job, store=Store(None))
    lacking = job.lacking()
    pace, loading = _timed(job, lacking)
    passes: list[dict[str, Any]] = []
    for name in dict.fromkeys(kind.kind for _, kind in lacking):
        items = [
            i for (_, kind), own in lacking.items() if kind.kind == name for i in own
        ]
        tokens = sum(item.tokens for item in items)
        seconds = round(tokens * pace.get(name, 0.0), 2)
        part = {"items": len(items), "tokens": tokens, "seconds": seconds}
        passes.append({"pass": name, **part})
    free, memory = free_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    at_once = processes(job, lacking)
    return {
        "manifest": job.manifest.name,
        "rows": len(job.manifest.examples),
        "folder": str(job.folder),
        "checkpoints": [one.name for one in described],
        "notes": list(dict.fromkeys(n for one in job.opening.items for n in one.notes)),
        "passes": passes,
        "loading": round(loading, 2),
        "seconds": round(loading + sum(one["seconds"] for one in passes), 2),
        "memory_bytes": at_once * memory * 1024,
        "free_bytes": free,
        "processes": at_once,
        "there": job.stored(lacking) if begun else None,
        "store": str(place),
    }


def _timed(job: Job, lacking: Lacking) -> tuple[dict[str, float], float]:
    """Seconds per token of each pass, and seconds of loading.

    Where nothing is lacking, nothing is opened.
    """
    from spark_audit.scoring.score import score

    samples = {kind: left for (_, kind), left in lacking.items() if left}
    if not samples:
        return {}, 0.0
    groups = len(job.opening.groups)
    with job.clock("loading"):
        loaded = next(iter(job.opening.open(groups - 1)))
    pace: dict[str, float] = {}
    for kind in {kind.kind: kind for kind in samples}.values():
        # Items of every length, about four batches of a CPU.
        items = sorted(samples[kind], key=lambda item: item.tokens)
        mean = sum(item.tokens for item in items) / len(items)
        count = min(len(items), max(int(TIMED / max(mean, 1)), 4))
        some = [items[i] for i in np.linspace(0, len(items) - 1, count).astype(int)]
        score(loaded, some[:1], passes=[kind])
        with job.clock(kind.kind):
            score(loaded, some, passes=[kind], batch_size=job.request.batch_size)
        pace[kind.kind] = job.clock[kind.kind] / sum(item.tokens for item in some)
    job.opening.release()
    return pace, job.clock["loading"] * groups


def told(estimated: Mapping[str, Any]) -> Iterator[str]:
    """The estimate in at most 25 lines of 80 columns."""
    names, there = ", ".join(estimated["checkpoints"]), estimated["there"]
    count, free = estimated["processes"], estimated["free_bytes"]
    yield f"Reads    {estimated['manifest'][:40]}, {estimated['rows']:,} rows"
    yield f"with     {names if len(names) <= 70 else f'{names[:67]}...'}"
    if there:
        yield f"Scores   {stored_passes(*there)}: {estimated['store']}"
    yield from (f"Note     {note}" for note in estimated["notes"])
    for one in estimated["passes"]:
        reads = f"{one['items']:,} items, {one['tokens']:,} tokens"
        yield f"{one['pass']:<10}{duration(one['seconds']):>12}  {reads}"
    yield f"{'loading':<10}{duration(estimated['loading']):>12}"
    yield ""
    by = f", by {count} processes" if count > 1 else ""
    yield f"In all about {duration(estimated['seconds'])}{by}."
    beside = "" if free is None else f" of {memory_size(free)} that are free"
    yield f"Memory: {memory_size(estimated['memory_bytes'])}{beside}."
    yield "Some batches of each pass were timed on one checkpoint; saved scores count"
    yield "as done. Statistics, pictures and short trainings (--relearn) come on top."
    yield f"The report goes to {estimated['folder']}; nothing was written."


def stored_passes(n_whole: int, n_passes: int, n_in_part: int = 0) -> str:
    """How many passes are stored, in words."""
    words = f"{n_whole} of {n_passes} passes"
    return f"{words}, and parts of {n_in_part} more," if n_in_part else words


def memory_size(n_bytes: float) -> str:
    """Bytes as people say them, never as none: ``2.5 GB``, ``40 MB``."""
    if n_bytes >= 1e9:
        return f"{n_bytes / 1e9:.1f} GB"
    return f"{max(n_bytes / 1e6, 1):.0f} MB"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"
