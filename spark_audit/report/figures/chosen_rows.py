"""The rows of a report that a figure shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import pandas as pd

from spark_audit.names import entry_of
from spark_audit.results import Report, Row

if TYPE_CHECKING:
    pass
from spark_audit.report.figures.styling import palette

RowT = TypeVar("RowT", bound=Row)


def rows_of(
    report: Report, audit: str, metric: str, *, of: str = "", group: str = "pooled"
) -> dict[str, Row]:
    """Checkpoint -> its row; one row an entry, with the widest interval there is."""
    chosen = chosen_of(report, report.results, audit, metric, of, group)
    return {name: row for (name, _), row in chosen.items()}


def chosen_of(
    report: Report, rows: Sequence[RowT], *wanted: str
) -> dict[tuple[str, str], RowT]:
    """(checkpoint, baseline) -> its row of an audit, metric, variant and group."""
    best: dict[tuple[str, str], tuple[tuple[bool, bool, float], RowT]] = {}
    for row in rows:
        if (row.audit, row.metric, row.of, row.group) == wanted:
            low, high = row.ends or (0.0, -1.0)
            both = row.over == "both" and high > low
            rank = row.value is not None, both, high - low
            key = row.checkpoint, getattr(row, "baseline", "")
            if key not in best or rank > best[key][0]:
                best[key] = rank, row
    places, names = palette(report) | {"": 0}, {name for name, _ in best}
    # Of a method that has a row of its own, its replicates' are left out.
    kept = [key for key in best if entry_of(key[0]) not in names - {key[0]}]
    kept.sort(key=lambda key: (places[key[0]], places[key[1]]))
    return {key: best[key][1] for key in kept}


def frame_of(
    report: Report, table: str, *columns: str, also: Sequence[str] = ()
) -> pd.DataFrame:
    """Records of a table that lack none of the columns, with the ``entry`` of each.

    They stand in the order of checkpoints; ``also`` are columns that may be missing.
    """
    needed = ["checkpoint", *columns]
    frame = pd.DataFrame(report.tables.get(table, []), columns=[*needed, *also])
    frame = frame.dropna(subset=needed)
    frame["entry"] = frame["checkpoint"].map(entry_of)
    places = palette(report)
    return frame.sort_values("checkpoint", key=lambda at: at.map(places), kind="stable")
