"""What was learned after every stage of training: memory, accuracy, and all stages.

The last are what the stages of a run give away together, next to its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from spark_audit.names import BASE
from spark_audit.report.figures.entries import estimable, rows_of
from spark_audit.report.figures.panel import (
    DASHED,
    ZERO,
    Axis,
    Curve,
    Look,
    Panel,
    looks,
    spanned,
    wrapped,
)
from spark_audit.report.figures.picture import Picture
from spark_audit.results import Report, Row, grouped
from spark_audit.sentences import render

SHOWN = Look(marker="o", dashes="none", size=6.0)
SHARED = {"series": "-", "last": "--"}
"""What is shared, all stages so far or the checkpoint of one, and how it is drawn."""
Stages = dict[int, dict[str, Row]]
"""Stage -> checkpoint -> its row."""


def draw(report: Report) -> Picture | None:
    """Memory: a panel a task, a line a series."""
    records = report.tables.get("stages_states", [])
    stages = sorted({record["stage"] for record in records})
    look = looks(report, width=1.0)
    panels = []
    # In the order of training, where it is known.
    places = sorted((record["trained_at"] or 0, record["task"]) for record in records)
    for task in dict.fromkeys(task for _, task in places):
        mine = [record for record in records if record["task"] == task]
        found = _stages(report, "stages", "memory", task, stages)
        if found:
            curves = [one for name in look for one in _curves(look[name], found, mine)]
            own = {record["trained_at"] for record in mine if record["trained_at"]}
            panels.append(
                _panel(curves, wrapped(task, width=18), stages, own, ("y", 0.0, ZERO))
            )
    keys = {
        "stages.remembered": SHOWN,
        "stages.hidden": replace(SHOWN, hollow=True),
        "stages.trained": DASHED,
    }
    names = [look[n] for n in dict.fromkeys(r["checkpoint"] for r in records)]
    return _figure("stages", panels, names, keys)


def accuracy(report: Report) -> Picture | None:
    """Accuracy: a panel a task, a line a series; the base at stage 0."""
    rows = [r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy")]
    tasks = dict.fromkeys(r.grouping[1] for r in rows if r.grouping[0] == "task")
    stages = sorted({int(row.of) for row in rows if row.of.isdigit()})
    look = looks(report, width=1.0)
    panels, owners = [], dict[str, Look]()
    for task in tasks:
        found = _stages(report, "utility", "accuracy", task, stages)
        curves = []
        for name in look:
            at = {k: own[name] for k, own in found.items() if name in own}
            if len(at) == 1:  # no series
                at = {0 if name == BASE else stages[-1]: row for row in at.values()}
            if at:
                owners[name] = look[name]
                curves.append(Curve(look[name], [*at], [*at.values()]))
        sizes = {row.n for own in found.values() for row in own.values()}
        title = wrapped(f"{task}, n {spanned(sizes)}" if sizes else task, width=18)
        matrix = report.tables.get("accuracy_matrix", [])
        trained = {r["stage"] for r in matrix if r.get("after") == task}
        if curves:
            panels.append(_panel(curves, title, [0, *stages], trained))
    return _figure("utility", panels, list(owners.values()), {"stages.trained": DASHED})


def series(report: Report) -> Picture | None:
    """AUC of what is shared: a panel a series, with a line for each way to share it."""
    look = looks(report, width=1.4)
    rows = [row for row in report.results if row.group == "pooled"]
    n = {r.checkpoint: r.n for r in rows if (r.audit, r.metric) == ("series", "auc")}
    records = (r for r in report.tables["series_stages"] if r["series_value"])
    panels = []
    for name, mine in grouped(records, lambda record: record["checkpoint"]).items():
        stages, curves = [record["stage"] for record in mine], []
        for of, dashes in SHARED.items():
            row = Row(audit="series", checkpoint=name, metric="auc", of=of, value=0)
            ends = ("value", "low", "high")
            auc = [{end: one[f"{of}_{end}"] for end in ends} for one in mine]
            shown = [row.model_copy(update=figures) for figures in auc]
            curves.append(Curve(replace(look[name], dashes=dashes), stages, shown))
        title = f"{wrapped(name, width=15)}\nn {n.get(name, 0)}"
        panels.append(_panel(curves, title, stages, (), ("y", 0.5, ZERO)))
    keys = {f"series.{of}": Look(marker="o", dashes=d) for of, d in SHARED.items()}
    return _figure("series", panels, [], keys)


def _figure(
    audit: str, panels: list[Panel], names: list[Look], keys: dict[str, Look]
) -> Picture | None:
    if not panels:
        return None
    return Picture(
        audit=audit,
        panels=panels,
        dodge=0.3,
        names=names,
        keys={render(f"figure.{key}"): look for key, look in keys.items()},
        digits=2,
    )


def _stages(
    report: Report, audit: str, metric: str, task: str, stages: Iterable[int]
) -> Stages:
    group = f"task:{task}"
    rows = {k: rows_of(report, audit, metric, of=str(k), group=group) for k in stages}
    return {k: own for k in rows if (own := estimable(rows[k]))}


def _panel(
    curves: Sequence[Curve],
    title: str,
    stages: Sequence[int],
    trained: Iterable[int],
    *references: tuple[str, float, Look],
) -> Panel:
    return Panel(
        curves,
        title,
        x=Axis(ticks={stage: str(stage) for stage in stages}),
        references=[*references, *(("x", at, DASHED) for at in trained)],
        tall=1.6,
    )


def _curves(look: Look, found: Stages, records: list[dict[str, Any]]) -> list[Curve]:
    """A line with its intervals, and a mark a stage: filled where remembered."""
    rows = {stage: own[look.name] for stage, own in found.items() if look.name in own}
    states = {r["stage"]: r["state"] for r in records if r["checkpoint"] == look.name}
    curves = [Curve(replace(look, marker="none"), [*rows], [*rows.values()])]
    for shown in (True, False):
        at = [k for k in rows if (states.get(k) == "remembered") is shown]
        mark = replace(look, dashes="none", hollow=not shown)
        y = [rows[k].value or 0.0 for k in at]
        curves += [Curve(mark, at, y, told=False)] if at else []
    return curves if rows else []
