"""Find the columns of other people's rows by their usual names, and read their cells.

An error names the columns of a row only if they cannot be data themselves: in a CSV
without a line of names, the first row stands in that place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from spark_audit.data.chat.formats import is_chat
from spark_audit.data.csv_rows import TextLine
from spark_audit.data.examples import bad_field
from spark_audit.errors import InputError
from spark_audit.json_values import Row

COLUMNS_OF_LAYOUT = {
    "own": {"prompt": "prompt", "response": "response"},
    "trace": {"prompt": "prompt", "response": "answer"},
    "olora": {"prompt": "sentence", "response": "label"},
    "simple": {"prompt": "text", "response": "label"},
}
"""Usual column names of prompt and response, by the project that uses them.

A further layout is added here. ``trace`` and ``olora`` are also values of ``--format``,
which admit only their own layout.
"""
_USUAL_NAMES = frozenset(
    name for names in COLUMNS_OF_LAYOUT.values() for name in names.values()
)
_PLAIN_LOWER_NAME = re.compile(r"[a-z]+(_[a-z]+)*")
_MOST_LISTED = 20
"""Most columns that an error lists."""
_MOST_LETTERS = 40
"""Most letters of each column name that an error lists."""


def usual_column(row: Row, name: str) -> str:
    """Return the column of a usual name, or the only one that differs only in case.

    The result is empty if there is none, or if several differ only in case.
    """
    if name in row:
        return name
    columns = [column for column in row if column.lower() == name]
    return columns[0] if len(columns) == 1 else ""


def columns_of_fields(
    row: Row, *, mapped: Mapping[str, str], format: str, needs_prompt: bool
) -> dict[str, str]:
    """Return the column of each field: the mapped one, or else a usual name.

    Parameters
    ----------
    mapped
        Column of each field that the user named; empty: the field has no column.
    format
        The import's format; a key of :data:`COLUMNS_OF_LAYOUT` admits only this layout.
    needs_prompt
        Whether the prompt must have a column, as no template makes it.

    Returns
    -------
    dict
        Field -> column. ``prompt`` (if needed) and ``response`` are always in it; their
        column is empty if the row has none.

    Raises
    ------
    InputError
        If prompt or response has no column.
    """
    column_of_field: dict[str, str] = {}
    for field in ("id", "source_id"):
        if field in row:
            column_of_field[field] = field
    column_of_split = usual_column(row, "split")
    if column_of_split:
        column_of_field["split"] = column_of_split

    # Options win over usual names, and a file of plain lines has no columns at all.
    if isinstance(row, TextLine):
        column_of_field |= {"prompt": "text", "response": ""}
    column_of_field |= mapped

    needed = {"prompt", "response"} if needs_prompt else {"response"}
    needed -= column_of_field.keys()

    # One layout must provide all needed fields: a "text" column beside "answer" may be
    # anything.
    layouts = list(COLUMNS_OF_LAYOUT.values())
    if format in COLUMNS_OF_LAYOUT:
        layouts = [COLUMNS_OF_LAYOUT[format]]
    for usual_names in layouts:
        columns = {field: usual_column(row, usual_names[field]) for field in needed}
        if all(columns.values()):
            return column_of_field | columns
    raise _no_column(row, needed, layouts)


def _no_column(row: Row, needed: set[str], layouts: list[dict[str, str]]) -> InputError:
    """Return the error of a row that lacks a column with a usual name.

    Parameters
    ----------
    needed
        The needed fields, one of which has no column.
    layouts
        Usual column names by field, one map per layout.
    """
    if is_chat(row):
        return bad_field(
            "prompt",
            "has no column of a usual name: the row is chat data",
            fix="give `--chat-template CHECKPOINT`, whose tokenizer it was "
            "trained with, or name columns by `--map` and `--template`",
        )

    # A field that is missing in every layout is named before one that only lacks its
    # partner.
    absent = set()
    for field in needed:
        if not any(usual_column(row, usual_names[field]) for usual_names in layouts):
            absent.add(field)
    missing = min(absent or needed)
    otherwise = " or `--template`" if missing == "prompt" else ", or `--map response=`"
    return bad_field(
        missing,
        f"has no column of a usual name ({listed_columns(row)})",
        fix=f"give `--map {missing}=COLUMN`{otherwise}",
    )


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
