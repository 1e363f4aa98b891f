"""Compare a report's counts with its evidence and with a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_audit.audits import Matched
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.verification.checked import (
    Checked,
    difference_message,
    is_same,
)
from spark_audit.report.assemble import MATCHING_TABLES, matching
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence

MANIFEST_FACTS = ("name", "digest", "n_sources", "n_clusters", "n_spans", "n_tokens")
"""Facts of a manifest that its reports repeat."""


def count_checks(report: Report, evidence: Mapping[str, Evidence]) -> Iterator[Checked]:
    """Yield which counts of identifiers are not those of ``matched``'s evidence."""
    if Matched.name not in evidence:
        return

    units = evidence[Matched.name].units
    identifiers = units[units["role"] == "pii"]
    trained = identifiers[identifiers["split"] == "train"]
    counts = {
        "n_spans": len(trained),
        "n_clusters": trained["cluster"].nunique(),
        "n_tokens": int(trained["n_tokens"].sum()),
    }
    differing = []
    for name, count in counts.items():
        if getattr(report.manifest, name) != count:
            differing.append(name)

    records = report.tables.get("matching_by_type")
    if records:
        n_matched_by_type = identifiers["type"].value_counts().to_dict()
        reported_by_type = {record["type"]: record["matched"] for record in records}
        # A type without any match has a row in the table, but no evidence.
        with_match = {name: count for name, count in reported_by_type.items() if count}
        if with_match != n_matched_by_type:
            differing.append("matching_by_type")
    yield "counts", difference_message(differing)


def manifest_checks(report: Report, manifest: Manifest) -> Iterator[Checked]:
    """Yield which facts, tables and settings of a report are not a manifest's."""
    from spark_audit.pipeline.conclude import manifest_facts

    # Compare the facts and tables that a report takes over from its manifest.
    expected = manifest_facts(manifest)
    differing = []
    for name in MANIFEST_FACTS:
        if getattr(expected, name) != getattr(report.manifest, name):
            differing.append(name)
    tables = matching(manifest)
    for name in MATCHING_TABLES:
        if name in report.tables and not is_same(tables[name], report.tables[name]):
            differing.append(name)

    if report.settings.get("limit") is not None:
        # With --limit only some rows were audited, and the report counts these alone.
        differing = [name for name in differing if name in ("name", "digest")]

    declared = {
        "caliper": manifest.settings.caliper,
        "reference": manifest.reference.name,
    }
    for name, value in declared.items():
        # A report may omit a setting, but not change it.
        if not is_same(report.settings.get(name, value), value):
            differing.append(name)

    problem = ""
    if differing:
        problem = f"is not that of the report: {', '.join(differing)}"
    yield "manifest", problem
