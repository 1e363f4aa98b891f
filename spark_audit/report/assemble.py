"""Assemble a report from the results of several audits: run, comparison or merge.

A conclusion that needs several audits is drawn in :func:`assemble`, and nowhere else.
:func:`results_of` is the way back, so that a report can be joined with another one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from spark_audit.audits.claims import TESTS_SETTING, at_level, corrected, family
from spark_audit.audits.setup_guards import consistent, faults, without_void
from spark_audit.audits.trained_rows import without_answered
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import now, versions
from spark_audit.report.audit_report import AuditReport
from spark_audit.report.figures_line import with_figures
from spark_audit.report.memory_tests import untested
from spark_audit.report.training_table import training_tables
from spark_audit.report.void_rows import with_states
from spark_audit.results import (
    AuditResult,
    CheckpointFacts,
    Contrast,
    Finding,
    Guard,
    ManifestFacts,
    Report,
    Row,
    by_severity,
)
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.report import ReportStatus

Records: TypeAlias = list[TableRecord]
"""A further table."""

MATCHING_TABLES = ("matching_by_type", "balance")
"""Tables of the manifest's own matching, which no audit makes."""


def matching(manifest: Manifest) -> dict[str, Records]:
    """Return the tables on a manifest's matching, for every report made with it."""
    n_matched = Counter(pair.pii.type for pair in manifest.pairs)
    unmatched_by_type: dict[str, Counter[str]] = defaultdict(Counter)
    for span in manifest.unmatched:
        unmatched_by_type[span.type][span.reason] += 1

    by_type: Records = []
    for type_name in sorted({*n_matched, *unmatched_by_type}):
        unmatched = unmatched_by_type[type_name]
        reasons = [f"{count} {reason}" for reason, count in sorted(unmatched.items())]
        by_type.append(
            {
                "type": type_name,
                "matched": n_matched[type_name],
                "unmatched": unmatched.total(),
                "reasons": "; ".join(reasons),
            }
        )

    balance = [row.model_dump() for row in manifest.balance]
    return {"matching_by_type": by_type, "balance": balance}


def assemble(
    results: Mapping[str, AuditResult],
    *,
    status: ReportStatus,
    command: Sequence[str],
    manifest: ManifestFacts,
    checkpoints: Sequence[CheckpointFacts],
    settings: Mapping[str, Any] | None = None,
    guards: Iterable[Guard] = (),
    tables: Mapping[str, Records] | None = None,
    evidence: Mapping[str, str] | None = None,
    timing: Mapping[str, float] | None = None,
) -> AuditReport:
    """Return one report from the results of audits, in the given order.

    This function draws the conclusions over several audits: it corrects p over all
    primary findings, and failed guards void claims.

    Parameters
    ----------
    status, command, manifest, checkpoints, settings, evidence, timing
        Fields of :class:`Report`. Its date is now, its versions are those installed.
    guards, tables
        Guards and tables that belong to no audit. These guards come before those of
        audits. The table on training follows from the checkpoints. A table of an audit
        replaces one of the same name.
    """
    rows: list[Row] = []
    contrasts: list[Contrast] = []
    findings_of_audits: list[Finding] = []
    all_guards = list(guards)
    all_tables = {**(tables or {}), **training_tables(checkpoints)}
    origins = {name: "manifest" for name in MATCHING_TABLES if name in all_tables}
    for audit, result in results.items():
        rows += result.results
        contrasts += result.contrasts
        findings_of_audits += result.findings
        all_guards += result.guards
        all_tables |= result.tables
        origins |= dict.fromkeys(result.tables, audit)

    # Correct p first, so that void tests still count in the correction.
    all_guards = consistent(all_guards)
    findings = without_void(corrected(findings_of_audits), all_guards)
    # A checkpoint with a failed setup gets no question.
    void_checkpoints = [
        guard.checkpoint for guard in all_guards if faults(all_guards, guard.checkpoint)
    ]
    all_guards = without_answered(all_guards, findings, void=void_checkpoints)
    findings += untested(
        findings,
        [facts.name for facts in checkpoints],
        is_of_text=all(facts.is_endpoint for facts in checkpoints),
    )

    # Readers must know the number of tests in the correction.
    report_settings = dict(settings or {})
    report_settings[TESTS_SETTING] = len(family(findings))
    report = Report(
        status=status,
        command=list(command),
        created=now(),
        versions=versions(),
        settings=report_settings,
        manifest=manifest,
        checkpoints=list(checkpoints),
        findings=by_severity(findings),
        results=at_level(rows, findings),
        contrasts=at_level(contrasts, findings),
        guards=all_guards,
        tables=all_tables,
        origins=origins,
        evidence=dict(evidence or {}),
        timing=dict(timing or {}),
    )
    # Lines of figures come last, since void figures lose their limit before.
    return AuditReport.of(with_figures(with_states(report)))


def results_of(report: Report, audits: Iterable[str]) -> dict[str, AuditResult]:
    """Split a report into the results of its audits, by audit."""
    results = {}
    for audit in audits:
        # A report may name the origin of a table that was left out of it.
        tables = {}
        for name, origin in report.origins.items():
            if origin == audit and name in report.tables:
                tables[name] = report.tables[name]

        results[audit] = AuditResult(
            results=[row for row in report.results if row.audit == audit],
            contrasts=[row for row in report.contrasts if row.audit == audit],
            findings=[finding for finding in report.findings if finding.audit == audit],
            tables=tables,
        )
    return results
