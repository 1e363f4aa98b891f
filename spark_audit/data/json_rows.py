"""Rows of JSON in every layout that tools write.

JSON lines; a list of objects; a list inside of an object (``{"data": [...]}``); objects
one behind the other over several lines; and the tables of pandas' ``to_json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeAlias

from spark_audit.data.data_files import open_data, read_data
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
            where = self._first_since_row
            raise InputError("is a blank line", where=where, fix="remove it")
        self._first = self._first or self._first_since_row
        self._n_between += self._n_since_row
        self._n_since_row = 0
        self._first_since_row = ""

    def tell(self) -> None:
        """Tell of the blank lines between rows."""
        if self._note is not None and self._n_between:
            lines = "a blank line is" if self._n_between == 1 else "blank lines are"
            remark = f"{self._first}: {lines} left out between rows"
            if self._n_between > 1:
                remark += f" ({self._n_between} of them, the first here)"
            self._note(remark)


def byte_lines(
    path: Path, *, encoding: str | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield ``(file:line, line)`` of a file without a line that is too long."""
    with open_data(path, encoding=encoding) as file:
        for number in count(1):
            line, place = file.readline(LINE_BYTES + 1), f"{path}:{number}"
            if len(line.removesuffix(b"\n")) > LINE_BYTES:
                what = f"is longer than {LINE_BYTES:,} bytes"
                raise InputError(what, where=place, fix="divide its text into rows")
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
            _refuse_ends_of_lines(line, place)
            _check_utf8(line, place)
            raise
        if not isinstance(row, dict):
            raise InputError("is not an object", where=place, fix=_OBJECT_FIX)
        has_rows = True
        yield place, row
    blank_lines.tell()
    if not has_rows:
        raise InputError("is empty", where=str(path), fix=EMPTY_FIX)


def _refuse_ends_of_lines(line: bytes, place: str) -> None:
    """Say of a line that is no JSON that its end is none of JSON lines.

    Raises
    ------
    InputError
        If a comma follows its object, or objects are divided by CR.
    """
    if _CR_BETWEEN_ROWS.search(line):
        what = "holds CR, which ends no line of JSON lines"
        fix = r"end each row with LF: tr '\r' '\n' < FILE > NEW"
        raise InputError(what, where=place, fix=fix)
    if line.rstrip().endswith(b"},"):
        what, fix = "ends with a comma, which JSON lines do not", "remove the commas"
        raise InputError(what, where=place, fix=fix)


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
        Is told where the rows were found, if it is not obvious.
    """
    if _is_json_lines(path, encoding):
        yield from json_lines(path, encoding=encoding, finite=False, note=note)
        return

    raw = read_data(path, encoding=encoding)
    values = [*_values(raw, str(path))]
    rows = values
    if len(values) == 1 and isinstance(values[0], list):
        rows = values[0]
    elif len(values) == 1 and isinstance(values[0], dict):
        rows = _rows_in_object(values[0], path, note)
    yield from _checked_rows(rows, path)


def json_list(path: Path, *, encoding: str | None = None) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a JSON list."""
    raw = read_data(path, encoding=encoding)
    _check_utf8(raw, str(path))
    rows = parse_json(raw, place=str(path), finite=False)
    if not isinstance(rows, list):
        fix = "write its rows as a list of objects"
        raise InputError("is not a JSON list", where=str(path), fix=fix)
    yield from _checked_rows(rows, path)


def _checked_rows(rows: list[object], path: Path) -> Iterator[tuple[str, Row]]:
    for number, row in enumerate(rows, start=1):
        place = f"{path}, row {number}"
        if not isinstance(row, dict):
            raise InputError("is not an object", where=place, fix=_OBJECT_FIX)
        yield place, row


def _is_json_lines(path: Path, encoding: str | None) -> bool:
    """Whether each line is an object: not a list, and none over several lines.

    An only line may be a row, or an object that holds the rows.
    """
    lines = byte_lines(path, encoding=encoding)
    first = next((line for _, line in lines if line.strip()), b"")
    if first.lstrip().startswith(b"["):
        return False
    try:
        value = json.loads(first)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and error.doc.startswith("{", error.pos):
            return False  # objects one behind the other in a line
        # Lone CR between objects is white space of JSON.
        return not (_is_indented(first) or _CR_BETWEEN_ROWS.search(first))
    except (ValueError, RecursionError):
        return not _is_indented(first)
    if any(line.strip() for _, line in lines):
        return True
    return not isinstance(value, dict) or _layout_of(value) == "row"


def _is_indented(first_line: bytes) -> bool:
    """Whether a line begins an object that goes on below it."""
    line = first_line.strip()
    return line in (b"{", b"[") or line.endswith((b",", b"{", b"[", b":"))


def _values(raw: bytes, place: str) -> Iterator[object]:
    """Yield JSON values that stand one behind the other, with commas or without.

    A comma behind an object is what is left of a list whose brackets were cut off.
    """
    _check_utf8(raw, place)
    text = raw.decode()
    decoder, at = json.JSONDecoder(), 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = len(text)  # parse_json tells what is wrong
        value = parse_json(text[at:end].encode(), place=place, finite=False)
        yield value
        at = end
        after = text[at:].lstrip()
        if isinstance(value, dict) and after.startswith(","):
            at = len(text) - len(after) + 1


WRAPPER_KEYS = frozenset(
    "data rows records examples instances items samples results documents entries "
    "train test validation dataset".split()
)
"""Keys under which tools write a list of rows."""
_DESCRIPTIONS = ("features",)
"""Keys under which the datasets server describes columns."""


def _layout_of(value: Row) -> str:
    """What an object is: ``row``, or a way in which tools write many rows."""
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list):
        named = all(isinstance(name, str) for name in columns)
        fitting = all(isinstance(c, list) and len(c) == len(columns) for c in data)
        if named and fitting and len(set(columns)) == len(columns):
            return "split"
    if _wrapper_key(value) is not None:
        return "wrapped"
    if len(_lists_of_rows(value)) > 1 and WRAPPER_KEYS.issuperset(
        _lists_of_rows(value)
    ):
        return "several"
    if _is_table_of_lists(value):
        return "lists by column"
    objects = _objects_by_key(value)
    if value and len(objects) == len(value):
        if all(key.isdecimal() for key in value):
            return "by row"
        if all(number.isdecimal() for cells in objects.values() for number in cells):
            return "by column"
        if not any("role" in held for held in objects.values()):
            return "objects"
    return "row"


def _wrapper_key(value: Row) -> str | None:
    """The key of the only list of objects, if it is one that tools use for rows."""
    keys = [key for key in _lists_of_rows(value) if key not in _DESCRIPTIONS]
    if len(keys) == 1 and keys[0] in WRAPPER_KEYS:
        return keys[0]
    return None


def _lists_of_rows(value: Row) -> list[str]:
    """The keys under which an object has a list of objects."""
    return [
        key
        for key, held in value.items()
        if isinstance(held, list) and held and all(isinstance(x, dict) for x in held)
    ]


def _is_table_of_lists(value: Row) -> bool:
    """Whether each key is a column, with a list of its cells, texts among them.

    Token ids with their labels are lists, too, and one row: they are numbers alone.
    """
    columns = _lists_by_key(value)
    if len(columns) < max(len(value), 2):
        return False
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or min(lengths) < 2:
        return False
    cells = [cell for column in columns.values() for cell in column]
    has_text = any(isinstance(cell, str) for cell in cells)
    return has_text and not any(isinstance(cell, dict | list) for cell in cells)


def _rows_of_datasets_server(value: Row, path: Path, note: Note) -> list[object]:
    """Return the rows of a page of Hugging Face's datasets server; none: it is none.

    Raises
    ------
    InputError
        If the server has cut cells.
    """
    entries = value.get("rows")
    if not isinstance(entries, list):
        return []

    rows: list[object] = []
    is_cut = False
    for entry in entries:
        if not isinstance(entry, dict) or "row_idx" not in entry:
            return []
        row = entry.get("row")
        if not isinstance(row, dict):
            return []
        rows.append(row)
        is_cut = is_cut or bool(entry.get("truncated_cells"))

    if is_cut:
        what = "holds rows whose cells the datasets server has cut"
        fix = "give the data set itself: hf:OWNER/NAME, or its parquet files"
        raise InputError(what, where=str(path), fix=fix)

    total = value.get("num_rows_total")
    if type(total) is int and total > len(rows):
        note(f"{path}: is a page of {len(rows)} of {total} rows")
    return rows


def _lists_by_key(value: Row) -> dict[str, list[object]]:
    """Return what an object holds that is a list."""
    return {key: held for key, held in value.items() if isinstance(held, list)}


def _objects_by_key(value: Row) -> dict[str, Row]:
    """Return what an object holds that is an object of at least one key."""
    return {key: held for key, held in value.items() if isinstance(held, dict) and held}


def _rows_in_object(value: Row, path: Path, note: Note) -> list[object]:
    """Return the rows that an object holds; it may be a row itself."""
    layout = _layout_of(value)
    lists = _lists_by_key(value)
    if layout == "split":
        note(f"{path}: rows are the lists under 'data', named by 'columns'")
        return [
            dict(zip(lists["columns"], cells, strict=True))
            for cells in lists["data"]
            if isinstance(cells, list)
        ]

    if layout == "wrapped":
        key = _wrapper_key(value)
        assert key is not None
        note(f"{path}: is an object, and its rows are those under '{key}'")
        return _rows_of_datasets_server(value, path, note) or lists[key]

    if layout == "several":
        listed = ", ".join(_lists_of_rows(value))
        what = f"holds several lists of rows ({listed})"
        fix = "save each as a file of its own, such as train.json and test.json"
        raise InputError(what, where=str(path), fix=fix)

    if layout == "objects":
        what = "is an object of objects, and does not say which of them are rows"
        fix = "write its rows as a list of objects, such as orient='records' of pandas"
        raise InputError(what, where=str(path), fix=fix)

    if layout == "lists by column":
        note(f"{path}: is a table by column, with a list of cells each")
        cells_by_row = zip(*lists.values(), strict=True)
        return [dict(zip(lists, cells, strict=True)) for cells in cells_by_row]

    if layout == "by row":
        note(f"{path}: is an object of numbered rows")
        return [*value.values()]

    if layout == "by column":
        columns = _objects_by_key(value)
        numbers = [*next(iter(columns.values()))]
        if any([*cells] != numbers for cells in columns.values()):
            what = "is a table whose columns are of different rows"
            raise InputError(what, where=str(path), fix="export it again")
        note(f"{path}: is a table by column, as pandas writes it")
        return [
            {column: cells[number] for column, cells in columns.items()}
            for number in numbers
        ]
    return [value]
