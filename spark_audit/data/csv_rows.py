"""Rows of CSV as spreadsheets, pandas and databases write them, and lines of text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

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
_MARKDOWN_RULE = re.compile(r"\s*(?::?-+:?)?\s*")
"""A cell of the line below the names of a Markdown table."""
ENCODING_FIX = "save as UTF-8, or give --encoding, such as cp1252"


class TextLine(Row):
    """A line of plain text, as the column ``text``: it has no response."""


def text_rows(path: Path, *, encoding: str | None = None) -> Iterator[tuple[str, Row]]:
    """Yield lines of plain text; blank ones are left out."""
    for place, line in byte_lines(path, encoding=encoding):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise InputError("is not UTF-8", where=place, fix=ENCODING_FIX) from error
        if text:
            yield place, TextLine(text=text)


def csv_rows(
    path: Path, *, encoding: str | None = None, note: Note
) -> Iterator[tuple[str, Row]]:
    """Yield rows of CSV by the names in its first line.

    A line ``sep=;`` before it names the separator. A column without a name is left out
    where it is the first and numbers the rows, as pandas writes an index, or is empty
    in all rows, as behind a comma at each line's end. Blank lines are no rows.

    Parameters
    ----------
    note
        Is told of columns that are left out, and of blank lines between rows.
    """
    csv.field_size_limit(LINE_BYTES)
    with open_data(path, encoding=encoding) as raw:
        # Ends of line inside of quotes are the cell's.
        file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        lines, number = iter(lambda: file.readline(LINE_BYTES), ""), 1
        try:
            head, separator, n_before = _first_line(lines)
            if not head:
                return
            number = n_before + 1
            blank_lines = BlankLines(note)
            reader = csv.reader(chain([head], lines), delimiter=separator, strict=True)
            names = [name.strip() for name in next(reader, [])]
            columns = _Columns(names, f"{path}:{number}")
            for cells in reader:
                number = n_before + reader.line_num
                place = f"{path}:{number}"
                is_blank = len(cells) == 1 < len(names) and not cells[0].strip()
                if not cells or is_blank:
                    blank_lines.add(place)
                    continue
                if separator == "|" and all(map(_MARKDOWN_RULE.fullmatch, cells)):
                    what, fix = "is a table of Markdown", "save it as CSV"
                    raise InputError(what, where=place, fix=fix)
                blank_lines.end_at_row()
                yield place, columns.row(cells, place)
            columns.tell(path, note)
            blank_lines.tell()
        except UnicodeDecodeError as error:
            where = f"{path}, behind line {number}"
            raise InputError("is not UTF-8", where=where, fix=ENCODING_FIX) from error
        except csv.Error as error:
            where = f"{path}, behind line {number}"
            fix = "close every quote, and double one that is text"
            raise InputError("has a quote that is not CSV", where=where, fix=fix) from (
                error
            )


def _first_line(lines: Iterator[str]) -> tuple[str, str, int]:
    """Return the line of names, the separator, and how many lines stand before it."""
    head = next(lines, "")
    setting = head.strip("\r\n")
    if setting.startswith('"') and setting.endswith('"'):
        setting = setting[1:-1]
    if setting.lower().startswith("sep=") and len(setting) == 5:
        return next(lines, ""), setting[4], 1
    return head, max(SEPARATORS, key=head.count), 0


class _Columns:
    """The columns of a CSV, and those of them that are left out."""

    def __init__(self, names: list[str], place: str) -> None:
        self._place = place
        # Behind each line's last separator stands an empty column.
        self._n_named = len(names)
        while self._n_named > 1 and not names[self._n_named - 1]:
            self._n_named -= 1
        self._n_all = len(names)
        self._has_index = len(names) > 1 and not names[0]
        self._names = names[: self._n_named]
        named = self._names[1:] if self._has_index else self._names
        if not named or not all(named) or len(set(named)) < len(named):
            raise InputError(
                "the first line is empty, or does not name every column once",
                where=place,
                fix="name each column there once; of pandas, leave out an index of "
                "several columns (index=False)",
            )
        self._next_index: int | None = None
        self._n_trailing = 0

    def row(self, cells: list[str], place: str) -> Row:
        """Return a line's cells by name."""
        behind = cells[self._n_named :]
        is_short = len(cells) < self._n_named
        if is_short or any(behind):
            what = f"has {len(cells)} cells where the first line has {self._n_all}"
            fix = "quote cells with separators"
            if self._n_all == 1:
                fix += ", and remove what stands before the line of names"
            raise InputError(what, where=place, fix=fix)
        self._n_trailing += bool(behind)
        if self._has_index:
            self._check_index(cells[0], place)
            return dict(zip(self._names[1:], cells[1:], strict=False))
        return dict(zip(self._names, cells, strict=False))

    def _check_index(self, cell: str, place: str) -> None:
        """Refuse a column without a name that does not number the rows."""
        if not cell.strip():
            return
        number = int(cell) if cell.isdecimal() else None
        if number is None or self._next_index not in (None, number):
            what = "the first column has no name, and does not number the rows"
            raise InputError(what, where=place, fix="name every column")
        self._next_index = number + 1

    def tell(self, path: Path, note: Note) -> None:
        """Tell what was left out."""
        if self._has_index:
            note(f"{path}: the first column has no name (an index) and is left out")
        if self._n_trailing:
            note(f"{path}: {self._n_trailing} rows end in a separator without a cell")
