"""Cells, lines and tables: what every format of a report is written from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_audit.results import Report, Row, number
from spark_audit.stats.estimate import Status

if TYPE_CHECKING:
    pass


LARGE_NUMBER = 1e6
"""Values from which powers of ten are shown."""

MAX_SHOWN_VALUE = 1e12
"""Values of which no more is said than that they are beyond it."""

SHA256 = 64
"""Letters of a digest that is not keyed."""

FURTHER_TABLES = "further"
"""Where tables stand that belong to no audit of a report."""

VOID: tuple[Status, ...] = ("void", "invalid", "insensitive", "not_resolvable")
"""Statuses of figures that stand in the report but must not be read as found."""


def shown(value: float | None) -> str:
    """A number as every table shows it."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= MAX_SHOWN_VALUE:
        return "> 1e12" if value > 0 else "< -1e12"
    if abs(value) >= LARGE_NUMBER:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return number(value)


def limited(value: float, low: float | None, high: float | None) -> str:
    """A number with its interval in brackets."""
    text = shown(value)
    if text[0] in "<>" and {shown(low), shown(high)} <= {text, "-"}:
        return text  # what is beyond all bounds says so once
    if low is None:
        return text if high is None else f"{text} [≤ {shown(high)}]"
    ends = f"≥ {shown(low)}" if high is None else f"{shown(low)}, {shown(high)}"
    return f"{text} [{ends}]"


def is_shared(report: Report) -> bool:
    """Whether it is a report as files for others hold it: rounded, its digest keyed."""
    return not report.manifest.key and len(report.manifest.digest) != SHA256


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and the figure of the report that it shows.

    ``numeric`` is whether it begins with a number.
    """

    text: str
    numeric: bool = False
    row: Row | None = None

    @property
    def void(self) -> bool:
        """Whether nothing can be concluded from its figure."""
        return self.row is not None and self.row.status in VOID

    @property
    def missing(self) -> bool:
        """Whether nothing stands in it, or only that a figure is missing."""
        return self.text in ("", "-") or bool(self.row and self.row.value is None)


EMPTY_CELL = Cell("-")
"""Stands where there is nothing."""


def figure(row: Row, *, before: str = "", after: str = "") -> Cell:
    """Value and decision interval of a row, or why there is none."""
    if row.value is None:
        lacking = "withheld" if row.withheld else "not estimable"
        return Cell(f"{before}{lacking}{after}", row=row)
    text = limited(row.value, row.low, row.high)
    if row.status in VOID:
        text += f" {row.status.upper().replace('_', ' ')}"
    return Cell(f"{before}{text}{after}", not before, row)


def cell(value: object) -> Cell:
    """A value of a record: a number, or words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(shown(value), numeric=True)
    return EMPTY_CELL if value is None or value == "" else Cell(str(value))


@dataclass(frozen=True)
class TableLine:
    """One row of a table: its cells, and whose it is."""

    cells: tuple[Cell, ...]
    checkpoint: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The cells as text."""
        return tuple(cell.text for cell in self.cells)


@dataclass(frozen=True)
class ReportTable:
    """One table for a reader; ``remarks`` stand below it.

    Attributes
    ----------
    key
        The name of a table of records; empty of one that is made of rows.
    section
        Audit that it is of, or ``manifest``, or where else it stands on the page.
    title, short
        By itself, and under the heading of its section.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[TableLine, ...]
    remarks: tuple[str, ...] = ()
    section: str = FURTHER_TABLES
    short: str = ""
    key: str = ""


def records_table(records: Iterable[Mapping[str, Any]], **facts: Any) -> ReportTable:
    """Records as a table, a column a key.

    ``facts`` are the other fields of :class:`ReportTable`, of which ``title`` is
    needed.
    """
    records = list(records)
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [
        TableLine(
            tuple(cell(record.get(name)) for name in names),
            checkpoint=str(record.get("checkpoint") or ""),
        )
        for record in records
    ]
    header = tuple(name.replace("_", " ") for name in names)
    return ReportTable(header=header, rows=tuple(rows), **facts)


def line_name(row: Row) -> str:
    """A checkpoint, and what its intervals are over where that is no source."""
    return row.checkpoint if row.over == "sources" else f"{row.checkpoint}, {row.over}"
