"""From complete tables to the report folder."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_audit.audits import about
from spark_audit.audits.base import Tables
from spark_audit.audits.baselines import baselines_of, originals
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.setup_guards import setup_guards
from spark_audit.manifest.redaction import ids_identify
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.pipeline.folders import check_folder
from spark_audit.pipeline.job import Job, Scored
from spark_audit.pipeline.merge import accumulated, audits_of
from spark_audit.provenance import sha256_file
from spark_audit.report.assemble import assemble
from spark_audit.report.attachments import cases, cases_file, matching, write_cases
from spark_audit.report.folder import read_report, write_report
from spark_audit.results import (
    AuditResult,
    Guard,
    ManifestFacts,
    Report,
)
from spark_audit.scoring.served import ServedScores
from spark_audit.scoring.store import Scores

STATISTICS = "statistics, audits"
"""What is being done after scoring."""


def conclude(work: Job, folder: Path, scored: Sequence[Scored]) -> Report:
    """Conclude from what is stored, all of it, and write the folder."""
    request = work.request
    tables = {
        one.facts.name: (ServedScores if one.facts.format == "server" else Scores)(
            work.store, one.keys
        )
        for one in scored
    }
    # Another command may have finished here in the meantime.
    before = check_folder(folder, work.manifest, work.order, request)
    results = _results(work, scored, tables)
    return _written(work, folder, scored, tables, before, results)


def _written(
    work: Job,
    folder: Path,
    scored: Sequence[Scored],
    tables: Mapping[str, Scores],
    before: Report | None,
    results: Mapping[str, AuditResult],
) -> Report:
    """Write what the audits concluded."""
    request = work.request
    written: set[Path] = set()
    shown = cases(work.view, work.places, tables)
    report = _report(work, scored, results, tables)
    adds = False
    if before is not None:
        report = accumulated(before, report, folder=folder)
        adds = bool(set(audits_of(report)) - set(request.audit_names))
        if adds:
            kept = [
                f"scores/{about(audit).evidence_file()}" for audit in audits_of(report)
            ]
            written.update(filter(Path.exists, (folder / name for name in kept)))
    if shown or not adds:
        write_cases(folder, shown)
    written |= {cases_file(folder), cases_file(folder).with_suffix(".csv")}
    sums = dict(report.evidence)
    for name, result in results.items():
        if result.evidence is not None and len(result.evidence):
            path = folder / "scores" / about(name).evidence_file()
            result.evidence.write(path)
            written.add(path)
            sums[path.name] = sha256_file(path)
    names = sorted(path.relative_to(folder).as_posix() for path in written)
    write_report(
        report.model_copy(update={"evidence": sums, "files": {"scores": names}}),
        folder,
        # The report itself is always written: all else is rendered from it.
        formats=("json", *request.formats) if request.formats else (),
        manifest=work.view,
        show_text=request.show_text,
        language=request.language,
    )
    return read_report(folder)  # it knows now what stands beside it


def _results(
    work: Job, scored: Sequence[Scored], tables: Tables
) -> dict[str, AuditResult]:
    """What each audit concludes."""
    results: dict[str, AuditResult] = {}
    facts = [one.facts for one in scored]
    request, audits = work.request, work.request.audits
    for count, audit in enumerate(audits):
        work.show(STATISTICS, count, len(audits))
        with work.clock(f"statistics: {audit.name}"):
            seen = {k: own for k, own in tables.items() if work.order.sees(k, audit)}
            # A series is held against a series, by their own names.
            names = dict.fromkeys(map(work.order.entry, seen))
            baseline = baselines_of(request.baseline, names) | originals(facts)
            results[audit.name] = with_entries(
                audit.run(
                    seen,
                    work.view,
                    baseline=baseline,
                    preset=request.preset,
                    seed=request.seed,
                )
            )
    work.show(STATISTICS, len(audits), len(audits))
    return results


def _report(
    work: Job,
    scored: Sequence[Scored],
    results: Mapping[str, AuditResult],
    tables: Tables,
) -> Report:
    request, manifest, view = work.request, work.manifest, work.view
    partial = len(view.examples) < len(manifest.examples)
    return assemble(
        results,
        status="partial" if partial else "complete",
        command=list(request.command),
        settings={
            "preset": request.preset or manifest.settings.preset,
            "seed": request.seed,
            "baseline": request.baseline,
            "limit": request.limit,
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
        guards=_setup(work, scored, tables),
        tables=matching(view),
        timing={k: round(seconds, 3) for k, seconds in work.clock.items()},
    )


def _setup(work: Job, scored: Sequence[Scored], tables: Tables) -> list[Guard]:
    """The setup guards that fail, of a series by its last stage."""
    stages = work.order.stages
    names = {work.order.entry(name): name for name in tables if name in stages}
    names |= {name: name for name in tables if name not in stages}
    weights = {BASE: work.manifest.reference.weights_sha256}
    for one in (one.facts for one in scored):
        # Rounded weights bear the hash of those that they were rounded from.
        if one.quantised_from is None and one.format != "live":
            weights[one.name] = one.weights_sha256
    with work.clock("statistics: setup"):
        return setup_guards(tables, work.view, names=names, weights=weights)


def manifest_facts(manifest: Manifest) -> ManifestFacts:
    """What a report says of the manifest, or of the part of it that was audited."""
    by_id = manifest.by_id
    sources, clusters, spans, tokens = set[str](), set[str](), 0, 0
    for pair in manifest.pairs:
        example = by_id[pair.example]
        if example.split == "train":
            sources.add(example.source_id)
            clusters.add(example.cluster)
            spans += 1
            tokens += pair.pii.token_end - pair.pii.token_start
    return ManifestFacts(
        name=manifest.name,
        digest=manifest.digest,
        key=secrets.token_hex(16),
        ids_identify=ids_identify(manifest),
        n_sources=len(sources),
        n_clusters=len(clusters),
        n_spans=spans,
        n_tokens=tokens,
    )
