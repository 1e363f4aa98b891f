"""Conclude again from a report's evidence, and compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from spark_audit.audits.setup_guards import REMAINS
from spark_audit.audits.trained_rows import TRAINED_ROWS_FIT
from spark_audit.errors import SparkError
from spark_audit.names import entry_of, series_of
from spark_audit.pipeline.compare import LEFT_OUT, concluded
from spark_audit.pipeline.verification.checked import Checked, does_not_follow, is_same
from spark_audit.report.assemble import MATCHING_TABLES, assemble, results_of
from spark_audit.results import AuditResult, Finding, Guard, Report, Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import OF_REPORT

Record: TypeAlias = Mapping[str, object]
"""A row, a finding or a guard, as plain values."""


def conclusions(report: Report, evidence: Mapping[str, Evidence]) -> Iterator[Checked]:
    """Yield what the report says otherwise than its evidence, by audit and part."""
    results: dict[str, AuditResult] = {}
    problems: dict[str, str] = {}
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
        # Claims are corrected over all audits: without one of them none can be made.
        for audit, problem in problems.items():
            yield f"conclusions of {audit}", problem
        return

    # Put a report together from these results, and compare it part by part.
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
        yield f"conclusions of {name}", does_not_follow(differing)

    guards = _differing_guards(concluded_report, report)
    yield "checks", does_not_follow(guards)
    settings = _differing_settings(concluded_report, results, report)
    yield "settings", does_not_follow(settings)
    yield "tables", does_not_follow(_foreign_tables(concluded_report, report))
    yield "checkpoints", does_not_follow(_foreign_checkpoints(report, evidence))


def _audits(report: Report, evidence: Mapping[str, Evidence]) -> list[str]:
    """Return the audits that a report tells of, or that left evidence, once each."""
    rows = (*report.results, *report.contrasts, *report.findings)
    audits = [row.audit for row in rows]
    return list(dict.fromkeys([*audits, *evidence]))


def is_setup(guard: Guard) -> bool:
    """Return whether a guard rests on scores of tokens, or on compared reports."""
    return guard.name in (*REMAINS, TRAINED_ROWS_FIT, LEFT_OUT)


def _without_evidence(report: Report, audit: str) -> AuditResult:
    """Return the rows and findings of an audit that need no evidence.

    They say that there is nothing: no figure, or "not tested".
    """
    reported = results_of(report, [audit])[audit]
    rows = [row for row in reported.rows if row.value is None]
    findings = []
    for finding in reported.findings:
        if finding.claim == "not_tested":
            findings.append(finding)
    return AuditResult(rows=rows, findings=findings)


def _parts_of(report: Report, audit: str) -> dict[str, object]:
    """Return the figures, findings and tables of an audit, as plain values by name."""
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
    """Name the parts of an audit that differ.

    That a checkpoint was not scored is in no evidence: rows without a figure may stand
    beside those that follow, of checkpoints that have no other rows.
    """
    scored = {row["checkpoint"] for row in concluded["results"]}
    rows = []
    for row in reported["results"]:
        if row["checkpoint"] in scored or row["value"] is not None:
            rows.append(row)
    compared = {**reported, "results": rows}

    differing = []
    for name in dict.fromkeys([*concluded, *compared]):
        # Where either lacks a part the two differ: None is never [None].
        if not is_same(concluded.get(name), compared.get(name, [None])):
            differing.append(name)
    return differing


def _differing_guards(concluded_report: Report, report: Report) -> list[str]:
    """Name the checks that the evidence gives otherwise, and those that it lacks."""
    concluded_guards = _guards_by_name(concluded_report)
    reported_guards = _guards_by_name(report)

    # A key is the name of a guard and its checkpoint.
    differing = {name for name, _ in concluded_guards.keys() ^ reported_guards.keys()}
    for key in concluded_guards.keys() & reported_guards.keys():
        for reported in reported_guards[key]:
            if not any(is_same(guard, reported) for guard in concluded_guards[key]):
                differing.add(key[0])
    return sorted(differing)


def _guards_by_name(
    report: Report,
) -> dict[tuple[str, str], list[Mapping[str, object]]]:
    """Return the guards of a report by name and checkpoint, as plain values."""
    guards: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for guard in report.guards:
        key = (guard.name, guard.checkpoint)
        guards.setdefault(key, []).append(guard.model_dump())
    return guards


def _differing_settings(
    concluded_report: Report, results: Mapping[str, AuditResult], report: Report
) -> list[str]:
    """Name the settings that the conclusions have otherwise, such as how many tests."""
    differing = []
    for name, value in concluded_report.settings.items():
        if not is_same(value, report.settings.get(name)):
            differing.append(name)

    # Settings that an audit says itself; a report need not have them.
    for audit, result in results.items():
        for key, value in result.settings.items():
            name = f"{audit}.{key}"
            if name in report.settings and not is_same(value, report.settings[name]):
                differing.append(name)
    return differing


def _foreign_tables(concluded_report: Report, report: Report) -> list[str]:
    """Name the tables that no audit with evidence makes."""
    expected = {*concluded_report.tables, *MATCHING_TABLES}
    foreign = []
    for name in report.tables:
        if name not in expected:
            foreign.append(name)

    # Tables that are said to be another audit's.
    origins = concluded_report.origins | dict.fromkeys(MATCHING_TABLES, "manifest")
    for name, audit in report.origins.items():
        if origins.get(name) != audit:
            foreign.append(name)
    return list(dict.fromkeys(foreign))


def _foreign_checkpoints(report: Report, evidence: Mapping[str, Evidence]) -> list[str]:
    """Name the checkpoints of the evidence that the report does not have.

    A series stands for its stages, a method for its seeds.
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
