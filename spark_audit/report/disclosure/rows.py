"""Rows as shared files hold them: withheld where clusters are few, else rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from spark_audit.audits import about
from spark_audit.report.disclosure.rounding import (
    count_of,
    decade,
    rounded,
    rounded_p,
    rounded_up,
    step_of,
    with_digits,
)
from spark_audit.results import Row
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH, WITHHELD, WITHHELD_NOTE

RowT = TypeVar("RowT", bound=Row)

MEANT = ("value", "low", "high", "null", "mde", "at_most")

PS = ("p", "p_adjusted")

FIGURE_COLUMNS = (*MEANT, "parity_low", "parity_high", "null_low", "null_high", *PS)


def _unit(row: Row) -> tuple[str, ...]:
    """Figures with the same key are shown together or not at all."""
    partners = {metric.name: metric.partner for metric in about(row.audit).metrics}
    lead = partners.get(row.metric) or row.metric
    own = (lead,) if lead in partners.values() else (row.metric, row.of)
    place = (row.audit, row.checkpoint, row.over, row.group)
    return (*place, getattr(row, "baseline", ""), *own)


def _whole(row: Row) -> tuple[str, ...] | None:
    """Return the place of the figure of all identifiers, if this is of a part."""
    whole = about(row.audit).whole_of(row.metric, row.of)
    if whole is None:
        return None
    return (*whole, row.checkpoint, row.over, row.group)


def withheld_rows(rows: Sequence[Row]) -> dict[int, str]:
    """Rows that are withheld, by their identity, and why."""
    sizes: dict[tuple[str, ...], int] = {}
    matched: dict[tuple[str, ...] | None, int] = {}
    units: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        place = (row.audit, row.checkpoint, row.group)
        sizes[place] = max(sizes.get(place, 0), row.clusters)
        if row.value is not None:
            matched[_whole(row)] = row.n
        if not about(row.audit).is_of_nobody(row.unit):
            units.setdefault(_unit(row), []).append(row)
    found: dict[int, str] = {}
    parts: dict[tuple[str, ...], list[list[Row]]] = {}
    small: set[tuple[str, ...]] = set()
    for (audit, checkpoint, over, group, *own), unit in units.items():
        part = (audit, checkpoint, over, group.partition(":")[0], *own)
        few, rest = {}, []
        for row in unit:
            size = row.clusters
            if row.value is None:
                # What is not estimable may not say of how many clusters it is not.
                size = sizes[audit, checkpoint, group] or MIN_CLUSTERS_TO_PUBLISH
            whole = (audit, row.metric, row.of, checkpoint, over, group)
            alone = row.n - matched.get(whole, row.n)
            # Without a control are fewer tokens than so many clusters have on average.
            if 0 < alone * row.clusters < MIN_CLUSTERS_TO_PUBLISH * row.n:
                few[id(row)] = WITHHELD_NOTE
            elif size < MIN_CLUSTERS_TO_PUBLISH:
                few[id(row)] = WITHHELD
            elif row.value is not None:
                rest.append(row)
        if few:
            small.add(part)
            found |= few | dict.fromkeys(map(id, rest), WITHHELD_NOTE)
        elif rest:
            parts.setdefault(part, []).append(rest)
    for part in small & parts.keys():
        # Groups may share clusters: several small ones together can be as few.
        least = min(parts[part], key=lambda unit: min(row.clusters for row in unit))
        found |= dict.fromkeys(map(id, least), WITHHELD_NOTE)
    return found


def shown_row(row: RowT, why: str | None = None) -> RowT:
    """The row with rounded figures, or with none and ``why`` they are withheld."""
    known = {k: v for k in FIGURE_COLUMNS if (v := getattr(row, k, None)) is not None}
    if row.value is None:
        return row
    if why is not None:
        empty = {"status": "not_estimable", "interval": "none", "note": why}
        return row.model_copy(update=dict.fromkeys(known) | empty)
    step = step_of(row)
    # Steps from an AUC's null, so that every limit stays on its side of it.
    null = 0.5 if (row.metric, row.null) == ("auc", 0.5) else 0.0
    told: dict[str, Any] = {
        "n": count_of(row.n, row.clusters),
        "level": with_digits(row.level),
    }
    for name, value in known.items():
        if name in PS:
            told[name] = rounded_p(value)
        elif row.unit == "tries":
            told[name] = decade(value)
        elif step is None:
            told[name] = with_digits(value)
        else:
            most = 1.0 if row.unit == "" and abs(value) <= 1 else math.inf
            near = round(null + rounded(value - null, step), 12)
            if name == "mde":
                near = rounded_up(value, step)
            told[name] = max(-most, min(most, near))
    return row.model_copy(update=told)


def row_key(row: Row) -> tuple[object, ...]:
    """Return what tells a row of a report from all others."""
    place = (row.audit, row.checkpoint, getattr(row, "baseline", ""), row.over)
    return (*place, row.metric, row.of, row.group, row.value)
