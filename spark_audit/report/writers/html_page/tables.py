"""Tables of the page: which rows belong to which checkpoint, which columns are numbers.

Cells are those of the blocks, unchanged: every format shows the same figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_audit.names import entry_of
from spark_audit.report.tables import DRAWN, Block
from spark_audit.results import Report, number

MISSING = ("", "-", "not estimable", "withheld")
"""Cells without a figure; they sort last."""

_VALUE = re.compile(
    r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?( \[[^\]]*\])?( [A-Z][A-Z ]*)?(, .*)?"
)
_MARKED = re.compile(r"\b(INVALID|NOT RESOLVABLE|INSENSITIVE)\b")
_WIDTH = 60
"""Characters from which a cell's text is broken into lines."""


@dataclass(frozen=True)
class Cell:
    """One cell; ``flag`` is a class for what must not be read like other figures."""

    text: str
    flag: str = ""

    @property
    def parts(self) -> tuple[str, str, str]:
        """The text before, of, and after the status that voids the figure."""
        found = _MARKED.search(self.text) if self.flag == "void" else None
        if found is None:
            return self.text, "", ""
        return self.text[: found.start()], found[0], self.text[found.end() :]


@dataclass(frozen=True)
class Line:
    """One row; ``checkpoint`` is the switch that hides it, ``""`` if none does."""

    checkpoint: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    """A table as the template writes it.

    ``numeric`` holds the 1-based numbers of the columns of figures. A ``folded`` table
    stands in ``<details>``.
    """

    id: str
    title: str
    header: tuple[str, ...]
    lines: tuple[Line, ...]
    numeric: tuple[int, ...]
    remarks: tuple[str, ...] = ()
    folded: bool = False

    @property
    def classes(self) -> str:
        """Class names that align the columns of figures."""
        return " ".join(f"n{k}" for k in self.numeric)


@dataclass(frozen=True)
class Switches:
    """All checkpoints that can be switched on and off.

    Replicates ``NAME[2]`` have one switch with the entry ``NAME`` that they belong to.
    """

    names: frozenset[str]

    def of(self, cell: str) -> str:
        """The switch of a cell's checkpoint, told with or without what it is over."""
        name, _, over = cell.rpartition(", ")
        name = name if over in ("seeds", "both") else cell
        return entry_of(name) if name in self.names else ""


def grids(block: Block, switches: Switches, *, id: str, fold: bool) -> Iterator[Grid]:
    """A block as tables: what is pooled in sight, groups folded below it."""
    whole = _grid(block, switches, id=id)
    if "group" not in block.header:
        yield replace(whole, folded=fold)
        return
    place = block.header.index("group")
    pooled = tuple(x for x in whole.lines if x.cells[place].text == "pooled")
    groups = tuple(x for x in whole.lines if x.cells[place].text != "pooled")
    if pooled:
        yield replace(whole, lines=pooled, folded=fold)
    if groups:
        title = f"{whole.title}, by group" if pooled else whole.title
        yield replace(
            whole,
            id=f"{id}-groups",
            title=title,
            lines=groups,
            remarks=() if pooled else whole.remarks,
            folded=True,
        )


def _grid(block: Block, switches: Switches, *, id: str) -> Grid:
    place = block.header.index("checkpoint") if "checkpoint" in block.header else None
    lines = []
    for row in block.rows:
        name = "" if place is None else switches.of(row[place])
        lines.append(Line(name, tuple(Cell(x, _flag(x)) for x in row)))
    numeric = tuple(
        k + 1
        for k in range(1, len(block.header))
        if _is_numeric([row[k] for row in block.rows])
    )
    return Grid(id, block.title, block.header, tuple(lines), numeric, block.remarks)


def _flag(text: str) -> str:
    if _MARKED.search(text):
        return "void"
    if text in ("not estimable", "withheld"):
        return "none"
    return "long" if len(text) > _WIDTH else ""


def _is_numeric(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if cell not in MISSING]
    return bool(known) and all(_VALUE.fullmatch(cell) for cell in known)


def further_tables(report: Report) -> dict[str, Block]:
    """The report's further tables, as Markdown prints them, by name."""
    found = {}
    for name, records in report.tables.items():
        if not records or name == "matching_by_type" or name in DRAWN:
            continue
        header = tuple(dict.fromkeys(key for record in records for key in record))
        found[name] = Block(
            title=name.replace("_", " "),
            header=tuple(key.replace("_", " ") for key in header),
            rows=tuple(tuple(_text(r.get(k)) for k in header) for r in records),
        )
    return found


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    return number(value) if isinstance(value, float) else str(value)
