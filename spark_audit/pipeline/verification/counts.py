"""Whether the counts of a report are those of its evidence, and of a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_audit.audits import Matched
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.verification.checked import Checked, does_not_follow, is_same
from spark_audit.report.assemble import MATCHING_TABLES, matching
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence


def counts_of_evidence(
    report: Report, evidence: Mapping[str, Evidence]
) -> Iterator[Checked]:
    """Yield whether as many identifiers are counted as ``matched`` read."""
    if Matched.name not in evidence:
        return
    units = evidence[Matched.name].units
    pairs = units[units["role"] == "pii"]
    trained = pairs[pairs["split"] == "train"]
    counted = {
        "n_spans": len(trained),
        "n_clusters": trained["cluster"].nunique(),
        "n_tokens": int(trained["n_tokens"].sum()),
    }
    wrong = [
        name
        for name, count in counted.items()
        if getattr(report.manifest, name) != count
    ]
    if records := report.tables.get("matching_by_type"):
        matched = pairs["type"].value_counts().to_dict()
        told = {record["type"]: record["matched"] for record in records}
        if {k: n for k, n in told.items() if n} != matched:
            wrong.append("matching_by_type")
    yield "counts", does_not_follow(wrong)


def agreement_with_manifest(report: Report, manifest: Manifest) -> Iterator[Checked]:
    """Yield whether a report is of a manifest: by digest, counts and settings."""
    from spark_audit.pipeline.conclude import manifest_facts

    counts = ("name", "digest", "n_sources", "n_clusters", "n_spans", "n_tokens")
    ours = manifest_facts(manifest)
    wrong = [
        name for name in counts if getattr(ours, name) != getattr(report.manifest, name)
    ]
    tables = matching(manifest)
    wrong += [
        name
        for name in MATCHING_TABLES
        if name in report.tables and not is_same(tables[name], report.tables[name])
    ]
    if report.settings.get("limit") is not None:
        # A part of the rows was audited: its counts are those of the part.
        wrong = [name for name in wrong if name in ("name", "digest")]
    declared = {
        "caliper": manifest.settings.caliper,
        "reference": manifest.reference.name,
    }
    wrong += [
        name
        for name, value in declared.items()
        if not is_same(report.settings.get(name, value), value)
    ]
    said = f"is not that of the report: {', '.join(wrong)}" if wrong else ""
    yield "manifest", said
