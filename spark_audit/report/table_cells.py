"""Cells, lines and tables: what every format of a report is written from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
VOID: Mapping[Status, str] = {
    "invalid": "INVALID",
    "insensitive": "INSENSITIVE",
    "not_resolvable": "NOT RESOLVABLE",
}
"""What stands behind a figure from which nothing can be concluded."""


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


@dataclass(frozen=True)
class Cell:
    """Words, or a number with its interval, of a row or by itself.

    Attributes
    ----------
    before, after
        Words around the number; all there is where there is none.
    value, low, high
        The number, and what stands in brackets behind it, in the row's unit.
    row
        The figure of the report that it shows.
    """

    before: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    after: str = ""
    row: Row | None = None

    @property
    def void(self) -> str:
        """The word for a figure that nothing can be concluded from, else nothing."""
        return "" if self.row is None else VOID.get(self.row.status, "")

    @property
    def missing(self) -> bool:
        """Whether nothing stands in it, or only that a figure is missing."""
        return self.value is None and (self.row is not None or self.before in ("", "-"))

    @property
    def numeric(self) -> bool:
        """Whether it is a number, and nothing before it."""
        return self.value is not None and not self.before

    @property
    def parts(self) -> tuple[str, str, str]:
        """The text before, of, and after the word that voids the figure."""
        words = self.before
        if self.value is not None:
            words += shown(self.value) + self._limits
        elif self.row is not None:
            words += "withheld" if self.row.withheld else "not estimable"
        return words + " " * bool(self.void), self.void, self.after

    @property
    def _limits(self) -> str:
        low, high = shown(self.low), shown(self.high)
        if self.low is None and self.high is None:
            return ""
        value = shown(self.value)
        if value[0] in "<>" and {low, high} <= {value, "-"}:
            return ""  # what is beyond all bounds says so once
        if self.high is None:
            return f" [≥ {low}]"
        return f" [≤ {high}]" if self.low is None else f" [{low}, {high}]"

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.parts)

    def __str__(self) -> str:
        return self.text


NONE = Cell("-")
"""Stands where there is nothing."""


def figure(row: Row, *, before: str = "", after: str = "") -> Cell:
    """Value and decision interval of a row, or why there is none."""
    return Cell(before, row.value, row.low, row.high, after, row)


def cell(value: object) -> Cell:
    """A value of a record: a number, or words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(value=value)
    return NONE if value is None or value == "" else Cell(str(value))


@dataclass(frozen=True)
class Line:
    """One row of a table: whose it is, of which part, and its cells."""

    cells: tuple[Cell, ...]
    checkpoint: str = ""
    group: str = "pooled"

    @property
    def texts(self) -> tuple[str, ...]:
        """The cells as text."""
        return tuple(cell.text for cell in self.cells)


@dataclass(frozen=True)
class Table:
    """One table for a reader; ``lead`` stands above it, ``remarks`` below.

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
    lead: str = ""
    section: str = FURTHER
    short: str = ""
    key: str = ""


def records_table(
    records: Iterable[Mapping[str, Any]],
    *,
    header: Mapping[str, str] | None = None,
    **facts: Any,
) -> Table:
    """Records as a table; ``header`` names their columns where their keys do not.

    ``facts`` are the other fields of :class:`Table`, of which ``title`` is needed.
    """
    records = list(records)
    names = header or {k: k for record in records for k in record}
    rows = [
        Line(
            tuple(cell(record.get(name)) for name in names),
            checkpoint=str(record.get("checkpoint") or ""),
            group=str(record.get("group", "pooled")),
        )
        for record in records
    ]
    return Table(header=tuple(names.values()), rows=tuple(rows), **facts)


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
    further
        Tables for people that are not the report's own.
    prepared_by
        Who hands it over.
    """

    drawn: Drawn = tuple
    manifest: Manifest | None = None
    show_text: bool = False
    further: Sequence[Table] = ()
    prepared_by: str = ""
