"""Cells, lines and tables: what every format of a report is written from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_audit.results import Row, Status, number

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.report.figures.drawing import Drawn

LARGE = 1e6
"""Values from which powers of ten are shown."""
MOST = 1e12
"""Values of which no more is said than that they are beyond it."""
FURTHER = "further"
"""Where tables stand that belong to no audit of a report."""
VOID: tuple[Status, ...] = ("invalid", "insensitive", "not_resolvable")
"""Statuses of figures that stand in the report but must not be read as found."""


def shown(value: float | None) -> str:
    """A number as every table shows it."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= MOST:
        return "> 1e12" if value > 0 else "< -1e12"
    if abs(value) >= LARGE:
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


NONE = Cell("-")
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
    return NONE if value is None or value == "" else Cell(str(value))


@dataclass(frozen=True)
class Line:
    """One row of a table: its cells, and whose it is."""

    cells: tuple[Cell, ...]
    checkpoint: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The cells as text."""
        return tuple(cell.text for cell in self.cells)


@dataclass(frozen=True)
class Table:
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
    rows: tuple[Line, ...]
    remarks: tuple[str, ...] = ()
    section: str = FURTHER
    short: str = ""
    key: str = ""


def records_table(records: Iterable[Mapping[str, Any]], **facts: Any) -> Table:
    """Records as a table, a column a key.

    ``facts`` are the other fields of :class:`Table`, of which ``title`` is needed.
    """
    records = list(records)
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [
        Line(
            tuple(cell(record.get(name)) for name in names),
            checkpoint=str(record.get("checkpoint") or ""),
        )
        for record in records
    ]
    header = tuple(name.replace("_", " ") for name in names)
    return Table(header=header, rows=tuple(rows), **facts)


class File(NamedTuple):
    """A file of a report's folder; a ``private`` one is for its owner only."""

    name: str
    content: str | bytes
    private: bool = False


@dataclass(frozen=True)
class Rendering:
    """What a writer is given beside the report.

    Attributes
    ----------
    drawn
        Draws the figures, once for all writers.
    manifest, show_text
        For the words of examples; whether identifiers among them may be shown.
    prepared_by
        Who hands it over.
    """

    drawn: Drawn = tuple
    manifest: Manifest | None = None
    show_text: bool = False
    prepared_by: str = ""
