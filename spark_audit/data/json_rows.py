"""Rows of JSON in every layout that tools write.

JSON lines; a list of objects; a list inside of an object (``{"data": [...]}``); objects
one behind the other over several lines; and the tables of pandas' ``to_json``. What an
object that holds rows looks like stands in :mod:`spark_audit.data.json_layouts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeAlias

from spark_audit.data.data_files import open_data, read_data
from spark_audit.data.json_layouts import layout_of, rows_in_object
from spark_audit.errors import InputError
from spark_audit.files import parse_json
from spark_audit.json_values import Row

Note: TypeAlias = Callable[[str], None]
EMPTY_FIX = "give a file with rows: check what exported it"
_OBJECT_FIX = "write each row as an object, with a name before each value"
_UTF8_FIX = "save as UTF-8, or read it by `data import --encoding`, such as cp1252"
LINE_BYTES = 1 << 24
"""The longest line of a file of examples that is read."""
_CR_BETWEEN_ROWS = re.compile(rb"\}\s*\r\s*\{")


class BlankLines:
    """The blank lines of a file: between its rows, or behind the last of them.

    Parameters
    ----------
    note
        Is told of those between rows; ``None``: they are refused.
    """

    def __init__(self, note: Note | None) -> None:
        self._note = note
        self._first = ""
        self._n_between = 0
        self._first_since_row = ""
        self._n_since_row = 0

    def add(self, place: str) -> None:
        """Count a blank line."""
        self._first_since_row = self._first_since_row or place
        self._n_since_row += 1

    def end_at_row(self) -> None:
        """Count the blank lines up to here as standing between rows."""
        if not self._n_since_row:
            return
        if self._note is None:
            raise InputError(
                "is a blank line", where=self._first_since_row, fix="remove it"
            )

        self._first = self._first or self._first_since_row
        self._n_between += self._n_since_row
        self._n_since_row = 0
        self._first_since_row = ""

    def tell(self) -> None:
        """Tell of the blank lines between rows."""
        if self._note is None or not self._n_between:
            return

        if self._n_between == 1:
            self._note(f"{self._first}: a blank line is left out between rows")
        else:
            self._note(
                f"{self._first}: blank lines are left out between rows "
                f"({self._n_between} of them, the first here)"
            )


def byte_lines(
    path: Path, *, encoding: str | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield ``(file:line, line)`` of a file without a line that is too long."""
    with open_data(path, encoding=encoding) as file:
        for number in count(1):
            place = f"{path}:{number}"
            # One byte more than is read shows that a line goes on.
            line = file.readline(LINE_BYTES + 1)
            if len(line.removesuffix(b"\n")) > LINE_BYTES:
                raise InputError(
                    f"is longer than {LINE_BYTES:,} bytes",
                    where=place,
                    fix="divide its text into rows",
                )
            if not line:
                return
            yield place, line.removesuffix(b"\n")


def json_lines(
    path: Path,
    *,
    encoding: str | None = None,
    finite: bool = True,
    note: Note | None = None,
) -> Iterator[tuple[str, Row]]:
    """Yield ``(file:line, object)`` of each line of a JSON-lines file.

    Blank lines at its end are no rows.

    Parameters
    ----------
    finite
        Whether NaN and Infinity are refused, which tools write for missing numbers.
    note
        Is told how many blank lines stand between rows; ``None``: they are refused.
    """
    blank_lines = BlankLines(note)
    has_rows = False
    # Only \n ends a row: str.splitlines would also split at U+2028 inside a text.
    for place, line in byte_lines(path, encoding=encoding):
        if not line.strip():
            blank_lines.add(place)
            continue
        blank_lines.end_at_row()

        try:
            row = parse_json(line, place=place, finite=finite)
        except InputError:
            # These name the cause where it is a usual one.
            _refuse_ends_of_lines(line, place)
            _check_utf8(line, place)
            raise
        has_rows = True
        yield place, _checked_row(row, place)

    blank_lines.tell()
    if not has_rows:
        raise InputError("is empty", where=str(path), fix=EMPTY_FIX)


def _checked_row(row: object, place: str) -> Row:
    """Return a value of JSON that is a row; refuse any other."""
    if not isinstance(row, dict):
        raise InputError("is not an object", where=place, fix=_OBJECT_FIX)
    return row


def _refuse_ends_of_lines(line: bytes, place: str) -> None:
    """Refuse a line that is not JSON because of what stands at its end.

    Raises
    ------
    InputError
        If a comma follows its object, or objects are divided by CR.
    """
    if _CR_BETWEEN_ROWS.search(line):
        raise InputError(
            "holds CR, which does not end a line of JSON lines",
            where=place,
            fix=r"end each row with LF: tr '\r' '\n' < FILE > NEW",
        )
    if line.rstrip().endswith(b"},"):
        raise InputError(
            "ends with a comma, which JSON lines do not",
            where=place,
            fix="remove the commas",
        )


def _check_utf8(raw: bytes, place: str) -> None:
    """Refuse bytes that are not UTF-8.

    Raises
    ------
    InputError
        With the option that names another encoding.
    """
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8", where=place, fix=_UTF8_FIX) from error


def json_rows(
    path: Path, *, encoding: str | None = None, note: Note
) -> Iterator[tuple[str, Row]]:
    """Yield the rows of JSON in any layout.

    Parameters
    ----------
    note
        Is told where the rows stand, if it is not obvious.
    """
    if _is_json_lines(path, encoding):
        yield from json_lines(path, encoding=encoding, finite=False, note=note)
        return

    raw = read_data(path, encoding=encoding)
    values = list(_values(raw, str(path)))
    rows: list[object] = values
    if len(values) == 1 and isinstance(values[0], list):
        rows = values[0]
    elif len(values) == 1 and isinstance(values[0], dict):
        rows = rows_in_object(values[0], path, note)
    yield from _checked_rows(rows, path)


def json_list(path: Path, *, encoding: str | None = None) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a JSON list."""
    raw = read_data(path, encoding=encoding)
    _check_utf8(raw, str(path))
    rows = parse_json(raw, place=str(path), finite=False)
    if not isinstance(rows, list):
        raise InputError(
            "is not a JSON list",
            where=str(path),
            fix="write its rows as a list of objects",
        )
    yield from _checked_rows(rows, path)


def _checked_rows(rows: list[object], path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a list with their places."""
    for number, row in enumerate(rows, start=1):
        place = f"{path}, row {number}"
        yield place, _checked_row(row, place)


def _is_json_lines(path: Path, encoding: str | None) -> bool:
    """Return whether each line of a file is an object, as its first lines tell.

    A list is none, nor an object over several lines. An only line may be a row, or an
    object that holds the rows. ::

        first line that is not blank         JSON lines?
        begins a list                        no
        several objects                      no
        cannot be parsed                     no, if it looks like a part of an object
        an object, and other lines follow    yes
        an object alone                      if it is a row itself
    """
    lines = byte_lines(path, encoding=encoding)
    first_line = next((line for _, line in lines if line.strip()), b"")
    if first_line.lstrip().startswith(b"["):
        return False

    try:
        value = json.loads(first_line)
    except json.JSONDecodeError as error:
        holds_several = error.msg == "Extra data"
        if holds_several and error.doc.startswith("{", error.pos):
            return False
        # A lone CR between objects is white space of JSON.
        return not (_is_indented(first_line) or _CR_BETWEEN_ROWS.search(first_line))
    except (ValueError, RecursionError):
        return not _is_indented(first_line)

    if any(line.strip() for _, line in lines):
        return True
    return not isinstance(value, dict) or layout_of(value) == "row"


def _is_indented(first_line: bytes) -> bool:
    """Return whether a line begins an object that goes on below it."""
    line = first_line.strip()
    return line in (b"{", b"[") or line.endswith((b",", b"{", b"[", b":"))


def _values(raw: bytes, place: str) -> Iterator[object]:
    """Yield JSON values that stand one behind the other, with commas or without.

    A comma behind an object is what is left of a list whose brackets were cut off.
    """
    _check_utf8(raw, place)
    text = raw.decode()
    decoder = json.JSONDecoder()
    start = 0
    while rest := text[start:].lstrip():
        start = len(text) - len(rest)
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = len(text)  # parse_json tells what is wrong

        # The decoder only finds the end: parse_json also refuses a key that stands
        # twice, and names the place of an error.
        value = parse_json(text[start:end].encode(), place=place, finite=False)
        yield value

        start = end
        behind = text[start:].lstrip()
        if isinstance(value, dict) and behind.startswith(","):
            start = len(text) - len(behind) + 1
