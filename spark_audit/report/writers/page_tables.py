"""Tables as the page shows them: of a long one the main lines, with a link to all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_audit.report.cells import AUDITED_SECTION, ReportTable, TableLine
from spark_audit.results import Contrast, Report, Row
from spark_audit.sentences import render

MAX_LINES_ON_PAGE = 24
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
        """How many lines are shown; where none is, how many the file has."""
        n_shown = len(self.table.rows)
        if n_shown:
            return render("page.cut", shown=n_shown, count=self.n_lines)
        return render("page.cut_all", count=self.n_lines)


def page_table(table: ReportTable, report: Report) -> PageTable:
    """Return a table, and of a long one its pooled and its claimed lines."""
    lines = list(table.rows)
    if len(lines) > MAX_LINES_ON_PAGE:
        claims = _claims(report)
        main_lines = [
            line for line in lines if _is_pooled(line) or _is_claimed(line, claims)
        ]
        if table.section == AUDITED_SECTION:
            # Each line is a checkpoint, and none is more than another.
            main_lines = lines
        # Even the main lines may be many.
        lines = main_lines[:MAX_LINES_ON_PAGE]
    return PageTable(
        table=replace(table, rows=tuple(lines)),
        n_lines=len(table.rows),
        file=f"tables/{_file_name(table)}.csv",
    )


class _ClaimedFigure(NamedTuple):
    """Names the figures of a row or finding, of any variant."""

    audit: str
    checkpoint: str
    metric: str
    group: str


def _claims(report: Report) -> set[_ClaimedFigure]:
    """Return the figures that something is claimed of."""
    claims = set()
    for finding in report.findings:
        if finding.detected:
            claims.add(
                _ClaimedFigure(
                    audit=finding.audit,
                    checkpoint=finding.checkpoint,
                    metric=finding.row_metric,
                    group=finding.group,
                )
            )
    return claims


def _rows_of(line: TableLine) -> list[Row]:
    """Return the figures of a line."""
    return [cell.row for cell in line.cells if cell.row is not None]


def _is_pooled(line: TableLine) -> bool:
    """Return whether a line is of all identifiers, not of a type, task or dose.

    A line of records has no rows, so that it is not pooled.
    """
    rows = _rows_of(line)
    return bool(rows) and all(row.group == "pooled" for row in rows)


def _is_claimed(line: TableLine, claims: Collection[_ClaimedFigure]) -> bool:
    """Return whether something is claimed of a figure of a line."""
    return any(
        _ClaimedFigure(row.audit, row.checkpoint, row.metric, row.group) in claims
        for row in _rows_of(line)
    )


def _file_name(table: ReportTable) -> str:
    """Return the stem of the CSV file that holds a table's figures."""
    if table.key:
        return table.key

    for line in table.rows:
        for row in _rows_of(line):
            return "contrasts" if isinstance(row, Contrast) else "results"
    return "results"
