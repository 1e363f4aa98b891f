"""What a ``report.json`` may hold: checked when it is read, whoever wrote it."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any

from spark_audit.errors import visible

if TYPE_CHECKING:
    pass


def with_visible_text(value: Any) -> Any:
    """Settings or records with all their text visible."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {
            visible(str(key)): with_visible_text(each) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [with_visible_text(each) for each in value]
    return value


_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

_MAX_FIGURE = 1e15

_RESERVED_TABLES = ("results", "contrasts", "guards")


def checked_tables(tables: dict[str, Any]) -> dict[str, Any]:
    """Return tables with visible text; refuse names and records that none can have."""
    for name in tables:
        # They become names of files, whoever wrote the report.
        if not _FILE_NAME.fullmatch(name) or name in _RESERVED_TABLES:
            raise ValueError("the name of a table is letters, digits, _ and -")
        for record in tables[name]:
            _check_record(name, record)
    visible_tables: dict[str, Any] = with_visible_text(tables)
    return visible_tables


_FILE_OF_REPORT = re.compile(
    r"report\.(?!json$)\w+|card\.md|dossier\.html|(?:tables|figures)/[^/\0]+\.\w+"
    r"|scores/[^/\0]+\.parquet"
)


def checked_files(files: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return names of files; refuse one that no report has."""
    for name in chain(*files.values()):
        # They are deleted by these names, whoever wrote the report.
        if not _FILE_OF_REPORT.fullmatch(name):
            raise ValueError("names a file that is none of a report's")
    return files


_DRAWN_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "matching_by_type": (("type", "reasons"), ("matched", "unmatched")),
    "balance": (("covariate",), ()),
    "canary_by_dose": (("checkpoint", "part"), ("dose",)),
    "mia_roc": (("checkpoint", "of"), ("fpr", "tpr", "chance_low", "chance_high")),
    "accuracy_matrix": (("checkpoint",), ("stage",)),
    "stages_states": (("checkpoint", "task", "state"), ("stage",)),
}
"""Tables that figures and pages are made of: their columns of text and of numbers."""

_TEXT_FIELDS = ("checkpoint", "note", "after", "says", "status", "work")

_EITHER = (*_TEXT_FIELDS, "value")


def _check_record(table: str, record: dict[str, Any]) -> None:
    """A record is flat, its numbers are finite, and what is drawn has its columns."""
    texts, numbers = _DRAWN_COLUMNS.get(table, ((), ()))
    for column, value in record.items():
        text = isinstance(value, str)
        number = isinstance(value, int | float) and -_MAX_FIGURE <= value <= _MAX_FIGURE
        misplaced = (
            table in _DRAWN_COLUMNS and text and column not in (*texts, *_EITHER)
        )
        misplaced |= column in _TEXT_FIELDS and not text
        if value is not None and (misplaced or not (text or number)):
            raise ValueError(
                f"table {table} holds something else than text or a number in its place"
            )
    for columns, kind in ((texts, str), (numbers, int | float)):
        for column in columns:
            if not isinstance(record.get(column), kind):
                raise ValueError(f"table {table} lacks {column}")
