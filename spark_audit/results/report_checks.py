"""Checks of the parts of a ``report.json`` that have no type of their own.

They run whenever a :class:`~spark_audit.results.report.Report` is made or read: a file
may come from somebody else. Names must not lead out of the report's folder, and tables
that figures and pages are drawn from must have their columns. A new table that is drawn
needs a line in :data:`_COLUMNS_OF_DRAWN`; other tables need nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from spark_audit.errors import visible
from spark_audit.results.rows import resolvable_p

ReportTables: TypeAlias = dict[str, list[dict[str, Any]]]
"""Name of a table -> its records."""

RESERVED_TABLES = ("results", "contrasts", "guards")
"""Names of a report's lists, which no further table can have."""

ACCURACY_MATRIX = "accuracy_matrix"
"""Table with a column for each task, whose names are the user's."""

ACCURACY_PLACES = ("checkpoint", "stage", "after")
"""Columns of the accuracy matrix that are no tasks."""

_PREFIX_OF_TASK = "task:"
"""What stands before a task that has the name of such a column. No name of a task has a
colon."""

_NAME_OF_TABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

_FILE_OF_REPORT = re.compile(
    r"report\.(?!json$)\w+|card\.md|dossier\.html"
    r"|(?:tables|figures|exact)/[^/\0]+\.\w+"
    r"|eee/data(?:/(?!\.\.?/)[^/\0]+){3}/[0-9a-f-]{36}\.json"
    r"|scores/[^/\0]+\.parquet"
)
"""Files that a report may list as its own; ``report.json`` is not one of them, since
the next report must not delete it."""

MAX_FIGURE = 1e15
"""Largest absolute value of a number in a table."""


class _DrawnColumns(NamedTuple):
    """The columns of text and of numbers that each record of a table must have."""

    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


_COLUMNS_OF_DRAWN: Mapping[str, _DrawnColumns] = {
    "matching_by_type": _DrawnColumns(
        texts=("type", "reasons"), numbers=("matched", "unmatched")
    ),
    "balance": _DrawnColumns(texts=("covariate",)),
    "canary_by_dose": _DrawnColumns(texts=("checkpoint", "part"), numbers=("dose",)),
    "mia_roc": _DrawnColumns(
        texts=("checkpoint", "variant"),
        numbers=("fpr", "tpr", "chance_low", "chance_high"),
    ),
    ACCURACY_MATRIX: _DrawnColumns(texts=("checkpoint",), numbers=("stage",)),
    "stages_states": _DrawnColumns(
        texts=("checkpoint", "task", "state"), numbers=("stage",)
    ),
}
"""Tables that figures and pages are drawn from -> the columns that they need."""

WRITTEN_COLUMNS = ("checkpoint", "note", "after", "says", "status")
"""Columns that hold text in every table that has them."""

_TEXT_OR_NUMBER = "value"
"""The column that holds text in some records, and a number in others."""


def with_visible_text(value: Any) -> Any:
    """Return settings or records with the invisible characters of texts written out."""
    if isinstance(value, str):
        return visible(value)
    # The names of settings and columns can come from somebody else, too.
    if isinstance(value, dict):
        return {
            visible(str(key)): with_visible_text(item) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [with_visible_text(item) for item in value]
    return value


def column_of_task(task: str) -> str:
    """Return the column of a task in the accuracy matrix.

    >>> column_of_task("reviews"), column_of_task("stage")
    ('reviews', 'task:stage')
    """
    return f"{_PREFIX_OF_TASK}{task}" if task in ACCURACY_PLACES else task


def task_of_column(column: str) -> str:
    """Return the task of a column, the reverse of :func:`column_of_task`."""
    return column.removeprefix(_PREFIX_OF_TASK)


def checked_tables(tables: ReportTables) -> ReportTables:
    """Return tables with visible text, and refuse invalid names and records.

    Raises
    ------
    ValueError
        If a name or a record is invalid. The message shows no contents of the table.
    """
    for name, records in tables.items():
        # Names of tables become file names, so none may lead out of the folder.
        if not _NAME_OF_TABLE.fullmatch(name) or name in RESERVED_TABLES:
            raise ValueError("the name of a table is letters, digits, _ and -")
        for record in records:
            _check_values(name, record)
            _check_drawn_columns(name, record)

    visible_tables: ReportTables = with_visible_text(tables)
    for name, records in visible_tables.items():
        # The columns of this one are tasks, whose names are the user's.
        if name == ACCURACY_MATRIX:
            continue
        for record in records:
            _raise_zero_p(record)
    return visible_tables


def _raise_zero_p(record: dict[str, Any]) -> None:
    """Replace p values that underflowed to 0, as :func:`resolvable_p` does.

    Other values stay: a column such as ``log_p`` of somebody's audit is below 0.
    """
    for column, value in record.items():
        is_p_column = "p" in column.split("_")
        if is_p_column and isinstance(value, float) and value == 0:
            record[column] = resolvable_p(value)


def checked_files(files: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the names of files, and refuse a name that no report writes.

    Raises
    ------
    ValueError
        If there is such a name.
    """
    for names in files.values():
        for name in names:
            # The next report deletes these files, so a name must not lead elsewhere.
            if not _FILE_OF_REPORT.fullmatch(name):
                raise ValueError("names a file that is none of a report's")
    return files


def _check_values(table: str, record: Mapping[str, object]) -> None:
    """Refuse a record that is nested, or has text in place of numbers or the reverse.

    Any column may hold ``None``. Numbers are finite and not too large to be drawn.
    """
    for column, value in record.items():
        if value is None:
            continue

        # A NaN fails the comparison, too.
        is_text = isinstance(value, str)
        is_number = (
            isinstance(value, int | float) and -MAX_FIGURE <= value <= MAX_FIGURE
        )
        is_plain = is_text or is_number
        lacks_text = column in _text_columns(table) and not is_text
        has_text_for_number = is_text and not _may_hold_text(table, column)
        if not is_plain or lacks_text or has_text_for_number:
            raise ValueError(
                f"table {table} holds something else than text or a number in its place"
            )


def _text_columns(table: str) -> tuple[str, ...]:
    """Return the columns of a table that hold text wherever they are."""
    # Other columns are tasks, one of which may have the name "status".
    if table == ACCURACY_MATRIX:
        return ("checkpoint", "after")
    return WRITTEN_COLUMNS


def _may_hold_text(table: str, column: str) -> bool:
    """Return whether a column of a table may hold text.

    Only tables that are drawn have known number columns.
    """
    if table not in _COLUMNS_OF_DRAWN:
        return True
    if table == ACCURACY_MATRIX:
        return column in _text_columns(table)

    columns_of_text = (
        *_COLUMNS_OF_DRAWN[table].texts,
        *WRITTEN_COLUMNS,
        _TEXT_OR_NUMBER,
    )
    return column in columns_of_text


def _check_drawn_columns(table: str, record: Mapping[str, object]) -> None:
    """Refuse a record that lacks a column which its figures and pages need."""
    needed = _COLUMNS_OF_DRAWN.get(table, _DrawnColumns())
    for column in needed.texts:
        if not isinstance(record.get(column), str):
            raise ValueError(f"table {table} lacks {column}")

    for column in needed.numbers:
        if not isinstance(record.get(column), int | float):
            raise ValueError(f"table {table} lacks {column}")
