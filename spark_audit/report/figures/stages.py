"""Memory of each task's identifiers after every stage of training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_audit.report.figures.curves import Axis, Curve, Curves, Panel
from spark_audit.report.figures.entries import estimable, rows_of
from spark_audit.report.figures.picture import DASHED, ZERO, Look, looks, wrapped
from spark_audit.results import Report, Row

SHOWN = Look(marker="o", dashes="none", size=6.0)


def draw(report: Report) -> Curves | None:
    """A panel a task, a line a series."""
    records = report.tables.get("stages_states", [])
    stages = sorted({record["stage"] for record in records})
    look = looks(report, width=1.0)
    panels = []
    # In the order of training, where it is known.
    places = sorted((record["trained_at"] or 0, record["task"]) for record in records)
    for task in dict.fromkeys(task for _, task in places):
        mine = [record for record in records if record["task"] == task]
        found = {
            stage: rows_of(
                report, "stages", "memory", of=str(stage), group=f"task:{task}"
            )
            for stage in stages
        }
        if not any(map(estimable, found.values())):
            continue
        own = {record["trained_at"] for record in mine if record["trained_at"]}
        panels.append(
            Panel(
                [one for name in look for one in _curves(look[name], found, mine)],
                wrapped(task, width=24),
                x=Axis(ticks={stage: str(stage) for stage in stages}),
                references=[("y", 0.0, ZERO), *(("x", at, DASHED) for at in own)],
            )
        )
    if not panels:
        return None
    return Curves(
        audit="stages",
        title="Memory by stage and task",
        caption="Change of the NLL of identifiers of each task's trained rows since "
        "the base, minus that of identifiers of its rows never trained on, after every "
        "stage. Filled marks: remembered, once all tasks and stages count "
        "(exploratory). The dashed line is the stage that trained the task; before it "
        "there is nothing to remember.",
        shows="Curves of memory by task over the stages of training, in nats per "
        "token; after the last stage",
        panels=panels,
        most=4,
        dodge=0.3,
        tall=1.6,
        grid="y",
        names=[look[n] for n in dict.fromkeys(r["checkpoint"] for r in records)],
        keys={
            "remembered": SHOWN,
            "not shown": replace(SHOWN, hollow=True),
            "the task's own stage": DASHED,
        },
        label="stages trained so far",
        side="memory, nats per token\n(lower = more remembered)",
        digits=2,
    )


def _curves(
    look: Look, found: dict[int, dict[str, Row]], records: list[dict[str, Any]]
) -> list[Curve]:
    """A line with its intervals, and a mark a stage: filled where remembered."""
    at = [stage for stage in found if look.name in estimable(found[stage])]
    states = {r["stage"]: r["state"] for r in records if r["checkpoint"] == look.name}
    rows = [found[stage][look.name] for stage in at]
    curves = [Curve(replace(look, marker="none"), at, rows)] if at else []
    for shown in (True, False):
        own = [k for k, x in enumerate(at) if (states.get(x) == "remembered") is shown]
        x, y = [at[k] for k in own], [rows[k].value or 0.0 for k in own]
        mark = replace(look, dashes="none", hollow=not shown)
        curves += [Curve(mark, x, y, told=False, front=2.1)] if own else []
    return curves
