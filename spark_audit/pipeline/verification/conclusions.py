"""Whether what a report concludes is what its evidence gives."""

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
    audits = dict.fromkeys(
        one.audit for one in (*report.results, *report.contrasts, *report.findings)
    )
    results: dict[str, AuditResult] = {}
    wrong: dict[str, str] = {}
    for audit in dict.fromkeys([*audits, *evidence]):
        if audit in evidence:
            try:
                results[audit] = concluded(
                    audit, evidence[audit], report.settings, report.checkpoints
                )
            except SparkError as error:
                wrong[audit] = error.what
        elif audit != OF_REPORT:
            results[audit] = _without_evidence(report, audit)
    if wrong:
        # Claims are corrected over all audits: without one of them none can be told.
        yield from ((f"conclusions of {audit}", what) for audit, what in wrong.items())
        return

    setup = [one for one in report.guards if is_setup(one)]
    made = assemble(
        results,
        guards=setup,
        status=report.status,
        command=report.command,
        manifest=report.manifest,
        checkpoints=report.checkpoints,
        settings=report.settings,
    )
    for audit in [*results, OF_REPORT]:
        differing = _differing(_said(made, audit), _said(report, audit))
        name = "the whole" if audit == OF_REPORT else audit
        yield f"conclusions of {name}", does_not_follow(differing)
    yield "checks", does_not_follow(_differing_guards(made, report))
    yield "settings", does_not_follow(_differing_settings(made, results, report))
    yield "tables", does_not_follow(_foreign_tables(made, report))
    yield "checkpoints", does_not_follow(_foreign_checkpoints(report, evidence))


def is_setup(guard: Guard) -> bool:
    """Whether a guard rests on scores of tokens, or on reports that were compared."""
    return guard.name in (*REMAINS, TRAINED_ROWS_FIT, LEFT_OUT)


def _without_evidence(report: Report, audit: str) -> AuditResult:
    """Return what may be said of an audit without evidence: that there is nothing."""
    said = results_of(report, [audit])[audit]
    rows = [row for row in said.rows if row.value is None]
    findings = [one for one in said.findings if one.claim == "not_tested"]
    return AuditResult(rows=rows, findings=findings)


def _said(report: Report, audit: str) -> dict[str, Any]:
    """Return what a report has of an audit: figures, findings and tables."""
    parts: dict[str, Any] = {}
    for name in ("results", "contrasts", "findings"):
        rows: Sequence[Row | Finding] = getattr(report, name)
        parts[name] = [row.model_dump() for row in rows if row.audit == audit]
    for name, origin in report.origins.items():
        if origin == audit:
            parts[f"table {name}"] = report.tables.get(name)
    return parts


def _differing(made: Mapping[str, Any], said: Mapping[str, Any]) -> list[str]:
    """Name the parts of an audit that differ.

    That a checkpoint was not scored is in no evidence: rows without a figure may stand
    beside those that follow, of checkpoints that have none else.
    """
    scored = {row["checkpoint"] for row in made["results"]}
    rows = [
        row
        for row in said["results"]
        if row["checkpoint"] in scored or row["value"] is not None
    ]
    compared = {**said, "results": rows}
    names = dict.fromkeys([*made, *compared])
    return [
        name
        for name in names
        if not is_same(made.get(name), compared.get(name, [None]))
    ]


def _differing_guards(made: Report, report: Report) -> list[str]:
    """Name the checks that the evidence gives otherwise, and those that it lacks."""
    ours = _guards_by_place(made)
    theirs = _guards_by_place(report)
    wrong = {name for name, _ in ours.keys() ^ theirs.keys()}
    for place in ours.keys() & theirs.keys():
        for said in theirs[place]:
            if not any(is_same(one, said) for one in ours[place]):
                wrong.add(place[0])
    return sorted(wrong)


def _guards_by_place(
    report: Report,
) -> dict[tuple[str, str], list[Mapping[str, object]]]:
    places: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for guard in report.guards:
        place = (guard.name, guard.checkpoint)
        places.setdefault(place, []).append(guard.model_dump())
    return places


def _differing_settings(
    made: Report, results: Mapping[str, AuditResult], report: Report
) -> list[str]:
    """Name the settings that the conclusions have otherwise, such as how many tests."""
    wrong = [
        name
        for name, value in made.settings.items()
        if not is_same(value, report.settings.get(name))
    ]
    for audit, result in results.items():
        for key, value in result.settings.items():
            name = f"{audit}.{key}"
            if name in report.settings and not is_same(value, report.settings[name]):
                wrong.append(name)
    return wrong


def _foreign_tables(made: Report, report: Report) -> list[str]:
    """Name the tables that no audit with evidence makes."""
    known = {*made.tables, *MATCHING_TABLES}
    foreign = [name for name in report.tables if name not in known]
    origins = made.origins | dict.fromkeys(MATCHING_TABLES, "manifest")
    misplaced = [
        name for name, audit in report.origins.items() if origins.get(name) != audit
    ]
    return list(dict.fromkeys([*foreign, *misplaced]))


def _foreign_checkpoints(report: Report, evidence: Mapping[str, Evidence]) -> list[str]:
    """Name the checkpoints of the evidence that the report does not have.

    A series stands for its stages, a method for its seeds.
    """
    known = {one.name for one in report.checkpoints}
    known |= {series_of(name) for name in known} | {entry_of(name) for name in known}
    scored = {name for one in evidence.values() for name in one.checkpoints}
    return sorted(
        name for name in scored if not {name, series_of(name), entry_of(name)} & known
    )
