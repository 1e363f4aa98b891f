"""The rows of a report that a figure shows: one for each checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import pandas as pd

from spark_audit.names import entry_of
from spark_audit.results import Report, Row

RowT = TypeVar("RowT", bound=Row)


def chosen_of(
    rows: Iterable[RowT], palette_numbers: Mapping[str, int]
) -> dict[tuple[str, str], RowT]:
    """Return (checkpoint, baseline) -> its row, from rows of one metric and group.

    Among several rows of one checkpoint, those with a value go first, and then the one
    with the widest interval over sources and seeds.

    Parameters
    ----------
    palette_numbers
        Checkpoint -> its number in the palette, which is the order of figures.
    """
    best: dict[tuple[str, str], tuple[tuple[bool, bool, float], RowT]] = {}
    for row in rows:
        # A row without an interval ranks below any that has one.
        low, high = row.ends or (0.0, -1.0)
        is_over_both = row.interval_over == "both" and high > low
        rank = (row.value is not None, is_over_both, high - low)
        key = (row.checkpoint, getattr(row, "baseline", ""))

        if key not in best or rank > best[key][0]:
            best[key] = (rank, row)

    # If a method has its own row, leave out those of its replicates.
    names = {name for name, _ in best}
    chosen = {}
    for name, baseline in best:
        if entry_of(name) not in names - {name}:
            chosen[name, baseline] = best[name, baseline][1]

    def order(key: tuple[str, str]) -> tuple[int, int]:
        name, baseline = key
        # A row without a comparison has no baseline.
        return palette_numbers[name], palette_numbers.get(baseline, 0)

    return {key: chosen[key] for key in sorted(chosen, key=order)}


def frame_of(
    report: Report,
    table: str,
    *columns: str,
    also: Sequence[str] = (),
    palette_numbers: Mapping[str, int],
) -> pd.DataFrame:
    """Return the records of a table with all needed columns, with their ``entry``.

    Records are in the order of checkpoints; ``also`` names columns that may be missing.
    """
    needed = ["checkpoint", *columns]
    frame = pd.DataFrame(report.tables.get(table, []), columns=[*needed, *also])
    frame = frame.dropna(subset=needed)

    # Replicates share an entry, which figures draw together.
    frame["entry"] = frame["checkpoint"].map(entry_of)
    return frame.sort_values(
        "checkpoint", key=lambda names: names.map(palette_numbers), kind="stable"
    )
