"""Conclude again from a report's evidence, and compare the report with the result.

"Concluded" is what follows from the evidence now, "reported" what the report states.
``verify.py`` calls :func:`conclusion_checks`. A further part of a report that follows
from evidence is compared there: one ``yield`` with the names of what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from spark_audit.audits.setup_guards import REMAINS
from spark_audit.audits.trained_rows import TRAINED_ROWS_FIT
from spark_audit.errors import SparkError
from spark_audit.names import entry_of, series_of
from spark_audit.pipeline.compare import LEFT_OUT, concluded
from spark_audit.pipeline.verification.checked import (
    Checked,
    difference_message,
    is_same,
)
from spark_audit.report.assemble import MATCHING_TABLES, assemble, results_of
from spark_audit.report.training_table import is_training_table
from spark_audit.results import AuditResult, Finding, Guard, Report, Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import OF_REPORT

Record: TypeAlias = Mapping[str, object]
"""A row, a finding or a guard, as its fields and their plain values."""


def conclusion_checks(
    report: Report, evidence: Mapping[str, Evidence]
) -> Iterator[Checked]:
    """Yield, for each audit and for the whole, what the report states otherwise.

    The problem names the parts that differ; it is empty where none does.
    """
    results: dict[str, AuditResult] = {}
    problems: dict[str, str] = {}  # audit -> why nothing can be concluded
    for audit in _audits(report, evidence):
        if audit in evidence:
            try:
                results[audit] = concluded(
                    audit, evidence[audit], report.settings, report.checkpoints
                )
            except SparkError as error:
                problems[audit] = error.what
        elif audit != OF_REPORT:
            results[audit] = _without_evidence(report, audit)

    if problems:
        # Claims are corrected over all audits, so a missing audit makes them
        # impossible.
        for audit, problem in problems.items():
            yield f"conclusions of {audit}", problem
        return

    # Assemble a report from these results, and compare it part by part.
    concluded_report = assemble(
        results,
        guards=[guard for guard in report.guards if is_setup(guard)],
        status=report.status,
        command=report.command,
        manifest=report.manifest,
        checkpoints=report.checkpoints,
        settings=report.settings,
    )
    for audit in [*results, OF_REPORT]:
        differing = _differing(
            _parts_of(concluded_report, audit), _parts_of(report, audit)
        )
        name = "the whole" if audit == OF_REPORT else audit
        yield f"conclusions of {name}", difference_message(differing)

    guards = _differing_guards(concluded_report, report)
    yield "checks", difference_message(guards)
    settings = _differing_settings(concluded_report, results, report)
    yield "settings", difference_message(settings)
    yield "tables", difference_message(_foreign_tables(concluded_report, report))
    yield "checkpoints", difference_message(_foreign_checkpoints(report, evidence))


def _audits(report: Report, evidence: Mapping[str, Evidence]) -> list[str]:
    """Return the audits that a report has rows of, or that left evidence, once each."""
    rows = (*report.results, *report.contrasts, *report.findings)
    audits = [row.audit for row in rows]
    return list(dict.fromkeys([*audits, *evidence]))


def is_setup(guard: Guard) -> bool:
    """Return whether a guard is taken over from the report as it is.

    These guards rest on scores of tokens, or on compared reports, and evidence holds
    neither.
    """
    return guard.name in (*REMAINS, TRAINED_ROWS_FIT, LEFT_OUT)


def _without_evidence(report: Report, audit: str) -> AuditResult:
    """Return the rows without a figure, and the findings "not tested", of an audit.

    They need no evidence, and all else that the report states of this audit will
    differ from this result.
    """
    reported = results_of(report, [audit])[audit]
    rows = [row for row in reported.results if row.value is None]
    findings = []
    for finding in reported.findings:
        if finding.claim == "not_tested":
            findings.append(finding)
    return AuditResult(results=rows, findings=findings)


def _parts_of(report: Report, audit: str) -> dict[str, object]:
    """Return an audit's figures, findings and tables as plain values, by name."""
    rows_by_part: dict[str, Sequence[Row | Finding]] = {
        "results": report.results,
        "contrasts": report.contrasts,
        "findings": report.findings,
    }
    parts: dict[str, object] = {}
    for name, rows in rows_by_part.items():
        parts[name] = [row.model_dump() for row in rows if row.audit == audit]

    for name, origin in report.origins.items():
        if origin == audit:
            parts[f"table {name}"] = report.tables.get(name)
    return parts


def _differing(concluded: Mapping[str, Any], reported: Mapping[str, Any]) -> list[str]:
    """Name the parts of an audit (results, findings ...) that differ.

    Evidence does not show that a checkpoint was not scored. So a report may have rows
    without a figure for checkpoints of which nothing was concluded.

    Parameters
    ----------
    concluded, reported
        Name of a part -> its records, as :func:`_parts_of` returns them.
    """
    concluded_checkpoints = {row["checkpoint"] for row in concluded["results"]}
    rows = []
    for row in reported["results"]:
        if row["checkpoint"] in concluded_checkpoints or row["value"] is not None:
            rows.append(row)
    compared = {**reported, "results": rows}

    differing = []
    for name in dict.fromkeys([*concluded, *compared]):
        is_reported = name in compared
        if not is_reported or not is_same(concluded.get(name), compared[name]):
            differing.append(name)
    return differing


def _differing_guards(concluded_report: Report, report: Report) -> list[str]:
    """Name the guards that only one of both reports has, or that differ."""
    concluded_guards = _guards_by_name(concluded_report)
    reported_guards = _guards_by_name(report)

    only_in_one = concluded_guards.keys() ^ reported_guards.keys()
    differing = {name for name, _ in only_in_one}
    for name, checkpoint in concluded_guards.keys() & reported_guards.keys():
        concluded = concluded_guards[name, checkpoint]
        for reported in reported_guards[name, checkpoint]:
            if not any(is_same(guard, reported) for guard in concluded):
                differing.add(name)
    return sorted(differing)


def _guards_by_name(
    report: Report,
) -> dict[tuple[str, str], list[Mapping[str, object]]]:
    """Return a report's guards as plain values, by name and checkpoint."""
    guards: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for guard in report.guards:
        key = (guard.name, guard.checkpoint)
        guards.setdefault(key, []).append(guard.model_dump())
    return guards


def _differing_settings(
    concluded_report: Report, results: Mapping[str, AuditResult], report: Report
) -> list[str]:
    """Name the settings, such as the number of tests, that conclusions state otherwise.

    Parameters
    ----------
    results
        Name of an audit -> its result, concluded again.
    """
    differing = []
    for name, value in concluded_report.settings.items():
        if not is_same(value, report.settings.get(name)):
            differing.append(name)

    # Settings that an audit states itself: a report may leave them out.
    for audit, result in results.items():
        for key, value in result.settings.items():
            name = f"{audit}.{key}"
            if name in report.settings and not is_same(value, report.settings[name]):
                differing.append(name)
    return differing


def _foreign_tables(concluded_report: Report, report: Report) -> list[str]:
    """Name the tables that no audit with evidence makes, or another than stated.

    The table on training follows from the report's own checkpoints.
    """
    expected = {*concluded_report.tables, *MATCHING_TABLES}
    foreign = []
    for name, records in report.tables.items():
        is_other_training = is_training_table(name, report) and not is_same(
            concluded_report.tables.get(name), records
        )
        if name not in expected or is_other_training:
            foreign.append(name)

    # Tables that the report ascribes to another audit than the one that makes them.
    origins = concluded_report.origins | dict.fromkeys(MATCHING_TABLES, "manifest")
    for name, audit in report.origins.items():
        if origins.get(name) != audit:
            foreign.append(name)
    return list(dict.fromkeys(foreign))


def _foreign_checkpoints(report: Report, evidence: Mapping[str, Evidence]) -> list[str]:
    """Return the names of checkpoints in the evidence that the report lacks.

    A series stands for its stages, and a method for its seeds.
    """
    names = set[str]()
    for facts in report.checkpoints:
        names |= {facts.name, series_of(facts.name), entry_of(facts.name)}

    foreign = set[str]()
    for audit_evidence in evidence.values():
        for name in audit_evidence.checkpoints:
            if not {name, series_of(name), entry_of(name)} & names:
                foreign.add(name)
    return sorted(foreign)
