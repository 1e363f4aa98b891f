"""Find the rows in a JSON object, in the layouts that tools write.

An object may be a single row, hold a list of rows under a key, or be a table of pandas.
A further layout gets a name in :data:`Layout`, a condition in :func:`layout_of` and its
rows in :func:`rows_in_object`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from spark_audit.errors import InputError
from spark_audit.json_values import Row

Layout = Literal[
    "row",
    "split",
    "wrapped",
    "several",
    "lists by column",
    "by row",
    "by column",
    "objects",
]

WRAPPER_KEYS = frozenset(
    "data rows records examples instances items samples results documents entries "
    "train test validation dataset".split()
)
"""Keys under which tools write a list of rows."""
_DESCRIPTIONS = ("features",)
"""Keys under which the datasets server lists descriptions of columns, not rows."""


def layout_of(value: Row) -> Layout:
    """Return the layout of an object: the first one that fits.

    ::

        split            {"columns": [names], "data": [[cells], ...]}
        wrapped          one list of objects, under a usual key
        several          several such lists: nothing says which are the rows
        lists by column  {"a": [cells], "b": [cells]}, as pandas' orient="list"
        row              the object itself is a row: a value is no object
        by row           {"0": {row}, "1": {row}}, as orient="index"
        by column        {"a": {"0": cell, "1": cell}}, as orient="columns"
        row              chat messages by name: parts of one row
        objects          other objects: nothing says which are the rows
    """
    if _is_split(value):
        return "split"
    if _wrapper_key(value) is not None:
        return "wrapped"

    # {"train": [...], "test": [...]}: the split of a row must not be guessed.
    keys_of_lists = _lists_of_rows(value)
    if len(keys_of_lists) > 1 and WRAPPER_KEYS.issuperset(keys_of_lists):
        return "several"
    if _is_table_of_lists(value):
        return "lists by column"

    # The other layouts hold only objects, while a row holds at least one text.
    objects = _objects_by_key(value)
    if not value or len(objects) < len(value):
        return "row"
    if all(key.isdecimal() for key in value):
        return "by row"
    if all(_is_numbered(cells) for cells in objects.values()):
        return "by column"
    # Chat messages by name are parts of one row.
    if any("role" in entries for entries in objects.values()):
        return "row"
    return "objects"


def _is_split(value: Row) -> bool:
    """Return whether an object has a list of names and a list of rows of cells."""
    names = value.get("columns")
    rows = value.get("data")
    if not isinstance(names, list) or not isinstance(rows, list):
        return False
    if not all(isinstance(name, str) for name in names):
        return False
    if len(set(names)) < len(names):
        return False
    return all(isinstance(cells, list) and len(cells) == len(names) for cells in rows)


def _is_numbered(cells: Row) -> bool:
    """Return whether all keys of an object are row numbers."""
    return all(number.isdecimal() for number in cells)


def _wrapper_key(value: Row) -> str | None:
    """Return the key of the only list of objects, if it is a key that tools use."""
    # A list under any other key may hold the messages of one row.
    keys = [key for key in _lists_of_rows(value) if key not in _DESCRIPTIONS]
    if len(keys) == 1 and keys[0] in WRAPPER_KEYS:
        return keys[0]
    return None


def _lists_of_rows(value: Row) -> list[str]:
    """Return the keys whose value is a list of objects."""
    keys = []
    for key, items in _lists_by_key(value).items():
        if items and all(isinstance(item, dict) for item in items):
            keys.append(key)
    return keys


def _is_table_of_lists(value: Row) -> bool:
    """Return whether every key is a column with a list of cells, some of them texts.

    Token ids with labels are lists of numbers only, and therefore one row.
    """
    columns = _lists_by_key(value)
    if len(columns) < max(len(value), 2):
        return False
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or min(lengths) < 2:
        return False

    has_text = False
    for column in columns.values():
        for cell in column:
            if isinstance(cell, dict | list):
                return False
            has_text = has_text or isinstance(cell, str)
    return has_text


def _lists_by_key(value: Row) -> dict[str, list[object]]:
    """Return the values of an object that are lists."""
    return {key: items for key, items in value.items() if isinstance(items, list)}


def _objects_by_key(value: Row) -> dict[str, Row]:
    """Return the values of an object that are objects with at least one key."""
    return {
        key: entries
        for key, entries in value.items()
        if isinstance(entries, dict) and entries
    }


def rows_in_object(value: Row, path: Path, note: Callable[[str], None]) -> list[object]:
    """Return the rows that an object holds; the object may itself be a row.

    Parameters
    ----------
    note
        Receives a note on where the rows stand, if that is not obvious.

    Raises
    ------
    InputError
        If it is unclear which of its lists or objects are the rows.
    """
    layout = layout_of(value)
    if layout == "row":
        return [value]
    if layout == "several":
        raise InputError(
            f"holds several lists of rows ({', '.join(_lists_of_rows(value))})",
            where=str(path),
            fix="save each as a file of its own, such as train.json and test.json",
        )
    if layout == "objects":
        raise InputError(
            "is an object of objects, and does not say which of them are rows",
            where=str(path),
            fix="write its rows as a list of objects, such as orient='records' of "
            "pandas",
        )

    if layout == "split":
        note(f"{path}: rows are the lists under 'data', named by 'columns'")
        return _split_rows(value)
    if layout == "wrapped":
        key = _wrapper_key(value)
        assert key is not None  # the layout guarantees it
        note(f"{path}: is an object, and its rows are those under '{key}'")
        # A page of the datasets server has rows inside of its objects.
        rows_of_page = _rows_of_datasets_server(value, path, note)
        return rows_of_page or _lists_by_key(value)[key]
    if layout == "lists by column":
        note(f"{path}: is a table by column, with a list of cells each")
        columns = _lists_by_key(value)
        cells_by_row = zip(*columns.values(), strict=True)
        return [dict(zip(columns, cells, strict=True)) for cells in cells_by_row]
    if layout == "by row":
        note(f"{path}: is an object of numbered rows")
        return list(value.values())

    assert layout == "by column"  # the only one that is left
    rows = _rows_of_columns(value, path)
    note(f"{path}: is a table by column, as pandas writes it")
    return rows


def _split_rows(value: Row) -> list[object]:
    """Return the rows of pandas' orient="split"."""
    lists = _lists_by_key(value)
    names = lists["columns"]
    rows: list[object] = []
    for cells in lists["data"]:
        assert isinstance(cells, list)  # the layout guarantees it
        rows.append(dict(zip(names, cells, strict=True)))
    return rows


def _rows_of_columns(value: Row, path: Path) -> list[object]:
    """Return the rows of pandas' orient="columns".

    Raises
    ------
    InputError
        If the columns have different row numbers.
    """
    columns = _objects_by_key(value)
    row_numbers = list(next(iter(columns.values())))
    if any(list(cells) != row_numbers for cells in columns.values()):
        raise InputError(
            "is a table whose columns are of different rows",
            where=str(path),
            fix="export it again",
        )

    rows: list[object] = []
    for number in row_numbers:
        rows.append({column: cells[number] for column, cells in columns.items()})
    return rows


def _rows_of_datasets_server(
    value: Row, path: Path, note: Callable[[str], None]
) -> list[object]:
    """Return the rows of a page of Hugging Face's datasets server; empty for others.

    Raises
    ------
    InputError
        If the server has cut cells short.
    """
    entries = value.get("rows")
    if not isinstance(entries, list):
        return []

    rows: list[object] = []
    has_cut_cells = False
    for entry in entries:
        if not isinstance(entry, dict) or "row_idx" not in entry:
            return []
        row = entry.get("row")
        if not isinstance(row, dict):
            return []
        rows.append(row)
        has_cut_cells = has_cut_cells or bool(entry.get("truncated_cells"))

    # Half a text would be audited as if it were whole.
    if has_cut_cells:
        raise InputError(
            "holds rows whose cells the datasets server has cut",
            where=str(path),
            fix="give the data set itself: hf:OWNER/NAME, or its parquet files",
        )

    n_rows_in_all = value.get("num_rows_total")
    if type(n_rows_in_all) is int and n_rows_in_all > len(rows):
        note(f"{path}: is a page of {len(rows)} of {n_rows_in_all} rows")
    return rows
