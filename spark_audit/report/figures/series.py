"""What all stages of a run give away, and its checkpoint alone, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_audit.report.figures.panel import (
    ZERO,
    Axis,
    Curve,
    Look,
    Panel,
    looks,
    wrapped,
)
from spark_audit.report.figures.picture import Picture
from spark_audit.results import Report, Row
from spark_audit.sentences import render

SHARED = {"series": "-", "last": "--"}
"""What is shared, all stages so far or the checkpoint of one, and how it is drawn."""


def draw(report: Report) -> Picture | None:
    """A panel a series, with a line for each way to share it."""
    look = looks(report, width=1.4)
    n = {
        row.checkpoint: row.n
        for row in report.results
        if (row.audit, row.metric, row.group) == ("series", "auc", "pooled")
    }
    by_name: dict[str, list[dict[str, Any]]] = {}
    for record in report.tables["series_stages"]:
        if record["series_value"] is not None:
            by_name.setdefault(record["checkpoint"], []).append(record)
    panels = [
        Panel(
            [_curve(look[name], records, of) for of in SHARED],
            f"{wrapped(name, width=15)}\nn {n.get(name, 0)}",
            x=Axis(ticks={record["stage"]: str(record["stage"]) for record in records}),
            references=[("y", 0.5, ZERO)],
            tall=1.6,
        )
        for name, records in by_name.items()
        if name in look
    ]
    if not panels:
        return None
    keys = {
        render(f"figure.series.{of}"): Look(marker="o", dashes=dashes)
        for of, dashes in SHARED.items()
    }
    return Picture(
        audit="series", panels=panels, dodge=0.2, grid="y", keys=keys, digits=2
    )


def _curve(look: Look, records: list[dict[str, Any]], of: str) -> Curve:
    rows = [
        Row(
            audit="series",
            checkpoint=record["checkpoint"],
            metric="auc",
            of=of,
            **{end: record[f"{of}_{end}"] for end in ("value", "low", "high")},
        )
        for record in records
    ]
    dashed = replace(look, dashes=SHARED[of])
    return Curve(dashed, [record["stage"] for record in records], rows)
