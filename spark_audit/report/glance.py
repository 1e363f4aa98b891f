"""The main figures of a report: one line a checkpoint, one figure an audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from spark_audit import sentences
from spark_audit.audits import about, in_order
from spark_audit.audits.claims import carriers
from spark_audit.names import ANY_NAME, entry_of
from spark_audit.results import Contrast, Report, Row, grouped

if TYPE_CHECKING:
    pass
from spark_audit.report.cells import (
    EMPTY_CELL,
    Cell,
    ReportTable,
    TableLine,
    figure,
    limited,
    line_name,
)


def main_rows(report: Report) -> Iterator[tuple[str, str, list[Row]]]:
    """The main figures: title, variant as it was declared, rows of all checkpoints.

    Of several scores it is the one that the verdict rests on, where it rests on none
    the loss.
    """
    rows = grouped(_pooled(report), lambda row: (row.audit, row.metric))
    for audit in in_order({audit for audit, _ in rows}):
        for metric in about(audit).metrics:
            for of in metric.glance:
                mine = rows.get((audit, metric.name), [])
                if of == ANY_NAME:
                    resting = carriers(report.findings, audit)
                    mine = [
                        row
                        for row in mine
                        if not isinstance(row, Contrast)
                        and row.of == resting.get(entry_of(row.checkpoint), "loss")
                    ]
                else:
                    mine = [row for row in mine if row.of == of]
                if mine:
                    key = f"metric.{audit}.{metric.name}.glance.{of}"
                    yield sentences.render(key), of, mine


def _pooled(report: Report) -> list[Row]:
    rows = (*report.results, *report.contrasts)
    return [row for row in rows if row.group == "pooled"]


def glance(report: Report) -> ReportTable | None:
    """One line a checkpoint, one figure an audit; ``None`` where there is none.

    Figures are chosen beforehand, never by what came out (:func:`main_rows`).
    """
    columns: dict[str, dict[str, Cell]] = {}
    chance: list[Cell] = []
    for title, variant, mine in main_rows(report):
        columns[title] = {}
        for row in mine:
            named = f"{row.of} " if variant == ANY_NAME else ""
            columns[title].setdefault(line_name(row), figure(row, before=named))
        own = [row for row in mine if not isinstance(row, Contrast)]
        chance.append(chance_cell(own) if about(mine[0].audit).chance else EMPTY_CELL)
    rows = _pooled(report)
    several = {row.checkpoint for row in rows if row.over == "both"}
    whose: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row.over == "both"):
        # Of several seeds one line stands for all, with the widest interval there is.
        if row.over == "both" or entry_of(row.checkpoint) not in several:
            whose[line_name(row)] = row.checkpoint
    lines = []
    for who, name in whose.items():
        cells = [column.get(who) for column in columns.values()]
        if any(cells):
            lines.append(
                TableLine((Cell(who), *(one or EMPTY_CELL for one in cells)), name)
            )
    if not lines:
        return None
    if not all(cell.missing for cell in chance):
        lines.append(TableLine((Cell(sentences.render("table.chance")), *chance)))
    names = ("checkpoint", *columns)
    return ReportTable(
        title=sentences.render("page.glance"),
        header=tuple(sentences.translated("column", name) for name in names),
        rows=lines_with_figures(lines),
        remarks=(sentences.render("page.glance_remark"),),
        key="glance",
    )


def chance_cell(rows: Sequence[Row]) -> Cell:
    """The null value and its band where all checkpoints have the same; else nothing."""
    bands = {(r.null, r.null_low, r.null_high) for r in rows if r.value is not None}
    null, low, high = bands.pop() if len(bands) == 1 else (None, None, None)
    return EMPTY_CELL if null is None else Cell(limited(null, low, high), numeric=True)


def lines_with_figures(lines: Sequence[TableLine]) -> tuple[TableLine, ...]:
    """Lines with a figure that is estimable, or withheld; all where there is none.

    Why the others have none stands below the table.
    """
    telling = []
    for line in lines:
        rows = [cell.row for cell in line.cells if cell.row]
        if not rows or any(row.value is not None or row.withheld for row in rows):
            telling.append(line)
    return tuple(telling or lines)
