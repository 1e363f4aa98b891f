"""A report at a glance in a terminal: the answer, the matrix, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_audit.errors import visible
from spark_audit.report.at_a_glance import Glance
from spark_audit.report.consequences import Consequence
from spark_audit.report.matrix import CELL_MARKS, CellKind, Matrix, MatrixCell
from spark_audit.report.standings import SHAPES, State, badge
from spark_audit.sentences import render
from spark_audit.terminal.console import show_line, stdout

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STATE_STYLES: Mapping[State, str] = {
    "LEAKS": "bold red",
    "DETECTABLE": "bold yellow",
    "NO LEAK FOUND": "green",
    "NOT TESTED": "dim",
}

CELL_STYLES: Mapping[CellKind, str] = {
    "found": "red",
    "less": "yellow",
    "nothing": "",
    "void": "dim",
    "not tested": "dim",
}

STRONGEST = 3
"""Strength of a cell that is printed bold."""

MAX_LABEL_COLUMNS = 20
"""Columns of a terminal that the names in front of sentences may take."""


def show_glance(glance: Glance) -> None:
    """Print a report at a glance: at most 30 lines for five checkpoints."""
    for line in glance.first_lines:
        show_line(line, style="bold")
    show_line(glance.headline, style="bold")
    show_line(glance.basis, style="dim")
    for alarm in glance.alarms:
        show_line(f"{CELL_MARKS['void']} {alarm}", style="bold")

    console = stdout()
    console.print()
    if len(glance.matrix.rows) == 1:
        console.print(_upright(glance.matrix))
    else:
        console.print(_across(glance.matrix))
    legend = [f"{mark} {meaning}" for mark, meaning in glance.matrix.legend]
    console.print("   ".join(legend), style="dim")
    console.print()

    lines = _lines_of_consequences(glance.consequences)
    if glance.exposed:
        kinds = [f"{exposed.kind} {exposed.effect}" for exposed in glance.exposed]
        text = f"{glance.whose_kinds} {', '.join(kinds)}"
        lines.append((glance.exposed_label, text))
    for state, step in glance.next_steps.items():
        lines.append((f"{render('page.next')} {SHAPES[state]}", step))
    if glance.not_run:
        lines.append(("", glance.not_run))
    lines.append((render("glance.gate"), glance.gate))
    lines.append((render("page.checks"), glance.checks))
    _show_labelled(lines)


def _across(matrix: Matrix) -> Table:
    """Return a row for each checkpoint and a column for each attack."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column(render("matrix.checkpoint"), overflow="fold")
    for column in matrix.columns:
        table.add_column(f"{column.attack}\n{column.head}")

    for row in matrix.rows:
        state = _text(badge(row.state), STATE_STYLES[row.state])
        cells = [_cell(cell) for cell in row.cells]
        table.add_row(state, _text(row.name), *cells)
    return table


def _upright(matrix: Matrix) -> Table:
    """Return the one checkpoint with a row for each attack."""
    from rich.table import Table

    (row,) = matrix.rows
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column(_text(badge(row.state), STATE_STYLES[row.state]), no_wrap=True)
    table.add_column(_text(row.name), overflow="fold")
    table.add_column("", style="dim")
    for column, cell in zip(matrix.columns, row.cells, strict=True):
        scale = column.scale if cell.effect else cell.reason
        table.add_row(_text(column.attack), _cell(cell), _text(scale))
    return table


def _cell(cell: MatrixCell) -> Text:
    """Return a cell in its colour; its mark tells the same without one."""
    style = CELL_STYLES[cell.kind]
    if cell.strength == STRONGEST:
        style = f"bold {style}"
    return _text(cell.text, style)


def _lines_of_consequences(
    consequences: tuple[Consequence, ...],
) -> list[tuple[str, str]]:
    """Return labels and sentences, and the figures of the first: the worst."""
    lines = []
    for position, consequence in enumerate(consequences):
        lines.append((consequence.label, consequence.sentence))
        if consequence.figures and position == 0:
            lines.append(("", consequence.figures))
    return lines


def _show_labelled(lines: list[tuple[str, str]]) -> None:
    """Print sentences with their labels in front, in two columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False, show_header=False)
    table.add_column(max_width=MAX_LABEL_COLUMNS, style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for label, sentence in lines:
        table.add_row(_text(label), _text(sentence))
    stdout().print(table)


def _text(text: str, style: str = "") -> Text:
    """Return text that is shown as it is: nothing in it is markup or steers."""
    from rich.text import Text

    return Text(visible(text), style=style)
