"""The groups of units, as a column of the evidence and facts that say what it is.

The column is named after its field, so that evidence of reports by different fields
can be united. Evidence may come from somebody else, and is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.groups.field import NOT_STATED, GroupField, row_groups
from spark_audit.manifest.schema import Manifest
from spark_audit.results.evidence import Evidence

FIELD_FACT = "by"
"""Fact of the evidence: the name of the field."""

NUMBERED_FACT = "by_numbered"
"""Fact of the evidence: how many groups have a number in place of their value."""


class UnitGroups(NamedTuple):
    """The groups of the units of some evidence.

    Attributes
    ----------
    field
        Name of the field.
    names
        Shape ``(units,)``: name of each unit's group; empty: the unit is in none.
    n_numbered
        Groups that have a number in place of their value.
    """

    field: str
    names: np.ndarray
    n_numbered: int


class GroupColumn(NamedTuple):
    """The column of groups that an audit adds to its units, and the facts beside it."""

    name: str
    values: list[str]
    facts: dict[str, Any]


def check_groups(by: str | None, manifest: Manifest) -> None:
    """Refuse a field that cannot group the rows of a manifest, before any scoring."""
    if by is not None:
        row_groups(GroupField.of_option(by), manifest)


def files_of_groups(by: str | None) -> list[Path]:
    """Return the file that the option names, in a list; empty: it names none."""
    path = GroupField.of_option(by).path if by is not None else None
    return [] if path is None else [path]


def group_column(
    by: str | None, manifest: Manifest, rows: Iterable[str]
) -> GroupColumn | None:
    """Return the column of groups; None without the option.

    Parameters
    ----------
    by
        Value of the option.
    rows
        Id of the row of each unit; an unknown one is in no group.
    """
    if by is None:
        return None

    field = GroupField.of_option(by)
    groups = row_groups(field, manifest)
    values = [groups.name_by_row.get(row, "") for row in rows]
    facts = {FIELD_FACT: field.name, NUMBERED_FACT: groups.n_numbered}
    return GroupColumn(column_of(field.name), values, facts)


def column_of(field: str) -> str:
    """Return the name of the column that has the groups of a field."""
    return f"by {field}"


def groups_of_units(evidence: Evidence) -> UnitGroups | None:
    """Return the groups of the units of some evidence; None: it has none."""
    field = evidence.facts.get(FIELD_FACT)
    if not isinstance(field, str) or column_of(field) not in evidence.units:
        return None

    # Units that only another report has lack the column, if reports were united.
    column = evidence.units[column_of(field)]
    names = column.where(column.notna(), NOT_STATED).astype(str).to_numpy()

    n_numbered = evidence.facts.get(NUMBERED_FACT)
    if not isinstance(n_numbered, int) or n_numbered < 0:
        n_numbered = 0
    return UnitGroups(field, names, n_numbered)


def with_column(units: pd.DataFrame, column: GroupColumn | None) -> pd.DataFrame:
    """Return the units with their groups, if there are any."""
    if column is None:
        return units
    return units.assign(**{column.name: column.values})
