"""Conclude from complete scores, and write the report folder.

This is the last step of a run: every audit reads its tables from the store, and what
they conclude is joined with the audits that the folder's old report has.

:func:`conclude` is called by ``run.py`` once every score is stored. Statistics are in
the audits, conclusions over several audits in ``report/assemble.py``. A further part of
a report is a field of ``joined.ReportParts`` (if an old report may add to it) and an
argument of ``assemble``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from spark_audit.audits import about
from spark_audit.audits.base import Tables, baselines_of, originals
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.setup_guards import setup_guards
from spark_audit.checkpoints.given import NOT_HASHED
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
from spark_audit.scoring.store import StoredScores

STATISTICS = "statistics, audits"
"""Name of the activity after scoring, in the progress that a terminal shows."""


def conclude(job: Job, checkpoint_jobs: Sequence[CheckpointJob]) -> AuditReport:
    """Conclude from the stored scores, which are complete, and write the report.

    Returns
    -------
    AuditReport
        The report as it was written.
    """
    request = job.request
    folder = job.folder
    tables = _tables(job, checkpoint_jobs)

    # Another command may have written a report to this folder during scoring.
    old_report = folders.check_folder(folder, job.manifest, job.lineup.specs, request)

    # Conclude, and add the audits that only the folder's old report has.
    results = _results(job, checkpoint_jobs, tables)
    guards = _setup_guards(job, checkpoint_jobs, tables)
    parts = joined.ReportParts(
        results=results,
        checkpoints=[checkpoint_job.facts for checkpoint_job in checkpoint_jobs],
        settings=_settings(job, results),
        guards=guards,
        timing={kind: round(seconds, 3) for kind, seconds in job.clock.items()},
    )
    # From a report on other models of the same names nothing is taken over.
    if old_report is not None and not other_models(old_report, parts.checkpoints):
        with at(str(folder)):
            parts = joined.joined(old_report, parts)

    is_partial = len(job.view.examples) < len(job.manifest.examples)
    report = assemble(
        parts.results,
        status="partial" if is_partial else "complete",
        command=list(request.command),
        manifest=manifest_facts(job.view),
        checkpoints=parts.checkpoints,
        settings=parts.settings,
        guards=parts.guards,
        tables=matching(job.view),
        evidence=parts.evidence,
        timing=parts.timing,
    )

    # Evidence is written first, because the report contains its checksums.
    keep_if_replaced(folder, old_report, report)
    # The evidence of audits that were taken over lies in the folder already.
    evidence = {name: result.evidence for name, result in parts.results.items()}
    checksums = report.evidence | write_evidence(folder, evidence)
    report = report.model_copy(
        update={"evidence": checksums, "files": score_files(checksums)}
    )
    write_report(
        report,
        folder,
        # report.json is always written, as all other files are rendered from it.
        formats=("json", *request.formats) if request.formats else (),
        manifest=job.view,
        show_text=request.show_text,
    )
    # What was written names its rendered files, which `report` does not.
    return read_report(folder)


def write_evidence(
    folder: Path, evidence: Mapping[str, Evidence | None]
) -> dict[str, str]:
    """Write the evidence of audits; return the checksum of each file.

    Parameters
    ----------
    folder
        The folder of the report.
    evidence
        Name of an audit -> the tables from which it concludes; ``None``: it has none.

    Returns
    -------
    dict
        Name of a file -> its SHA-256.
    """
    checksums: dict[str, str] = {}
    for audit_name, audit_evidence in evidence.items():
        if audit_evidence is None or not len(audit_evidence):
            continue
        path = folder / "scores" / about(audit_name).evidence_file()
        audit_evidence.write(path)
        checksums[path.name] = sha256_file(path)
    return checksums


def score_files(evidence: Iterable[str]) -> dict[str, list[str]]:
    """Return the evidence files as ``report.json`` lists them in its ``files``.

    Parameters
    ----------
    evidence
        Names of the files.
    """
    return {"scores": sorted(f"scores/{name}" for name in evidence)}


def _tables(
    job: Job, checkpoint_jobs: Sequence[CheckpointJob]
) -> dict[str, StoredScores]:
    """Return the stored scores of each checkpoint, by its name."""
    tables = {}
    for checkpoint_job in checkpoint_jobs:
        facts = checkpoint_job.facts
        tables[facts.name] = StoredScores(
            job.store,
            checkpoint_job.items_by_pass,
            served=facts.format == "server",
        )
    return tables


def _settings(job: Job, results: Mapping[str, AuditResult]) -> dict[str, object]:
    """Return the settings shared by all audits, and those of each as ``AUDIT.KEY``."""
    settings = job.request.shared_settings(job.manifest)
    settings["caliper"] = job.manifest.settings.caliper
    settings["reference"] = job.manifest.reference.name
    for audit_name, result in results.items():
        for key, value in result.settings.items():
            settings[f"{audit_name}.{key}"] = value
    return settings


def _results(
    job: Job, checkpoint_jobs: Sequence[CheckpointJob], tables: Tables
) -> dict[str, AuditResult]:
    """Return the result of each audit, by its name.

    An audit only gets the tables of checkpoints that it looks at, and of stages if it
    reads these.
    """
    request = job.request
    n_audits = len(request.audits)
    # A rounded checkpoint is compared with the one that it was made of.
    baselines_of_copies = originals(
        checkpoint_job.facts for checkpoint_job in checkpoint_jobs
    )

    results: dict[str, AuditResult] = {}
    for n_done, audit in enumerate(request.audits):
        job.show(STATISTICS, n_done, n_audits)
        with job.clock(f"statistics: {audit.name}"):
            visible_tables = {}
            for name, scores in tables.items():
                is_read_stage = audit.reads_stages and name in job.lineup.stages
                if job.lineup.sees(name, audit) or is_read_stage:
                    visible_tables[name] = scores

            # A series is compared with a series, each under its own name.
            names = dict.fromkeys(job.lineup.entry(name) for name in visible_tables)
            baselines = baselines_of(request.baseline, names) | baselines_of_copies

            result = audit(
                visible_tables,
                job.view,
                baseline=baselines,
                preset=request.preset,
                seed=request.seed,
            )
            results[audit.name] = with_entries(result)
    job.show(STATISTICS, n_audits, n_audits)
    return results


def _setup_guards(
    job: Job, checkpoint_jobs: Sequence[CheckpointJob], tables: Tables
) -> list[Guard]:
    """Return the guards of the setup that fail; of a series the last stage is checked.

    Parameters
    ----------
    tables
        Name of a checkpoint -> its stored scores. Stages come in the order of training.
    """
    stages = job.lineup.stages

    # Name in the report -> name of the checkpoint whose scores the guards look at. Of a
    # series, whose stages come in order, the last stage overwrites those before.
    scored_names: dict[str, str] = {}
    for name in tables:
        if name in stages:
            scored_names[job.lineup.entry(name)] = name
    for name in tables:
        if name not in stages and name != RELEARNED_BASE:
            scored_names[name] = name

    # Name -> SHA-256 of its weights, so that guards find checkpoints that are equal.
    weights = {BASE: job.manifest.reference.weights_sha256}
    for checkpoint_job in checkpoint_jobs:
        facts = checkpoint_job.facts
        # A rounded or relearned checkpoint has the hash of its original.
        is_derived = facts.quantised_from or facts.relearned_from
        if not is_derived and facts.weights_sha256 != NOT_HASHED:
            weights[facts.name] = facts.weights_sha256

    # Nobody expects a checkpoint to fit rows that it should have forgotten.
    rows_to_forget = frozenset[str]()
    for audit in job.request.audits:
        rows_to_forget |= audit.rows_to_forget(job.view)

    with job.clock("statistics: setup"):
        return setup_guards(
            tables,
            job.view,
            names=scored_names,
            weights=weights,
            rows_to_forget=rows_to_forget,
        )


def manifest_facts(manifest: Manifest) -> ManifestFacts:
    """Return a report's facts of the manifest, or of its audited part.

    The key is new for each report; shared files key their digests by it.
    """
    sources = set[str]()
    clusters = set[str]()
    n_spans = 0
    n_tokens = 0
    for pair in manifest.pairs:
        example = manifest.by_id[pair.example]
        # Held-out identifiers are controls; a report counts trained ones.
        if example.split != "train":
            continue
        sources.add(example.source_id)
        clusters.add(example.cluster)
        n_spans += 1
        n_tokens += pair.pii.token_end - pair.pii.token_start

    return ManifestFacts(
        name=manifest.name,
        digest=manifest.digest,
        key=secrets.token_hex(16),
        n_sources=len(sources),
        n_clusters=len(clusters),
        n_spans=n_spans,
        n_tokens=n_tokens,
    )
