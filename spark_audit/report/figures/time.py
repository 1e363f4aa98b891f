"""Where the time of each training run went."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import known, records_of, replicates_said
from spark_audit.report.figures.style import (
    Look,
    belongs,
    canvas,
    legend,
    legend_height,
    lines_of,
    looks,
    plain,
    tidy,
    wrapped,
)
from spark_audit.report.figures.theme import INK, LIGHT, PAPER, Drawing
from spark_audit.results import Report

CORRECTION = "correction (all its work)"
OTHER = "other"
WORK = {
    "task": "learning the task",
    "start": "preparation",
    "end": "importance of weights",
    "gradients": "gradients of the memory",
    "penalty": "penalties on weights",
    "optimizer": "optimiser steps",
    "answers": "answers after each stage",
}
"""What readers see for a kind of work; any other goes by its own name."""
FEW = 0.02
"""Share of all time below which a kind of work is not told apart."""
MOST = 5
"""Kinds of work beside the correction that are told apart."""
UNITS = (("hours", 3600.0, 3.0), ("minutes", 60.0, 3.0), ("seconds", 1.0, 0.0))
FILLS = (
    (LIGHT[2], ""),
    (LIGHT[5], "///"),
    (LIGHT[4], "|||"),
    (LIGHT[3], "\\\\\\"),
    (LIGHT[7], "xxx"),
    (LIGHT[0], "---"),
)
TOP = (LIGHT[1], "")


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """A stacked bar a run; the share of the correction beside it."""
    runs = {
        name: work
        for name, members in records_of(report, "run_time").items()
        if sum((work := _work(members)).values()) > 0
    }
    if not runs:
        return None
    totals: dict[str, float] = {}
    for work in runs.values():
        for kind, seconds in work.items():
            totals[kind] = totals.get(kind, 0.0) + seconds
    whole = sum(totals.values())
    kinds = sorted((k for k in totals if k != CORRECTION), key=lambda k: -totals[k])
    told = [k for k in kinds if totals[k] >= FEW * whole][:MOST]
    runs = {name: _merged(work, told) for name, work in runs.items()}
    order = [*told, OTHER, CORRECTION]
    order = [k for k in order if any(work.get(k) for work in runs.values())]
    fills = dict(zip([*told, OTHER], FILLS, strict=False)) | {CORRECTION: TOP}
    look = looks(report)
    labels = [wrapped(name) for name in runs]
    each = max(0.27, 0.15 * max(map(lines_of, labels)) + 0.06)
    figure = canvas(each * len(runs) + 0.6 + legend_height(order))
    axes = figure.subplots()
    longest = max(sum(work.values()) for work in runs.values())
    unit, size, _ = next(u for u in UNITS if longest / u[1] >= u[2])
    tidy(axes, grid="x")
    for place, (name, work) in enumerate(runs.items()):
        _bar(
            axes, look[name], {k: work.get(k, 0.0) / size for k in order}, fills, place
        )
    axes.set_yticks(range(len(runs)), labels)
    axes.set_ylim(len(runs) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    for tick, name in zip(axes.get_yticklabels(), runs, strict=True):
        belongs(tick, look[name])
    axes.set_xlabel(f"wall-clock time of the run, {unit}")
    handles = [
        Patch(facecolor=fills[k][0], hatch=fills[k][1], edgecolor=PAPER, linewidth=0)
        for k in order
    ]
    legend(figure, handles, order)
    return Drawing(
        name="time",
        audit="training",
        title="Time by kind of work",
        caption=(
            "Wall-clock time of each training run by kind of work, and at the right "
            "the share of the correction. Measured on one machine while other work may "
            "have run beside it." + replicates_said(report)
        ),
        alt=(
            f"Stacked bars of training time in {unit}: "
            + "; ".join(
                f"{name} {plain(sum(work.values()) / size, 1)}"
                + (f", {_share(work)} of it correction" if work.get(CORRECTION) else "")
                for name, work in runs.items()
            )
            + "."
        ),
        figure=figure,
    )


def _work(members: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Kind of work -> seconds, the mean over replicates."""
    found: dict[str, float] = {}
    for records in members.values():
        for record in known(records, "seconds"):
            kind = str(record.get("work") or OTHER)
            kind = WORK.get(kind, kind)
            if record.get("part") == "priv":
                kind = CORRECTION
            found[kind] = found.get(kind, 0.0) + record["seconds"] / len(members)
    return found


def _merged(work: dict[str, float], told: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, seconds in work.items():
        name = kind if kind in told or kind == CORRECTION else OTHER
        found[name] = found.get(name, 0.0) + seconds
    return found


def _share(work: dict[str, float]) -> str:
    return f"{plain(100 * work.get(CORRECTION, 0.0) / sum(work.values()), 1)}%"


def _bar(
    axes: Axes,
    look: Look,
    work: dict[str, float],
    fills: dict[str, tuple[str, str]],
    place: int,
) -> None:
    left = 0.0
    for kind, length in work.items():
        if length:
            colour, hatch = fills[kind]
            bar = axes.barh(
                place,
                length,
                left=left,
                height=0.66,
                facecolor=colour,
                edgecolor=PAPER,
                hatch=hatch,
                linewidth=0.6,
            )
            belongs(bar, look)
            left += length
    share = f"{_share(work)} correction" if work.get(CORRECTION) else "no correction"
    text = axes.text(
        1.02,
        place,
        share,
        transform=axes.get_yaxis_transform(),
        va="center",
        color=INK,
    )
    belongs(text, look)
