"""The terms of the correction's loss over its steps, with fixed rows as probes."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import records_of
from spark_audit.report.figures.style import (
    Look,
    belongs,
    canvas,
    grid_of,
    legend,
    legend_height,
    looks,
    plain,
    ticked,
    tidy,
    wrapped,
)
from spark_audit.report.figures.theme import LIGHT, MUTED, Drawing
from spark_audit.results import Report

TERMS: dict[str, tuple[str, str, Any]] = {
    "ul": ("unlikelihood", LIGHT[6], "-"),
    "dkl": ("dKL", LIGHT[1], (0, (5, 1.5))),
    "anchor": ("anchor, current task", LIGHT[2], (0, (1, 1))),
    "old": ("anchor, old tasks", LIGHT[4], (0, (4, 1, 1, 1))),
}
MARKS = {"ul": "o", "dkl": "s", "anchor": "^", "old": "D"}
WIDE = 30.0
"""Ratio of the largest to the smallest loss from which the axis is logarithmic."""
GAP = 0.04
"""Share of a stage's steps that is left free before the next."""

Records = list[dict[str, Any]]


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """One panel a run, its stages side by side."""
    runs: dict[str, dict[str, Records]] = {}
    for entry, members in records_of(report, "run_losses").items():
        for name, records in members.items():
            mine = [r for r in records if r.get("part") == "priv" and _terms([r])]
            if mine:
                runs.setdefault(entry, {})[name] = mine
    if not runs:
        return None
    every = [r for found in runs.values() for mine in found.values() for r in mine]
    terms = _terms(every)
    probes = any(record.get("kind") == "probe" for record in every)
    handles = [
        Line2D([], [], color=TERMS[t][1], linestyle=TERMS[t][2], linewidth=1.8)
        for t in terms
    ]
    labels = [TERMS[term][0] for term in terms]
    if probes:
        handles.append(Line2D([], [], color=MUTED, marker="o", linestyle="none"))
        labels.append("the same rows before and after")
    down, across = grid_of(len(runs), most=2)
    titles = [wrapped(name, width=40) for name in runs]
    tall = 1.75 + 0.14 * max(title.count("\n") for title in titles)
    figure = canvas(down * tall + 0.5 + legend_height(labels))
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    look = looks(report)
    values = [r[t] for r in every for t in terms if r.get(t) is not None]
    low, high = min(values), max(values)
    log = low > 0 and high / low > WIDE
    for place, (name, members) in enumerate(runs.items()):
        axes = grid.flat[place]
        if log:
            axes.set_yscale("log")
        _panel(axes, look[name], members, terms)
        if log:
            axes.set_ylim(low / 1.3, high * 1.3)
            ticked(axes.yaxis)
        belongs(axes.set_title(titles[place]), look[name])
        tidy(axes, grid="y")
    for axes in grid.flat[len(runs) :]:
        axes.remove()
    figure.supylabel("loss, nats per token", fontsize=8)
    legend(
        figure,
        handles,
        labels,
        title="stage (within each, the steps of its correction)",
    )
    several = any(len(members) > 1 for members in runs.values())
    return Drawing(
        name="losses",
        audit="training",
        title="Losses of the correction",
        caption=(
            "Terms of the correction's loss, unweighted, as means over windows of "
            "steps, whose rows differ from step to step. Marks: fixed rows before the "
            "first and after the last step of a stage; only these compare. Dotted "
            "lines part the stages."
            + (
                " Of methods with several seeds each seed has its lines."
                if several
                else ""
            )
        ),
        alt=_alt(runs, terms),
        figure=figure,
    )


def _terms(records: Records) -> list[str]:
    return [t for t in TERMS if any(r.get(t) is not None for r in records)]


def _panel(
    axes: Axes, look: Look, members: dict[str, Records], terms: list[str]
) -> None:
    every = [record for records in members.values() for record in records]
    stages = sorted(dict.fromkeys(r.get("stage", "") for r in every), key=_order)
    lengths = {
        s: max(int(r.get("step") or 0) for r in every if r.get("stage", "") == s)
        for s in stages
    }
    starts: dict[Any, float] = {}
    at = 0.0
    room = GAP * max(max(lengths.values()), 1)
    for stage in stages:
        starts[stage] = at
        at += max(lengths[stage], 1) + room
        if stage != stages[-1]:
            line = axes.axvline(
                at - room / 2, color=MUTED, linestyle=":", linewidth=0.8
            )
            belongs(line, look)
    for records in members.values():
        for stage in stages:
            mine = [r for r in records if r.get("stage", "") == stage]
            for place, term in enumerate(terms):
                _term(axes, look, mine, term, starts[stage], place)
    axes.set_xlim(-room, at)
    middles = [starts[s] + max(lengths[s], 1) / 2 for s in stages]
    names = [str(s).partition("-")[0] for s in stages]
    distinct = len(set(names)) == len(names) and max(map(len, names)) <= 3
    axes.set_xticks(
        middles, names if distinct else [str(i + 1) for i in range(len(stages))]
    )
    axes.tick_params(axis="x", length=0)


def _order(stage: object) -> tuple[int, str]:
    """``2-yelp`` after ``1-fomc``, ``10-...`` after ``9-...``."""
    number = str(stage).partition("-")[0]
    return (int(number) if number.isdecimal() else 0, str(stage))


SIZES = (9.5, 5.5, 4.5, 3.5)
"""Of the probes' marks, in points, by the order of their terms."""


def _term(
    axes: Axes, look: Look, mine: Records, term: str, start: float, place: int
) -> None:
    _, colour, dashes = TERMS[term]
    known = [r for r in mine if r.get(term) is not None]
    steps = sorted(
        (r for r in known if r.get("kind") == "steps"), key=lambda r: r["step"]
    )
    probes = sorted(
        (r for r in known if r.get("kind") == "probe"), key=lambda r: r["step"]
    )
    if steps:
        (line,) = axes.plot(
            [start + r["step"] for r in steps],
            [r[term] for r in steps],
            color=colour,
            linestyle=dashes,
            linewidth=1.3,
        )
        belongs(line, look)
    if probes:
        (marks,) = axes.plot(
            [start + r["step"] for r in probes],
            [r[term] for r in probes],
            color=colour,
            marker=MARKS[term],
            # Equal values lie on each other: the earlier term's mark is a rim.
            markersize=SIZES[min(place, len(SIZES) - 1)],
            linestyle="none",
            clip_on=False,
            zorder=3 + place,
        )
        belongs(marks, look)


def _alt(runs: dict[str, dict[str, Records]], terms: list[str]) -> str:
    found = []
    for name, members in runs.items():
        records = [r for mine in members.values() for r in mine]
        said = []
        for term in terms:
            ends = [
                r
                for r in records
                if r.get("kind") == "probe" and r.get(term) is not None
            ]
            before = [r[term] for r in ends if not r["step"]]
            after = [r[term] for r in ends if r["step"]]
            if before and after:
                said.append(
                    f"{TERMS[term][0]} from {plain(sum(before) / len(before))} to "
                    f"{plain(sum(after) / len(after))}"
                )
        if said:
            found.append(f"{name}: {', '.join(said)}")
    if not found:
        return (
            f"Curves of the losses {', '.join(TERMS[t][0] for t in terms)} over steps."
        )
    return f"Curves of the correction's losses; on fixed rows, {'; '.join(found)}."
