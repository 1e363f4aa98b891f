"""Tables as the page shows them: of a long one the main lines, with a link to all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_audit.report.cells import ReportTable, TableLine
from spark_audit.results import Contrast, Report, Row
from spark_audit.sentences import render

MAX_LINES = 24
"""Lines of a table that the page shows whole; of a longer one it shows as many."""


@dataclass(frozen=True)
class PageTable:
    """A table on the page.

    Attributes
    ----------
    table
        With the lines that are shown.
    n_lines
        How many there are.
    file
        CSV file of all, relative to the report's folder. The page names it whether or
        not it lies there: it must not change with what else is written.
    """

    table: ReportTable
    n_lines: int
    file: str

    @property
    def is_cut(self) -> bool:
        """Return whether lines are left out."""
        return len(self.table.rows) < self.n_lines

    @property
    def note(self) -> str:
        """Return how many lines are shown; where none is, how many the file has."""
        n_shown = len(self.table.rows)
        if n_shown:
            return render("page.cut", shown=n_shown, count=self.n_lines)
        return render("page.cut_all", count=self.n_lines)


def page_table(table: ReportTable, report: Report) -> PageTable:
    """Return a table, and of a long one its pooled and its claimed lines."""
    lines = list(table.rows)
    if len(lines) > MAX_LINES:
        claims = _claims(report)
        lines = [
            line for line in lines if _is_pooled(line) or _is_claimed(line, claims)
        ]
        lines = lines[:MAX_LINES]
    return PageTable(
        table=replace(table, rows=tuple(lines)),
        n_lines=len(table.rows),
        file=f"tables/{_file_name(table)}.csv",
    )


def _claims(report: Report) -> set[tuple[str, str, str, str]]:
    """Return where the figures stand that something is claimed of."""
    return {
        (finding.audit, finding.checkpoint, finding.row_metric, finding.group)
        for finding in report.findings
        if finding.detected
    }


def _rows_of(line: TableLine) -> list[Row]:
    """Return the figures of a line."""
    return [cell.row for cell in line.cells if cell.row is not None]


def _is_pooled(line: TableLine) -> bool:
    """Return whether a line is of all, not of a type, task or dose.

    A line of records has no figures of a group.
    """
    rows = _rows_of(line)
    return bool(rows) and all(row.group == "pooled" for row in rows)


def _is_claimed(line: TableLine, claims: set[tuple[str, str, str, str]]) -> bool:
    """Return whether something is claimed of a figure of a line."""
    return any(
        (row.audit, row.checkpoint, row.metric, row.group) in claims
        for row in _rows_of(line)
    )


def _file_name(table: ReportTable) -> str:
    """Return the name of the CSV file that holds a table's figures."""
    if table.key:
        return table.key
    rows = [row for line in table.rows for row in _rows_of(line)]
    return "contrasts" if rows and isinstance(rows[0], Contrast) else "results"
