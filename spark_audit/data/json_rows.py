"""Read rows of JSON in every layout that tools write.

The layouts are: JSON lines; a list of objects; a list inside an object (``{"data":
[...]}``); objects over several lines, one after the other; and the tables of pandas'
``to_json``. :mod:`spark_audit.data.json_layouts` describes objects that hold rows.
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
"""A callback that receives a note for the user, as one sentence."""
EMPTY_FIX = "give a file with rows: check what exported it"
_OBJECT_FIX = "write each row as an object, with a name before each value"
_UTF8_FIX = "save as UTF-8, or read it by `data import --encoding`, such as cp1252"
LINE_BYTES = 1 << 24
"""Bytes of the longest line that is read."""
_CR_BETWEEN_ROWS = re.compile(rb"\}\s*\r\s*\{")


class BlankLines:
    """The blank lines of a file, between its rows or after the last one.

    A reader calls :meth:`add` at each blank line, :meth:`end_at_row` at each row, and
    :meth:`write_note` after the last row. Lines after the last row never count.

    Parameters
    ----------
    note
        Receives a note on blank lines between rows; ``None``: they are refused.
    """

    def __init__(self, note: Note | None) -> None:
        self._note = note
        self._n_between = 0
        self._first_between = ""  # its place
        self._n_since_row = 0
        self._first_since_row = ""  # its place

    def add(self, place: str) -> None:
        """Count a blank line."""
        self._first_since_row = self._first_since_row or place
        self._n_since_row += 1

    def end_at_row(self) -> None:
        """Count the blank lines since the last row as lines between rows.

        Raises
        ------
        InputError
            If there are any, and they are refused.
        """
        if not self._n_since_row:
            return
        if self._note is None:
            raise InputError(
                "is a blank line", where=self._first_since_row, fix="remove it"
            )

        self._first_between = self._first_between or self._first_since_row
        self._n_between += self._n_since_row
        self._n_since_row = 0
        self._first_since_row = ""

    def write_note(self) -> None:
        """Write the note on blank lines between rows."""
        if self._note is None or not self._n_between:
            return

        if self._n_between == 1:
            self._note(f"{self._first_between}: a blank line is left out between rows")
        else:
            self._note(
                f"{self._first_between}: blank lines are left out between rows "
                f"({self._n_between} of them, the first here)"
            )


def byte_lines(
    path: Path, *, encoding: str | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield ``(file:line, line)`` of a file; refuse a line that is too long."""
    with open_data(path, encoding=encoding) as file:
        for number in count(1):
            place = f"{path}:{number}"
            # One byte more than the limit shows that the line goes on.
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

    Blank lines at the end of the file are skipped.

    Parameters
    ----------
    finite
        Whether to refuse NaN and Infinity, which tools write for missing numbers.
    note
        Receives a note on blank lines between rows; ``None``: they are refused.
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
            # These checks name the usual causes of an error.
            _refuse_ends_of_lines(line, place)
            _check_utf8(line, place)
            raise
        has_rows = True
        yield place, _checked_row(row, place)

    blank_lines.write_note()
    if not has_rows:
        raise InputError("is empty", where=str(path), fix=EMPTY_FIX)


def _checked_row(row: object, place: str) -> Row:
    """Return a JSON value that is a row; refuse any other value."""
    if not isinstance(row, dict):
        raise InputError("is not an object", where=place, fix=_OBJECT_FIX)
    return row


def _refuse_ends_of_lines(line: bytes, place: str) -> None:
    """Refuse a line that is not JSON because of the characters at its end.

    Raises
    ------
    InputError
        If a comma follows the object, or if CR separates objects.
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
        Names the option that gives another encoding.
    """
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise InputError("is not UTF-8", where=place, fix=_UTF8_FIX) from None


def json_rows(
    path: Path, *, encoding: str | None = None, note: Note
) -> Iterator[tuple[str, Row]]:
    """Yield the rows of JSON in any layout.

    Parameters
    ----------
    note
        Receives a note on where the rows stand, if that is not obvious.
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
    """Yield the rows of a list, with their places."""
    for number, row in enumerate(rows, start=1):
        place = f"{path}, row {number}"
        yield place, _checked_row(row, place)


def _is_json_lines(path: Path, encoding: str | None) -> bool:
    """Return whether each line of a file is an object, judged by its first lines.

    The first line that fits decides::

        first line                      JSON lines?
        [ ...                           no: a list
        an object, and more lines       yes
        an object, and nothing else     yes, if it is itself a row (:func:`layout_of`)
        {...} {...}                     no: several objects on a line
        ends with one of  , { [ :       no: it continues on the next line
        anything else                   yes: the reader of lines reports the error
    """
    lines = byte_lines(path, encoding=encoding)
    first_line = next((line for _, line in lines if line.strip()), b"")
    if first_line.lstrip().startswith(b"["):
        return False

    try:
        value = json.loads(first_line)
    except json.JSONDecodeError as error:
        has_more_text = error.msg == "Extra data"
        if has_more_text and error.doc.startswith("{", error.pos):
            return False
        # JSON treats a lone CR between objects as white space.
        return not (_is_indented(first_line) or _CR_BETWEEN_ROWS.search(first_line))
    except (ValueError, RecursionError):
        return not _is_indented(first_line)

    has_next_line = any(line.strip() for _, line in lines)
    return has_next_line or not isinstance(value, dict) or layout_of(value) == "row"


def _is_indented(first_line: bytes) -> bool:
    """Return whether a line begins an object that continues on the next lines."""
    line = first_line.strip()
    return line in (b"{", b"[") or line.endswith((b",", b"{", b"[", b":"))


def _values(raw: bytes, place: str) -> Iterator[object]:
    """Yield JSON values that follow each other, with or without commas.

    Commas remain if somebody removed the brackets of a list.

    Raises
    ------
    InputError
        At the first text that is not JSON.
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
            end = len(text)  # parse_json raises the error

        # The decoder only finds the end. parse_json also refuses duplicate keys and
        # names the place of an error.
        value = parse_json(text[start:end].encode(), place=place, finite=False)
        yield value

        # Continue behind the value, and behind a comma that follows an object.
        start = end
        behind = text[start:].lstrip()
        if isinstance(value, dict) and behind.startswith(","):
            start = len(text) - len(behind) + 1
