"""From complete scores to the report folder."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from spark_audit.audits import about
from spark_audit.audits.base import Tables, baselines_of, originals
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.setup_guards import setup_guards
from spark_audit.errors import at
from spark_audit.files import sha256_file
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE, RELEARNED_BASE
from spark_audit.pipeline import folders, joined
from spark_audit.pipeline.job import CheckpointJob, Job
from spark_audit.report.assemble import assemble, matching
from spark_audit.report.audit_report import AuditReport, read_report
from spark_audit.report.folder import write_report
from spark_audit.report.kept import keep_if_replaced, other_models
from spark_audit.results import AuditResult, Guard, ManifestFacts
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.store import Scores

STATISTICS = "statistics, audits"
"""What is being done after scoring."""


def conclude(job: Job, scored: Sequence[CheckpointJob]) -> AuditReport:
    """Conclude from what is stored, all of it, and write the report's folder."""
    request, folder = job.request, job.folder
    tables = {
        one.facts.name: Scores(job.store, one.keys, served=one.facts.format == "server")
        for one in scored
    }
    # Another command may have finished here in the meantime.
    before = folders.check_folder(folder, job.manifest, job.order.specs, request)
    results = _results(job, scored, tables)
    manifest, view = job.manifest, job.view
    partial = len(view.examples) < len(manifest.examples)
    settings = {
        f"{name}.{key}": value
        for name, result in results.items()
        for key, value in result.settings.items()
    }
    parts = joined.ReportParts(
        results=results,
        checkpoints=[one.facts for one in scored],
        settings=request.shared_settings(manifest)
        | {"caliper": manifest.settings.caliper, "reference": manifest.reference.name}
        | settings,
        guards=_setup(job, scored, tables),
        timing={k: round(seconds, 3) for k, seconds in job.clock.items()},
    )
    # Of other models of the same names nothing is taken over.
    if before is not None and not other_models(before, parts.checkpoints):
        with at(str(folder)):
            parts = joined.joined(before, parts)
    report = assemble(
        parts.results,
        status="partial" if partial else "complete",
        command=list(request.command),
        manifest=manifest_facts(view),
        checkpoints=parts.checkpoints,
        settings=parts.settings,
        guards=parts.guards,
        tables=matching(view),
        evidence=parts.evidence,
        timing=parts.timing,
    )
    keep_if_replaced(folder, before, report)
    evidence = {name: result.evidence for name, result in parts.results.items()}
    sums = report.evidence | write_evidence(folder, evidence)
    write_report(
        report.model_copy(update={"evidence": sums, "files": score_files(sums)}),
        folder,
        # The report itself is always written: all else is rendered from it.
        formats=("json", *request.formats) if request.formats else (),
        manifest=job.view,
        show_text=request.show_text,
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
