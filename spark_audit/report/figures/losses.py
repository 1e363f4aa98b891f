"""The terms of the correction's loss over its steps, with fixed rows as probes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.curves import Axis, Curve, Curves, Panel, ends, wide
from spark_audit.report.figures.entries import known, records_of
from spark_audit.report.figures.picture import DASHES, Look, looks, wrapped
from spark_audit.report.figures.theme import INK, MUTED
from spark_audit.results import Report

# Of equal values, whose marks lie on each other, the earlier term's is a rim. Colours
# are those of checkpoints, so terms differ in dashes and marks.
TERMS = {
    "ul": ("unlikelihood", Look("", INK, "o", "-", size=9.5, hollow=True)),
    "dkl": ("dKL", Look("", MUTED, "s", DASHES[1], size=7.5, hollow=True)),
    "anchor": (
        "anchor, current task",
        Look("", INK, "^", DASHES[2], size=6.0, hollow=True),
    ),
    "old": (
        "anchor, old tasks",
        Look("", MUTED, "D", DASHES[3], size=4.5, hollow=True),
    ),
}
PROBE = Look(marker="o", dashes="none", hollow=True)
PART = Look(dashes=":", width=0.8)
RATIO = 30.0
"""Of the largest to the smallest loss from which the axis is logarithmic."""
GAP = 0.04
"""Share of a stage's steps that is left free before the next."""

Records = list[dict[str, Any]]


@FIGURES.register(order=140)
def draw(report: Report) -> Curves | None:
    """One panel a run, its stages side by side."""
    runs: dict[str, list[Records]] = {}
    for entry, members in records_of(report, "run_losses").items():
        for records in members.values():
            mine = [r for r in records if r.get("part") == "priv" and _terms([r])]
            if mine:
                runs.setdefault(entry, []).append(mine)
    if not runs:
        return None
    every = [r for members in runs.values() for mine in members for r in mine]
    terms = _terms(every)
    values = [r[t] for r in every for t in terms if r.get(t) is not None]
    log = wide(values, ratio=RATIO)
    limits = (min(values) / 1.3, max(values) * 1.3) if log else (None, None)
    y = Axis(scale="log" if log else "linear", limits=limits)
    look = looks(report)
    keys = {TERMS[t][0]: replace(TERMS[t][1], width=1.8) for t in terms}
    if any(record.get("kind") == "probe" for record in every):
        keys["the same rows before and after"] = PROBE
    several = any(len(members) > 1 for members in runs.values())
    return Curves(
        audit="training",
        title="Losses of the correction",
        caption="Terms of the correction's loss, unweighted, as means over windows of "
        "steps, whose rows differ from step to step. Marks: fixed rows before the "
        "first and after the last step of a stage; only these compare. Dotted lines "
        "part the stages.",
        shows="Curves of the correction's losses; on fixed rows, before the first step "
        "and after the last",
        tells=ends,
        panels=[_panel(look[name], runs[name], terms, y) for name in runs],
        most=2,
        share="all",
        grid="y",
        keys=keys,
        label="stage (within each, the steps of its correction)",
        side="loss, nats per token",
        apart="its lines" if several else "",
    )


def _terms(records: Records) -> list[str]:
    return [t for t in TERMS if any(r.get(t) is not None for r in records)]


def _panel(look: Look, members: list[Records], terms: list[str], y: Axis) -> Panel:
    every = [record for records in members for record in records]
    stages = sorted({str(r.get("stage", "")) for r in every}, key=_order)
    lengths = dict.fromkeys(stages, 1)
    for record in every:
        stage = str(record.get("stage", ""))
        lengths[stage] = max(lengths[stage], int(record.get("step") or 0))
    room = GAP * max(lengths.values())
    starts: dict[str, float] = {}
    at = 0.0
    for stage, length in lengths.items():
        starts[stage] = at
        at += length + room
    numbers = [stage.partition("-")[0] for stage in stages]
    if len(set(numbers)) < len(numbers) or max(map(len, numbers)) > 3:
        numbers = [str(place) for place in range(1, len(stages) + 1)]
    middles = (starts[stage] + lengths[stage] / 2 for stage in stages)
    return Panel(
        [
            curve
            for records in members
            for place, term in enumerate(terms)
            for curve in _term(
                look, known(records, term), term, starts, 1.0 + place / 10
            )
        ],
        wrapped(look.name, width=40),
        look,
        Axis(limits=(-room, at), ticks=dict(zip(middles, numbers, strict=True))),
        y,
        references=[("x", starts[stage] - room / 2, PART) for stage in stages[1:]],
    )


def _order(stage: str) -> tuple[int, str]:
    """``2-yelp`` after ``1-fomc``, ``10-...`` after ``9-...``."""
    number = stage.partition("-")[0]
    return (int(number) if number.isdecimal() else 0, stage)


def _term(
    look: Look, records: Records, term: str, starts: dict[str, float], front: float
) -> list[Curve]:
    """A line over the steps of each stage, and all probes as marks."""
    label, style = TERMS[term]
    steps = replace(style, name=look.name, marker="none", width=1.3)
    probes = replace(style, name=look.name, dashes="none")

    def points(kind: str, stages: Iterable[str]) -> tuple[list[float], list[float]]:
        mine = sorted(
            (starts[stage] + r["step"], r[term])
            for r in records
            if r.get("kind") == kind and (stage := str(r.get("stage", ""))) in stages
        )
        return [x for x, _ in mine], [y for _, y in mine]

    lines = [Curve(steps, *points("steps", [s]), told=False) for s in starts]
    marks = Curve(probes, *points("probe", starts), label, front=front)
    return [curve for curve in (*lines, marks) if curve.x]
