"""How reports and records look in a terminal: tables on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_audit.audits import AUDITS
from spark_audit.report.cells import Table, records_table
from spark_audit.report.tables import NO_VERDICT, glance, tables
from spark_audit.results import Report, by_severity
from spark_audit.terminal.console import show_line, show_table, tell, tell_json


def show_report(report: Report) -> None:
    """Verdict, guards that did not pass, and tables; of many audits a table of all."""
    if not report.findings:
        show_line(NO_VERDICT)
    for finding in by_severity(report.findings):
        style = "bold" if finding.detected else None
        show_line(f"- {finding.audit}: {finding.sentence}", style=style)
    for guard in report.guards:
        if guard.passed is not True:
            word = "GUARD FAILED" if guard.passed is False else "warning"
            place = f" ({guard.checkpoint})" if guard.checkpoint else ""
            show_line(f"{word}: {guard.name}{place}: {guard.detail}")
    audits = {row.audit for row in report.results}
    first = glance(report)
    if len(audits) > 1 and first is not None:
        show_tables([first])
    else:
        wide = all(AUDITS.about(audit).wide for audit in audits)
        show_tables(tables(report, brief=not wide))


def show_tables(tables: Sequence[Table], *, figures: bool = True) -> None:
    """Tables one below the other, remarks under each; see :func:`show_table`."""
    for one in tables:
        lines = [line.texts for line in one.rows]
        show_table(one.title, one.header, lines, remarks=one.remarks, figures=figures)


def show_records(
    records: Sequence[Mapping[str, Any]], *, title: str, as_json: bool = False
) -> None:
    """Records of the same fields as a table, or as a JSON list."""
    if as_json:
        tell_json([dict(record) for record in records])
        return
    header = {key: key.replace("_", " ") for record in records for key in record}
    show_tables([records_table(records, title=title, header=header)])


def say_where(folder: Path) -> None:
    """Print what to open first of a report folder."""
    pages = [folder / name for name in ("report.html", "report.md", "report.json")]
    tell(f"\nReport: {', '.join([str(page) for page in pages if page.exists()][:2])}")
