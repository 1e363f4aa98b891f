"""How reports and records look in a terminal: tables on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_audit.audits import AUDITS
from spark_audit.report.tables import NO_VERDICT, Block, blocks, glance
from spark_audit.results import Report, by_severity, number
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
        show_blocks([first])
    else:
        wide = all(AUDITS.about(audit).wide for audit in audits)
        show_blocks(blocks(report, brief=not wide))


def show_blocks(tables: Sequence[Block]) -> None:
    """Tables one below the other, remarks under each."""
    for block in tables:
        show_table(block.title, block.header, block.rows, remarks=block.remarks)


def show_records(
    records: Sequence[Mapping[str, Any]], *, title: str, as_json: bool = False
) -> None:
    """Records of the same fields as a table, or as a JSON list."""
    if as_json:
        tell_json([dict(record) for record in records])
        return
    header = list(dict.fromkeys(key for record in records for key in record))
    rows = [tuple(_cell(record.get(key)) for key in header) for record in records]
    names = tuple(key.replace("_", " ") for key in header)
    show_blocks([Block(title=title, header=names, rows=tuple(rows))])


def _cell(value: object) -> str:
    return number(value) if isinstance(value, float | None) else str(value)


def say_where(folder: Path) -> None:
    """Print what to open first of a report folder."""
    pages = [folder / name for name in ("report.html", "report.md", "report.json")]
    tell(f"\nReport: {', '.join([str(page) for page in pages if page.exists()][:2])}")
