"""Find the columns of other people's rows by their usual names, and read their cells.

An error names the columns of a row only if they cannot be data themselves: in a CSV
without a line of names, the first row stands in that place.
"""

from __future__ import annotations

import math
import re

from spark_audit.data.examples import bad_field
from spark_audit.json_values import Row

COLUMNS_OF_LAYOUT = {
    "own": {"prompt": "prompt", "response": "response"},
    "trace": {"prompt": "prompt", "response": "answer"},
    "olora": {"prompt": "sentence", "response": "label"},
    "simple": {"prompt": "text", "response": "label"},
}
"""Usual column names of prompt and response, by the project that uses them."""
_USUAL_NAMES = frozenset(
    name for names in COLUMNS_OF_LAYOUT.values() for name in names.values()
)
_PLAIN_LOWER_NAME = re.compile(r"[a-z]+(_[a-z]+)*")
_MOST_LISTED = 20
_MOST_LETTERS = 40
"""Most columns that an error lists, and most letters of each."""


def usual_column(row: Row, name: str) -> str:
    """Return the column of a usual name, or the only one that differs only in case.

    The result is empty if there is none, or if several differ only in case.
    """
    if name in row:
        return name
    columns = [column for column in row if column.lower() == name]
    return columns[0] if len(columns) == 1 else ""


def listed_columns(row: Row) -> str:
    """Return the row's columns for an error, unless they may be text of a row."""
    # One usual name is enough to show that the first line holds names.
    columns = [str(column) for column in row]
    has_usual_name = not _USUAL_NAMES.isdisjoint(columns)
    are_plain = all(_PLAIN_LOWER_NAME.fullmatch(column) for column in columns)
    if has_usual_name or are_plain:
        names = [
            column[:_MOST_LETTERS]
            for column in columns[:_MOST_LISTED]
            if column.isprintable()
        ]
        return f"columns: {', '.join(names)}"
    return (
        f"its {len(columns)} columns are not shown, as they may be data: does the "
        "first line hold names?"
    )


def text_in(row: Row, column: str) -> str | None:
    """Return a column's text, with numbers and truth values as JSON writes them.

    ``None`` stands for a missing value, such as NaN.

    Raises
    ------
    InputError
        If the column is missing or holds another kind of value.
    """
    if column not in row:
        raise bad_field(
            column,
            f"is not a column ({listed_columns(row)})",
            fix="name a column of the row",
        )

    value = row[column]
    # bool comes first, because True is also an int.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    raise bad_field(
        column,
        "is not text",
        fix="make the column one of text, numbers or truth values",
    )


def name_in(row: Row, column: str | None) -> str:
    """Return an id, a source or a split as text; empty if the row has none.

    Parameters
    ----------
    column
        Name of the column; ``None`` or empty if there is none.

    Raises
    ------
    InputError
        If the column is missing or holds another kind of value.
    """
    if not column:
        return ""
    if column not in row:
        raise bad_field(
            column,
            f"is not a column ({listed_columns(row)})",
            fix="name a column of the row",
        )

    # A truth value is also an int, but not a name.
    value = row[column]
    if value is None or value == "":
        return ""
    if type(value) is int:
        return str(value)

    if not isinstance(value, str):
        raise bad_field(column, "is not text", fix="make the column one of text")
    if not value.strip():
        raise bad_field(column, "is blank", fix="leave the row out")
    return value
