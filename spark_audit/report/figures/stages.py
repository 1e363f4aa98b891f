"""Figures by stage of training: memory, accuracy, and what a series shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from spark_audit.names import BASE
from spark_audit.report.figures import chosen_rows, picture, styling, text_room
from spark_audit.report.figures.forest import greyed
from spark_audit.report.figures.picture_rows import VALUE_COLUMNS, row_of_values
from spark_audit.report.standings import method_of, standings
from spark_audit.results import Report, Row, grouped
from spark_audit.sentences import render

SHOWN = picture.Style(marker="o", dashes="none", size=6.0)

SERIES_DASHES = {"series": "-", "last": "--"}
"""What is shared, all stages so far or the checkpoint of one, and how it is drawn."""


def stages(report: Report) -> picture.Picture | None:
    """Memory: a panel a task, a line a series."""
    records = report.tables.get("stages_states", [])
    stages = sorted({record["stage"] for record in records})
    look = _looks_of(report, "stages")
    panels = []
    # In the order of training, where it is known.
    ordered = sorted(records, key=lambda one: (one["trained_at"] or 0, one["task"]))
    for task, mine in grouped(ordered, lambda one: one["task"]).items():
        figures = _by_stage(report, "stages", "memory", task, stages)
        states = {(one["checkpoint"], one["stage"]): one["state"] for one in mine}
        curves = []
        for name, rows in figures.items():
            hidden = [at for at in rows if states.get((name, at)) != "remembered"]
            shown = look[name], [*rows], [*rows.values()]
            curves.append(picture.Curve(*shown, hollow=hidden))
        own = {one["trained_at"] for one in mine if one["trained_at"]}
        panels.append((text_room.wrapped(task, width=18), curves, own))
    keys = {
        "stages.remembered": SHOWN,
        "stages.hidden": replace(SHOWN, hollow=True),
        "stages.trained": picture.DASHED,
    }
    doubts = _doubts(report, "stages")
    return _stage_figure("stages", panels, keys, level=0.0, doubts=doubts)


def accuracy(report: Report) -> picture.Picture | None:
    """Accuracy: a panel a task, a line a series; the base at stage 0."""
    rows = [r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy")]
    tasks = dict.fromkeys(r.grouping[1] for r in rows if r.grouping[0] == "task")
    stages = sorted({int(row.of) for row in rows if row.of.isdigit()})
    look = _looks_of(report, "utility")
    panels = []
    for task in tasks:
        figures = _by_stage(report, "utility", "accuracy", task, stages)
        curves = []
        for name, at in figures.items():
            if len(at) == 1:  # no series
                at = {0 if name == BASE else stages[-1]: row for row in at.values()}
            curves.append(picture.Curve(look[name], [*at], [*at.values()]))
        sizes = [row.n for own in figures.values() for row in own.values()]
        title = f"{task}, n {text_room.spanned(sizes)}" if sizes else task
        matrix = report.tables.get("accuracy_matrix", [])
        trained = {r["stage"] for r in matrix if r.get("after") == task}
        panels.append((text_room.wrapped(title, width=18), curves, trained))
    keys = {"stages.trained": picture.DASHED}
    doubts = _doubts(report, "utility")
    return _stage_figure("utility", panels, keys, doubts=doubts)


def series(report: Report) -> picture.Picture | None:
    """AUC of what is shared: a panel a series, with a line for each way to share it."""
    look = _looks_of(report, "series", width=1.4)
    rows = [row for row in report.results if row.group == "pooled"]
    pooled = {
        row.checkpoint: row
        for row in rows
        if (row.audit, row.metric) == ("series", "auc")
    }
    doubts = _doubts(report, "series")
    records = (r for r in report.tables["series_stages"] if r["series_value"])
    panels = []
    for name, mine in grouped(records, lambda record: record["checkpoint"]).items():
        stages, curves = [record["stage"] for record in mine], []
        for of, dashes in SERIES_DASHES.items():
            style = greyed(replace(look[name], dashes=dashes), pooled.get(name))
            ends = [[one[f"{of}_{end}"] for end in VALUE_COLUMNS] for one in mine]
            shown = [
                row_of_values("series", "auc", style, *figures) for figures in ends
            ]
            curves.append(picture.Curve(style, stages, shown))
        size = pooled[name].n if name in pooled else 0
        title = f"{text_room.wrapped(name, width=15)}\nn {size}"
        if name in doubts:
            title += f"\n{doubts[name].upper()}"
        panels.append((title, curves, set[int]()))
    keys = {
        f"series.{of}": picture.Style(marker="o", dashes=d)
        for of, d in SERIES_DASHES.items()
    }
    return _stage_figure("series", panels, keys, level=0.5)


def _doubts(report: Report, audit: str) -> dict[str, str]:
    """Checkpoint -> why nothing can be concluded from an audit's figures of it."""
    doubts = {}
    by_name = {one.name: one for one in standings(report)}
    for name in styling.palette(report):
        standing = by_name.get(method_of(name))
        doubt = standing.doubt_of(audit) if standing else ""
        if doubt:
            doubts[name] = doubt
    return doubts


def _looks_of(
    report: Report, audit: str, *, width: float = 1.0
) -> dict[str, picture.Style]:
    """Look of every checkpoint, grey crosses where nothing can be concluded."""
    doubts = _doubts(report, audit)
    return {
        name: greyed(look, None, is_doubtful=name in doubts)
        for name, look in picture.looks(report, width=width).items()
    }


def _by_stage(
    report: Report, audit: str, metric: str, task: str, stages: Iterable[int]
) -> dict[str, dict[int, Row]]:
    """Checkpoint -> stage -> its figure of a task, where that is estimable."""
    figures: dict[str, dict[int, Row]] = {name: {} for name in styling.palette(report)}
    place: dict[str, Any] = {"audit": audit, "metric": metric, "group": f"task:{task}"}
    for stage in stages:
        rows = chosen_rows.rows_of(report, of=str(stage), **place)
        for name, row in rows.items():
            if row.value is not None:
                figures[name][stage] = row
    return {name: rows for name, rows in figures.items() if rows}


def _stage_figure(
    audit: str,
    panels: Iterable[tuple[str, list[picture.Curve], set[int]]],
    keys: Mapping[str, picture.Style],
    *,
    level: float | None = None,
    doubts: Mapping[str, str] = MappingProxyType({}),
) -> picture.Picture | None:
    """Panels of title, curves and own stages, with a line at the level of nothing."""
    panels = [panel for panel in panels if panel[1]]
    curves = [curve for _, own, _ in panels for curve in own]
    if not curves:
        return None
    ticks = {x: f"{x:g}" for curve in curves for x, *_ in curve.points}
    flat = [] if level is None else [picture.rule(level, picture.ZERO_LINE)]
    # Above each panel of a series stands whose it is.
    named = {}
    if audit != "series":
        for curve in curves:
            doubt = doubts.get(curve.look.name, "").upper()
            named[f"{curve.look.name} {doubt}".strip()] = curve.look
    return picture.Picture(
        audit=audit,
        panels=[
            picture.Panel(
                own,
                title,
                ticks=dict(sorted(ticks.items())),
                parts=[
                    *flat,
                    *(picture.rule(at, picture.DASHED, upright=True) for at in trained),
                ],
                tall=1.6,
            )
            for title, own, trained in panels
        ],
        dodge=0.3,
        keys=named | {render(f"figure.{key}"): look for key, look in keys.items()},
        digits=2,
    )
