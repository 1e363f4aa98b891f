"""The rows of a report's frame that a figure shows: one for each system.

A system is what a report calls an entry: a checkpoint, a series, or a method with
several seeds. Frames are those of ``report.to_frame()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from spark_audit.names import BASE, entry_of, series_of
from spark_audit.report.cells import MAX_SHOWN_VALUE, VOID
from spark_audit.report.figures.paper.measures import Measure

SYSTEM_COLUMNS = ["system", "value", "low", "high", "is_void"]
"""Columns of the rows of one measure: names, three numbers, and whether it is void."""


def systems_of(results: pd.DataFrame) -> list[str]:
    """Return the systems of a frame as they appear in it, the base first.

    The names are in the column ``checkpoint``.

    >>> systems_of(pd.DataFrame({"checkpoint": ["er[1]", "er[2]", "base"]}))
    ['base', 'er']
    """
    names = [entry_of(name) for name in results["checkpoint"]]
    return sorted(dict.fromkeys(names), key=lambda name: name != BASE)


def numbers_of(results: pd.DataFrame) -> dict[str, int]:
    """Return the number of each system, where no report gives it one.

    >>> numbers_of(pd.DataFrame({"checkpoint": ["er[1]", "er[2]", "base"]}))
    {'base': 0, 'er': 1}
    """
    return {system: number for number, system in enumerate(systems_of(results))}


def system_rows(
    results: pd.DataFrame, *, audit: str, metric: str, variant: str = ""
) -> pd.DataFrame:
    """Return the pooled row of each system that has a value of a metric.

    Of several rows of one checkpoint, the one over sources and seeds is chosen, then
    the one with the widest interval. Seeds are left out where their method has a row,
    and stages of a series everywhere.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``.

    Returns
    -------
    A row per system, in the order of :func:`systems_of`; columns ``SYSTEM_COLUMNS``.
    """
    is_wanted = (
        (results["audit"] == audit)
        & (results["metric"] == metric)
        & (results["variant"] == variant)
        & (results["group_kind"] == "pooled")
        & results["value"].notna()
    )
    rows = rows_named(results[is_wanted], lambda name: series_of(name) == name)

    # A row without an interval ranks below any that has one.
    rows["is_over_both"] = rows["interval_over"] == "both"
    rows["width"] = (rows["high"] - rows["low"]).fillna(-1.0)
    rows = rows.sort_values(
        ["is_over_both", "width"], ascending=False, kind="stable"
    ).drop_duplicates("checkpoint")

    # If a method has its own row, leave out those of its replicates.
    names = {*rows["checkpoint"]}
    rows = rows_named(rows, lambda name: entry_of(name) not in names - {name})

    # Somebody else's report may hold numbers that no axis can.
    numbers = rows[["value", "low", "high"]].astype(float)
    numbers = numbers.clip(-MAX_SHOWN_VALUE, MAX_SHOWN_VALUE)
    tidy = pd.DataFrame(
        {
            "system": rows["checkpoint"].astype(object),
            "value": numbers["value"],
            "low": numbers["low"],
            "high": numbers["high"],
            "is_void": rows["status"].isin(VOID).astype(bool),
        },
        columns=SYSTEM_COLUMNS,
    )
    return in_order(tidy, systems_of(results))


def rows_named(
    rows: pd.DataFrame, is_wanted: Callable[[str], bool], column: str = "checkpoint"
) -> pd.DataFrame:
    """Return a copy of the rows whose name is wanted; ``column`` has the names."""
    # A list of no answers would choose columns, not rows.
    mask = np.array([is_wanted(name) for name in rows[column]], bool)
    return rows[mask].copy()


def in_order(rows: pd.DataFrame, systems: Sequence[str]) -> pd.DataFrame:
    """Return rows in the order of their systems; a seed stands where its method does.

    ``rows`` has a column ``system``.
    """
    position_by_system = {name: position for position, name in enumerate(systems)}
    positions = [position_by_system[entry_of(name)] for name in rows["system"]]
    ordered = rows.iloc[np.argsort(positions, kind="stable")]
    return ordered.reset_index(drop=True)


def first_variant(results: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return the rows of the first of a measure's variants that a frame has values of.

    Parameters
    ----------
    results
        A frame of ``report.to_frame()``.

    Returns
    -------
    Columns ``SYSTEM_COLUMNS``.
    """
    rows = pd.DataFrame(columns=SYSTEM_COLUMNS)
    for variant in measure.variants:
        rows = system_rows(
            results, audit=measure.audit, metric=measure.metric, variant=variant
        )
        if len(rows):
            break
    return rows


def stacked(rows_by_panel: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all panels below each other, with a column ``panel``.

    Panels without rows are left out.
    """
    frames = []
    for panel, rows in rows_by_panel.items():
        if len(rows):
            frames.append(rows.assign(panel=panel))
    if not frames:
        return pd.DataFrame(columns=["panel", *SYSTEM_COLUMNS])
    return pd.concat(frames, ignore_index=True)
