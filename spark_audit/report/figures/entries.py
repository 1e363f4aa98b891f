"""Which rows and records of a report a figure shows: entries before replicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pandas as pd

from spark_audit.names import BASE, entry_of, series_of
from spark_audit.results import Contrast, Report, Row, grouped

R = TypeVar("R", bound=Row)


def rows_of(
    report: Report, audit: str, metric: str, *, of: str = "", group: str = "pooled"
) -> dict[str, Row]:
    """Checkpoint -> its row; one row an entry, with the widest interval there is."""
    wanted = (audit, metric, of, group)
    chosen = _chosen(report, report.results, wanted)
    return {name: row for (name, _), row in chosen.items()}


def contrasts_of(
    report: Report, audit: str, metric: str
) -> dict[tuple[str, str], Contrast]:
    """(checkpoint, baseline) -> its pooled contrast, chosen as in ``rows_of``."""
    return _chosen(report, report.contrasts, (audit, metric, "", "pooled"))


def _chosen(
    report: Report, rows: Sequence[R], wanted: tuple[str, ...]
) -> dict[tuple[str, str], R]:
    asked = (r for r in rows if (r.audit, r.metric, r.of, r.group) == wanted)
    by_key = grouped(asked, lambda r: (r.checkpoint, getattr(r, "baseline", "")))
    places, names = palette(report), {name for name, _ in by_key}
    # Of a method that has a row of its own, its replicates' are left out.
    kept = [k for k in by_key if not {entry_of(k[0])} & (names - {k[0]})]

    def place(key: tuple[str, str]) -> list[int]:
        return [places[name] for name in key if name]

    def rank(row: Row) -> tuple[bool, bool, float]:
        low, high = row.ends or (0.0, -1.0)
        return row.value is not None, row.over == "both" and high > low, high - low

    return {key: max(by_key[key], key=rank) for key in sorted(kept, key=place)}


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
    places = frame["checkpoint"].map(palette(report))
    return frame.loc[places.sort_values(kind="stable").index]


def palette(report: Report) -> dict[str, int]:
    """The place of each checkpoint that a report tells of, the reference first.

    Its colour, marker and dashes are those of its place; replicates share that of their
    entry. From the ninth on, colours come again with another marker, from the
    fifteenth, markers with another colour. Stages of a series, of which nothing is told
    but in the series' own rows, have none.
    """
    names = [f.name for f in report.checkpoints if series_of(f.name) == f.name]
    names += [row.checkpoint for row in report.results]
    names += [n for row in report.contrasts for n in (row.checkpoint, row.baseline)]
    for records in report.tables.values():
        names += [r["checkpoint"] for r in records if r.get("checkpoint")]
    ordered = sorted(dict.fromkeys(names), key=lambda name: name != BASE)
    entries = {
        entry: k for k, entry in enumerate(dict.fromkeys(map(entry_of, ordered)))
    }
    both = (each for name in ordered for each in (name, entry_of(name)))
    return {name: entries[entry_of(name)] for name in both}


K = TypeVar("K")


def estimable(rows: Mapping[K, R]) -> dict[K, R]:
    """Those of some rows that have a value."""
    return {key: row for key, row in rows.items() if row.value is not None}
