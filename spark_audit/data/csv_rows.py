"""Read CSV as spreadsheets, pandas and databases write it, and lines of plain text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

from spark_audit.data.data_files import open_data
from spark_audit.data.json_rows import (
    LINE_BYTES,
    BlankLines,
    Note,
    byte_lines,
)
from spark_audit.errors import InputError
from spark_audit.json_values import Row

SEPARATORS = ",;\t|"
"""Separators of cells; the one that the line of names has most of is used."""
_MARKDOWN_RULE = re.compile(r"\s*(?::?-+:?)?\s*")
"""Pattern of a cell in the line of dashes below the names of a Markdown table."""
ENCODING_FIX = "save as UTF-8, or give --encoding, such as cp1252"


class TextLine(Row):
    """A line of plain text in the column ``text``; it has no response."""


def text_rows(path: Path, *, encoding: str | None = None) -> Iterator[tuple[str, Row]]:
    """Yield the lines of plain text that are not blank."""
    for place, line in byte_lines(path, encoding=encoding):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise InputError("is not UTF-8", where=place, fix=ENCODING_FIX) from None
        if text:
            yield place, TextLine(text=text)


def csv_rows(
    path: Path, *, encoding: str | None = None, note: Note
) -> Iterator[tuple[str, Row]]:
    """Yield rows of CSV, with the names in its first line as keys.

    An earlier line ``sep=;`` sets the separator. Two kinds of columns without a name
    are left out: a first column that numbers the rows, as the index of pandas, and a
    last column that is empty in all rows, as after a trailing comma. Blank lines are
    skipped.

    Parameters
    ----------
    note
        Receives notes on columns that were left out, and on blank lines between rows.
    """
    # Without this limit the library refuses long cells.
    csv.field_size_limit(LINE_BYTES)

    with open_data(path, encoding=encoding) as raw:
        # newline="" keeps line ends inside quotes in the cell.
        lines = _Lines(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        with _csv_errors(path, lines):
            head = _read_head(lines)
            if not head.line:
                return
            yield from _rows_below(head, lines, path, note)


def _rows_below(
    head: _Head, lines: _Lines, path: Path, note: Note
) -> Iterator[tuple[str, Row]]:
    """Yield the rows below the line of names."""
    lines.put_back(head.line)
    reader = csv.reader(lines, delimiter=head.separator, strict=True)
    names = [name.strip() for name in next(reader, [])]
    columns = _Columns(names, f"{path}:{head.n_before + 1}")
    blank_lines = BlankLines(note)

    for cells in reader:
        # A row may span several lines; errors name the last one.
        lines.n_read = head.n_before + reader.line_num
        place = f"{path}:{lines.n_read}"
        is_blank = len(cells) == 1 < len(names) and not cells[0].strip()
        if not cells or is_blank:
            blank_lines.add(place)
            continue

        if head.separator == "|":
            _refuse_markdown(cells, place)
        blank_lines.end_at_row()
        yield place, columns.row(cells, place)

    columns.write_notes(path, note)
    blank_lines.write_note()


def _refuse_markdown(cells: list[str], place: str) -> None:
    """Refuse the line of dashes below the names of a Markdown table."""
    if all(_MARKDOWN_RULE.fullmatch(cell) for cell in cells):
        raise InputError("is a table of Markdown", where=place, fix="save it as CSV")


class _Lines:
    """The lines of a text file, for ``csv.reader``.

    A line of more than :data:`LINE_BYTES` characters comes in several pieces.

    Attributes
    ----------
    n_read
        Number of lines up to the end of the last row, for errors. The reader of rows
        sets it.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._waiting = ""
        self.n_read = 1

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._waiting or self._file.readline(LINE_BYTES)
        self._waiting = ""
        if not line:
            raise StopIteration
        return line

    def put_back(self, line: str) -> None:
        """Make a line that was read the next one again."""
        self._waiting = line


@contextmanager
def _csv_errors(path: Path, lines: _Lines) -> Iterator[None]:
    """Raise ``InputError`` where the text is not UTF-8, or its quotes are not CSV."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(
            "is not UTF-8",
            where=f"{path}, behind line {lines.n_read}",
            fix=ENCODING_FIX,
        ) from None
    except csv.Error:
        raise InputError(
            "has a quote that is not CSV",
            where=f"{path}, behind line {lines.n_read}",
            fix="close every quote, and double one that is text",
        ) from None


class _Head(NamedTuple):
    """The line of names, the separator, and how many lines stand before it."""

    line: str
    separator: str
    n_before: int


def _read_head(lines: _Lines) -> _Head:
    """Read the line of names, and a line before it that names the separator."""
    line = next(lines, "")

    # Excel reads and writes "sep=;", with or without quotes.
    setting = line.strip("\r\n")
    if setting.startswith('"') and setting.endswith('"'):
        setting = setting[1:-1]
    if setting.lower().startswith("sep=") and len(setting) == 5:
        head = _Head(next(lines, ""), setting[4], n_before=1)
        lines.n_read = 2
        return head
    return _Head(line, max(SEPARATORS, key=line.count), n_before=0)


class _Columns:
    """The columns of a CSV file, with those that are left out.

    Parameters
    ----------
    names
        Cells of the line of names.
    place
        Place of this line, for errors.
    """

    def __init__(self, names: list[str], place: str) -> None:
        self._n_head_cells = len(names)

        # A separator at the end of each line makes an empty last column.
        n_named = len(names)
        while n_named > 1 and not names[n_named - 1]:
            n_named -= 1
        self._names = names[:n_named]

        # A first column without a name may be the index that pandas writes.
        self._has_index = len(names) > 1 and not names[0]
        self._next_index: int | None = None  # None before the first row
        self._n_trailing = 0

        data_names = self._names[1:] if self._has_index else self._names
        has_repeats = len(set(data_names)) < len(data_names)
        if not data_names or not all(data_names) or has_repeats:
            raise InputError(
                "the first line is empty, or does not name every column once",
                where=place,
                fix="name each column there once; of pandas, leave out an index of "
                "several columns (index=False)",
            )

    def row(self, cells: list[str], place: str) -> Row:
        """Return the cells of a line, by column name."""
        n_named = len(self._names)
        unnamed_cells = cells[n_named:]
        if len(cells) < n_named or any(unnamed_cells):
            advice = "quote cells with separators"
            if self._n_head_cells == 1:
                advice += ", and remove what stands before the line of names"
            raise InputError(
                f"has {len(cells)} cells where the first line has {self._n_head_cells}",
                where=place,
                fix=advice,
            )

        # The unnamed cells are all empty.
        self._n_trailing += bool(unnamed_cells)
        if self._has_index:
            self._check_index(cells[0], place)
            return dict(zip(self._names[1:], cells[1:n_named], strict=True))
        return dict(zip(self._names, cells[:n_named], strict=True))

    def _check_index(self, cell: str, place: str) -> None:
        """Refuse a first column without a name if it does not number the rows."""
        if not cell.strip():
            return
        number = int(cell) if cell.isdecimal() else None
        if number is None or self._next_index not in (None, number):
            raise InputError(
                "the first column has no name, and does not number the rows",
                where=place,
                fix="name every column",
            )
        self._next_index = number + 1

    def write_notes(self, path: Path, note: Note) -> None:
        """Write notes on the columns that were left out."""
        if self._has_index:
            note(f"{path}: the first column has no name (an index) and is left out")
        if self._n_trailing:
            note(f"{path}: {self._n_trailing} rows end in a separator without a cell")
