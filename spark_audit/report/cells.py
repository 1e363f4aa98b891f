"""Cells, lines and tables, from which every format of a report is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_audit.results import Report, Row, number
from spark_audit.stats.estimate import Status

LARGE_NUMBER = 1e6
"""Values of at least this size are shown as powers of ten."""

SHOWN_DIGITS = 3
"""Most decimals of figures in tables."""

FEWER_DECIMALS_FROM = 10.0
"""Cells with a figure of at least this size have only the decimals that they need."""

MAX_SHOWN_VALUE = 1e12
"""Larger values are only shown as beyond this one."""

SHA256 = 64
"""Number of letters of a digest that is not keyed."""

AUDITED_SECTION = "audited"
"""Section of the tables on what was audited."""

FURTHER_TABLES = "further"
"""Section of the tables that belong to no audit of a report."""

VOID: tuple[Status, ...] = ("void", "invalid", "insensitive", "not_resolvable")
"""Statuses of figures that are in the report but prove nothing."""


def decimals(*figures: float | None) -> int:
    """Return how many decimals figures have that stand together in a cell.

    Large ones have been rounded by steps of 0.05 to 10, whose zeros would look like
    precision: decimals that are 0 in all of them are left out.

    >>> decimals(0.25, 0.5), decimals(32.0, 31.85), decimals(90.0, 60.0, 120.0, None)
    (3, 2, 0)
    """
    known = [value for value in figures if value is not None]
    if max(map(abs, known), default=0.0) < FEWER_DECIMALS_FROM:
        return SHOWN_DIGITS

    needed = 0
    for value in known:
        _, _, written = f"{value:.{SHOWN_DIGITS}f}".rstrip("0").partition(".")
        needed = max(needed, len(written))
    return needed


def shown(value: float | None, digits: int | None = None) -> str:
    """Return a number as all tables show it.

    Parameters
    ----------
    digits
        Decimals; None: see :func:`decimals`.
    """
    if value is None:
        return "-"
    if digits is None:
        digits = decimals(value)
    if isinstance(value, int):
        return str(value)
    if abs(value) >= MAX_SHOWN_VALUE:
        return "> 1e12" if value > 0 else "< -1e12"
    if abs(value) >= LARGE_NUMBER:
        # 1.2e+07 is written as 1.2e7.
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return number(value, digits)


def limited(
    value: float, low: float | None, high: float | None, digits: int | None = None
) -> str:
    """Return a number with its interval in brackets, with the same decimals.

    >>> limited(90.0, 60.0, 120.0)
    '90 [60, 120]'
    >>> limited(0.25, 0.125, 0.5)
    '0.250 [0.125, 0.500]'
    >>> limited(0.25, 0.125, None)
    '0.250 [≥ 0.125]'
    """
    if digits is None:
        digits = decimals(value, low, high)
    text = shown(value, digits)
    is_beyond_bound = text[0] in "<>"
    if is_beyond_bound and {shown(low, digits), shown(high, digits)} <= {text, "-"}:
        return text  # value and limits are beyond the bound: it is said once

    if low is not None and high is not None:
        return f"{text} [{shown(low, digits)}, {shown(high, digits)}]"
    if low is not None:
        return f"{text} [≥ {shown(low, digits)}]"
    if high is not None:
        return f"{text} [≤ {shown(high, digits)}]"
    return text


def is_shared(report: Report) -> bool:
    """Return whether a report is in its shared form: rounded, with a keyed digest."""
    return not report.manifest.key and len(report.manifest.digest) != SHA256


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and the figure of the report that it shows.

    Attributes
    ----------
    numeric
        Whether the text begins with a number.
    row
        The figure; None where the cell shows none.
    """

    text: str
    numeric: bool = False
    row: Row | None = None

    @property
    def void(self) -> bool:
        """Return whether its figure allows no conclusion."""
        return self.row is not None and self.row.status in VOID

    @property
    def missing(self) -> bool:
        """Return whether the cell is empty, or only says that a figure is missing."""
        if self.text in ("", "-"):
            return True
        return self.row is not None and self.row.value is None


EMPTY_CELL = Cell("-")
"""A cell without content."""


def figure(
    row: Row, *, before: str = "", after: str = "", digits: int | None = None
) -> Cell:
    """Return value and decision interval of a row, or the reason for their absence.

    Parameters
    ----------
    before, after
        Text in front of and behind the figure.
    digits
        Decimals; None: see :func:`decimals`.
    """
    if row.value is None:
        missing = "withheld" if row.withheld else "not estimable"
        return Cell(f"{before}{missing}{after}", row=row)

    text = limited(row.value, row.low, row.high, digits)
    if row.status in VOID:
        status = row.status.upper().replace("_", " ")
        text = f"{text} {status}"
    return Cell(f"{before}{text}{after}", numeric=not before, row=row)


def cell(value: object, *, digits: int | None = None) -> Cell:
    """Return the cell of a value of a record: a number, words, or a cell already.

    Parameters
    ----------
    digits
        Decimals of a number; None: see :func:`decimals`.
    """
    if isinstance(value, Cell):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(shown(value, digits), numeric=True)
    if value is None or value == "":
        return EMPTY_CELL
    return Cell(str(value))


@dataclass(frozen=True)
class TableLine:
    """One line of a table: its cells, and the checkpoint that they are about."""

    cells: tuple[Cell, ...]
    checkpoint: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The cells as text."""
        return tuple(cell.text for cell in self.cells)


@dataclass(frozen=True)
class ReportTable:
    """One table for a reader.

    Attributes
    ----------
    title
        The title of the table by itself.
    short
        The title under the heading of its section.
    remarks
        Sentences that stand below it.
    section
        Its audit, or ``manifest``, or another section of the page.
    key
        The name of a table of records; empty for a table of rows.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[TableLine, ...]
    remarks: tuple[str, ...] = ()
    section: str = FURTHER_TABLES
    short: str = ""
    key: str = ""


def records_table(
    records: Iterable[Mapping[str, Any]],
    *,
    title: str,
    short: str = "",
    remarks: tuple[str, ...] = (),
    section: str = FURTHER_TABLES,
    key: str = "",
    digits: int | None = None,
) -> ReportTable:
    """Return records as a table with a column for each key.

    Parameters
    ----------
    title, short, remarks, section, key
        The fields of :class:`ReportTable`.
    digits
        Decimals of numbers; None: see :func:`decimals`.
    """
    records = list(records)
    # Records may lack a key: its cell stays empty.
    columns: dict[str, None] = {}
    for record in records:
        columns |= dict.fromkeys(record)

    lines = []
    for record in records:
        cells = tuple(cell(record.get(column), digits=digits) for column in columns)
        lines.append(TableLine(cells, checkpoint=str(record.get("checkpoint") or "")))

    return ReportTable(
        title=title,
        header=tuple(column.replace("_", " ") for column in columns),
        rows=tuple(lines),
        remarks=remarks,
        section=section,
        short=short,
        key=key,
    )


def line_name(row: Row) -> str:
    """Return the name of a row's line: its checkpoint.

    If its interval is not over sources, the name says what it is over.
    """
    if row.interval_over == "sources":
        return row.checkpoint
    return f"{row.checkpoint}, {row.interval_over}"
