"""The field that groups rows: the option ``--by``, and the group of each row.

================  ======================================================================
``--by task``     the task of a row, which the manifest has
``--by F=FILE``   the column ``F`` of a table that has a line per row, with its ``id``
================  ======================================================================

A row without a value is in the group :data:`NOT_STATED`. Values that look like names or
numbers of persons are replaced by numbers, since names of groups stand in files that
are shared; a field of which most values look so is refused, and one with more than
:data:`MAX_GROUPS` values, too.

Errors name columns and files, but no value of a field.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import pandas as pd
from cyclopts import Parameter

from spark_audit.data.person_names import names as person_names
from spark_audit.data.pii import find_identifiers
from spark_audit.errors import InputError, choose
from spark_audit.manifest.schema import Manifest
from spark_audit.options import BY_OPTION

TASK_FIELD = "task"
"""The field of rows that manifests have."""

SINGLE_ROW_FIELDS = ("id", "example", "source", "source_id", "cluster")
"""Fields whose values name single rows, or few: they are no groups."""

NOT_STATED = "not stated"
"""Group of rows without a value."""

OTHER_GROUPS = "other groups"
"""Group of all rows whose own groups are too small to be shown."""

NAMES_OF_OUR_OWN = (NOT_STATED, OTHER_GROUPS, "*")
"""Names that mean something else, so that no value of a field may have them."""

MAX_GROUPS = 50
"""Most values of a field. Each is a test, and makes those of the others stricter."""

MAX_LETTERS = 60
"""Most letters of a group's name; a longer value is text."""

MAX_DIGITS = 5
"""Most digits of a group's name; a value with more looks like a number of a person."""

MAX_NAMES_SHOWN = 200
"""Most characters of names of columns in an error."""

FILE_ADVICE = "write --by FIELD=FILE: a table with the columns id and FIELD"

READERS_OF_TEXT_TABLES: Mapping[str, Callable[[Path], pd.DataFrame]] = {
    # Text stays as it is written: a code such as 007, or NA for Namibia.
    ".csv": lambda path: pd.read_csv(path, dtype=str, keep_default_na=False),
    ".tsv": lambda path: pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False),
    ".jsonl": lambda path: pd.read_json(path, lines=True, dtype=False),
    ".parquet": pd.read_parquet,
}
"""File suffix -> reader of a table; no reader unpickles."""

ByOption: TypeAlias = Annotated[
    str | None,
    Parameter(
        metavar="FIELD[=FILE]",
        help="figures by group of rows, and the group that leaks most: `task`, or a "
        "column of a table with the ids of rows",
    ),
]
"""Type of the option, a field of each audit that has it."""


class GroupField(NamedTuple):
    """The field that an option names, and the file that has its values.

    ``path`` is None where the manifest has them.
    """

    name: str
    path: Path | None

    @classmethod
    def of_option(cls, text: str) -> GroupField:
        """Return the field of the option's value, ``FIELD`` or ``FIELD=FILE``.

        Raises
        ------
        InputError
            If it names no field that can group rows.
        """
        name, equals, file = (part.strip() for part in text.partition("="))
        if not name or bool(equals) != bool(file) or not name.isprintable():
            raise InputError(
                "names no field",
                where=BY_OPTION,
                fix=f"write {TASK_FIELD}, or FIELD=FILE",
            )
        if name in SINGLE_ROW_FIELDS:
            raise InputError(
                f"{name!r} names single rows or sources, which are no groups",
                where=BY_OPTION,
                fix=f"give a field of 2 to {MAX_GROUPS} values, such as {TASK_FIELD}",
            )
        if not file and name != TASK_FIELD:
            raise InputError(
                f"the rows of a manifest have no field {name!r}",
                where=BY_OPTION,
                fix=f"{choose(name, [TASK_FIELD])}; "
                f"for a field of your data {FILE_ADVICE}",
            )
        return cls(name, Path(os.path.expanduser(file)) if file else None)

    @property
    def where(self) -> str:
        """Its place in errors."""
        return f"{BY_OPTION} {self.name}"


class RowGroups(NamedTuple):
    """The group of each row, by the row's id.

    ``n_numbered`` counts the groups that have a number in place of their value.
    """

    name_by_row: Mapping[str, str]
    n_numbered: int


def row_groups(field: GroupField, manifest: Manifest) -> RowGroups:
    """Return the group of each row of a manifest.

    Raises
    ------
    InputError
        If the file cannot be read or is of other rows, or if the values of the field
        are no groups.
    """
    if field.path is None:
        value_by_row = {example.id: example.task for example in manifest.examples}
    else:
        ids = [example.id for example in manifest.examples]
        value_by_row = _values_of_file(field, field.path, ids)

    values = sorted({*value_by_row.values()} - {""})
    _check_values(values, field, has_empty="" in value_by_row.values())
    name_by_value = _names_of_values(values, field)
    name_by_row = {
        row: name_by_value.get(value, NOT_STATED) for row, value in value_by_row.items()
    }
    n_numbered = sum(name != value for value, name in name_by_value.items())
    return RowGroups(name_by_row, n_numbered)


def _values_of_file(
    field: GroupField, path: Path, ids: Iterable[str]
) -> dict[str, str]:
    """Return the value of each row from a table; empty: it has none."""
    table = _table(field, path)
    values = table[field.name].map(_as_text)
    keys = table["id"].map(_as_text)
    if values.isna().any():
        raise InputError(
            f"column {field.name!r} holds lists or objects, which are no groups",
            where=f"{BY_OPTION} {path}",
            fix="give a column of words or whole numbers",
        )

    pairs = pd.DataFrame({"id": keys, "value": values}).drop_duplicates()
    if pairs["id"].duplicated().any():
        raise InputError(
            f"gives two values of {field.name!r} to one id",
            where=f"{BY_OPTION} {path}",
            fix="leave one line per id",
        )

    value_by_id = dict(zip(pairs["id"], pairs["value"], strict=True))
    value_by_row = {row: value_by_id.get(row, "") for row in ids}
    if not value_by_id.keys() & value_by_row.keys():
        raise InputError(
            "holds no id of a row of the manifest",
            where=f"{BY_OPTION} {path}",
            fix="give the ids of the data that the manifest was built from",
        )
    return value_by_row


def _table(field: GroupField, path: Path) -> pd.DataFrame:
    """Return the table of a file, which has the columns ``id`` and that of the field.

    Raises
    ------
    InputError
        If it cannot be read, or lacks a column.
    """
    where = f"{BY_OPTION} {path}"
    suffix = path.suffix.lower()
    if suffix not in READERS_OF_TEXT_TABLES:
        raise InputError(
            "is no table", where=where, fix=f"give {', '.join(READERS_OF_TEXT_TABLES)}"
        )
    try:
        table = READERS_OF_TEXT_TABLES[suffix](path)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=where) from error
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError("cannot be read as a table", where=where) from None

    columns = [str(column) for column in table.columns]
    shown = ", ".join(columns)[:MAX_NAMES_SHOWN]
    for column in ("id", field.name):
        if column not in columns:
            raise InputError(
                f"has no column {column!r}", where=where, fix=f"columns: {shown}"
            )
    return table


def _as_text(value: object) -> str | None:
    """Return a cell of a table as text; empty for a missing one, None for a list."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value.strip()

    # A column of whole numbers with gaps is read as numbers with a point.
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    # Libraries have many types of numbers; lists and objects are no scalars.
    return str(value) if pd.api.types.is_scalar(value) else None


def _check_values(values: list[str], field: GroupField, *, has_empty: bool) -> None:
    """Refuse values that make no groups: only one, or very many."""
    if len(values) > MAX_GROUPS:
        raise InputError(
            f"has {len(values)} values in these rows: it names rows or persons rather "
            "than groups",
            where=field.where,
            fix=f"give a field of at most {MAX_GROUPS} values",
        )

    n_groups = len(values) + has_empty
    if n_groups < 2:
        what = "has only one value" if values else "has no value"
        raise InputError(
            f"{what} in these rows, so that there is nothing to compare",
            where=field.where,
            fix="give a field of at least two values, or leave it out",
        )


def _names_of_values(values: list[str], field: GroupField) -> dict[str, str]:
    """Return the name of each value: itself, or a number where that must not be shown.

    Numbers are those of the values in their order, from 1.

    Raises
    ------
    InputError
        If more than half of the values look like persons.
    """
    n_personal = sum(looks_personal(value) for value in values)
    if 2 * n_personal > len(values):
        raise InputError(
            f"{n_personal} of its {len(values)} values look like names or numbers of "
            "persons, which are no groups",
            where=field.where,
            fix="give a field whose values name kinds of rows",
        )

    name_by_value = {}
    for number, value in enumerate(values, start=1):
        is_name = is_plain(value) and not looks_personal(value)
        name_by_value[value] = value if is_name else f"group {number}"

    # A value may itself be called as another one's number.
    if len({*name_by_value.values()}) < len(values):
        return {value: f"group {i}" for i, value in enumerate(values, start=1)}
    return name_by_value


def is_plain(value: str) -> bool:
    """Return whether a value can be the name of a group as it is.

    Examples
    --------
    >>> is_plain("de"), is_plain("other groups"), is_plain("a]")
    (True, False, False)
    """
    is_short = 0 < len(value) <= MAX_LETTERS
    is_free = value not in NAMES_OF_OUR_OWN and "]" not in value
    return is_short and is_free and value.isprintable()


def looks_personal(value: str) -> bool:
    """Return whether a value looks like a name, an address or a number of a person.

    A single given name or surname does not: it may be a place or a word, too.

    Examples
    --------
    >>> looks_personal("cardiology"), looks_personal("John Smith")
    (False, True)
    >>> looks_personal("anna@example.org"), looks_personal("987-65-4321")
    (True, True)
    """
    n_digits = sum(character.isdigit() for character in value)
    if "@" in value or n_digits > MAX_DIGITS:
        return True
    return bool(find_identifiers(value)) or bool(list(person_names(value)))
