"""Show a report at a glance in a terminal: answer, matrix, and next steps.

What is said is chosen in ``report/at_a_glance.py`` and ``report/matrix.py``; here it is
only laid out. A new line of text is a field of ``Glance`` there, and an entry of
``labelled_sentences`` in :func:`show_glance`, in the order of reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_audit.errors import visible
from spark_audit.report.at_a_glance import Glance
from spark_audit.report.checkpoint_states import SHAPES, State, badge
from spark_audit.report.matrix import (
    CELL_MARKS,
    CellKind,
    Matrix,
    MatrixCell,
    MatrixColumn,
    MatrixRow,
)
from spark_audit.sentences import render
from spark_audit.terminal.console import show_line, stdout

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

STATE_STYLES: Mapping[State, str] = {
    "LEAKS": "bold red",
    "DETECTABLE": "bold yellow",
    "NO LEAK FOUND": "green",
    "NOT TESTED": "dim",
}
"""State -> the style in which rich prints it."""

CELL_STYLES: Mapping[CellKind, str] = {
    "found": "red",
    "less": "yellow",
    "nothing": "",
    "void": "dim",
    "not tested": "dim",
}
"""Kind of cell -> the style in which rich prints it."""

STRONGEST = 3
"""Strength of a cell from which it is printed bold."""

ANY_WIDTH = 10_000
"""Columns of a terminal in which every table fits: to measure how wide one is."""

MAX_LABEL_COLUMNS = 20
"""Most columns for the names in front of sentences."""


def show_glance(glance: Glance, *, verbose: bool = False) -> None:
    """Print a report at a glance: at most 30 lines and 200 words."""
    for line in glance.first_lines:
        show_line(line, style="bold")
    show_line(glance.headline, style="bold")
    show_line(glance.basis, style="dim")
    for alarm in glance.alarms:
        show_line(f"{CELL_MARKS['void']} {alarm}", style="bold")

    _show_matrix(glance.matrix, verbose=verbose)

    labelled_sentences = [(answer.label, answer.text) for answer in glance.answers]
    for consequence in glance.consequences:
        labelled_sentences.append((consequence.label, consequence.sentence))
    if glance.exposed:
        kinds = [f"{exposed.kind} {exposed.effect}" for exposed in glance.exposed]
        sentence = f"{glance.whose_kinds} {', '.join(kinds)}"
        labelled_sentences.append((glance.exposed_label, sentence))
    labelled_sentences.append((glance.next_label, glance.next_step))
    labelled_sentences.append((render("glance.gate"), glance.gate))
    labelled_sentences.append((render("page.checks"), glance.checks))
    if glance.surety:
        labelled_sentences.append((render("page.sure"), glance.surety))
    labelled_sentences.append((render("page.not_tested"), glance.not_tested))
    if verbose:
        labelled_sentences += glance.more
    _show_labelled(labelled_sentences)


def _show_matrix(matrix: Matrix, *, verbose: bool) -> None:
    """Print the matrix and the meaning of its marks."""
    console = stdout()
    console.print()
    if len(matrix.rows) == 1:
        console.print(_table_of_single_checkpoint(matrix))
    else:
        rows = matrix.rows if verbose else matrix.first_rows
        for table in _tables_that_fit(matrix.columns, rows, console):
            console.print(table)
    # Without `verbose`, a long matrix is cut, and the line says what is missing.
    if matrix.further_rows and not verbose:
        show_line(matrix.further_text)

    # Only marks in this matrix are explained.
    legend = [f"{mark} {meaning}" for mark, meaning in matrix.legend]
    console.print("   ".join(legend), style="dim")
    console.print()


def _tables_that_fit(
    columns: Sequence[MatrixColumn], rows: Sequence[MatrixRow], console: Console
) -> list[Table]:
    """Return the matrix as tables of which none is wider than the terminal.

    Attacks that do not fit stand in a further table, so that no effect and no name is
    cut. A table has at least one attack, however narrow the terminal is.
    """
    tables = []
    start = 0
    while start < len(columns):
        end = len(columns)
        table = _table_of_checkpoints(columns, rows, start=start, end=end)
        while end > start + 1 and _width(table, console) > console.width:
            end -= 1
            table = _table_of_checkpoints(columns, rows, start=start, end=end)
        tables.append(table)
        start = end
    return tables


def _width(table: Table, console: Console) -> int:
    """Return how many columns of a terminal a table takes if nothing is cut."""
    options = console.options.update(width=ANY_WIDTH)
    return console.measure(table, options=options).maximum


def _table_of_checkpoints(
    columns: Sequence[MatrixColumn],
    rows: Sequence[MatrixRow],
    *,
    start: int,
    end: int,
) -> Table:
    """Return a table with a row per checkpoint and the attacks from start to end.

    States have their names in the table that begins with the first attack. A further
    table has only their marks.
    """
    from rich.table import Table

    # The first two columns are the state and the checkpoint, without a title.
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for column in columns[start:end]:
        table.add_column(f"{column.attack}\n{column.head}")

    state_before = None
    for row in rows:
        # Of rows with the same state, the first has its name, the next ones its mark.
        state_text = badge(row.state)
        if start > 0 or row.state == state_before:
            state_text = SHAPES[row.state]
        cells = [_cell(cell) for cell in row.cells[start:end]]
        styled_state = _plain_text(state_text, STATE_STYLES[row.state])
        table.add_row(styled_state, _plain_text(row.name), *cells)
        state_before = row.state
    return table


def _table_of_single_checkpoint(matrix: Matrix) -> Table:
    """Return a table of a single checkpoint, with a row per attack."""
    from rich.table import Table

    # A horizontal table would have one row; this one has room for untested attacks. Its
    # header is the checkpoint's state and name.
    (row,) = matrix.rows
    state = _plain_text(badge(row.state), STATE_STYLES[row.state])
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column(state, no_wrap=True)
    table.add_column(_plain_text(row.name), overflow="fold")
    table.add_column("", style="dim")
    for column, cell in zip(matrix.columns, row.cells, strict=True):
        # Behind an effect stands what its number means, else why there is none.
        remark = column.scale if cell.effect else cell.reason
        table.add_row(_plain_text(column.attack), _cell(cell), _plain_text(remark))
    return table


def _cell(cell: MatrixCell) -> Text:
    """Return a cell in its colour; its mark has the same meaning without colour."""
    style = CELL_STYLES[cell.kind]
    if cell.strength == STRONGEST:
        style = f"bold {style}"
    return _plain_text(cell.text, style)


def _show_labelled(labelled_sentences: Sequence[tuple[str, str]]) -> None:
    """Print sentences in a column behind their labels."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False, show_header=False)
    table.add_column(max_width=MAX_LABEL_COLUMNS, style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for label, sentence in labelled_sentences:
        table.add_row(_plain_text(label), _plain_text(sentence))
    stdout().print(table)


def _plain_text(text: str, style: str = "") -> Text:
    """Return text without interpretation of markup or control characters."""
    from rich.text import Text

    return Text(visible(text), style=style)
