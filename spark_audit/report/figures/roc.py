"""Log-log ROC curves of the membership scores, with what chance gives."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from spark_audit.audits.contract import carriers
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import known, records_of, rows_of
from spark_audit.report.figures.style import (
    WIDTH,
    Look,
    belongs,
    canvas,
    grid_of,
    looks,
    names_height,
    names_legend,
    ticked,
    tidy,
)
from spark_audit.report.figures.theme import MUTED, Drawing
from spark_audit.results import Report, number

BAND = "chance: 95% of blind scores"
LEAST = 1e-4
MARK = "(verdict)"
"""Beside the scores that the verdict rests on."""


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """True against false positive rate, both on log axes, a panel a score."""
    entries = records_of(report, "mia_roc")
    scores: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    for name, members in entries.items():
        for records in members.values():
            points = known(records, "of", "fpr", "tpr")
            for score in dict.fromkeys(record["of"] for record in points):
                mine = [r for r in points if r["of"] == score and r["fpr"] > 0]
                if any(record["tpr"] > 0 for record in mine):
                    scores.setdefault(score, {}).setdefault(name, []).append(mine)
    if not scores:
        return None
    resting = carriers(report.findings, "mia")
    carrying = set(resting.values())
    # Those that the verdict rests on come first.
    scores = dict(sorted(scores.items(), key=lambda item: item[0] not in carrying))
    names = list(dict.fromkeys(name for found in scores.values() for name in found))
    look = looks(report)
    shown = [look[name] for name in entries if name in names]
    further = [
        (Line2D([], [], color=MUTED, linewidth=0.9), "TPR = FPR"),
        (Patch(color=MUTED, alpha=0.22, linewidth=0), BAND),
    ]
    down, across = grid_of(len(scores), most=3)
    height = names_height(shown, further=[label for _, label in further])
    width = {1: 3.9, 2: 5.4}.get(across, WIDTH)
    side = (width - 0.6) / across
    figure = canvas(down * (side + 0.1) + 0.35 + height, width=width)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    every = [
        r
        for found in scores.values()
        for curves in found.values()
        for curve in curves
        for r in curve
    ]
    floor = max(LEAST, min(r["fpr"] for r in every) * 0.8)
    for place, (score, found) in enumerate(scores.items()):
        axes = grid.flat[place]
        axes.set(xscale="log", yscale="log", xlim=(floor, 1.0), ylim=(floor, 1.15))
        _chance(axes, [c for curves in found.values() for c in curves], floor)
        for name, curves in found.items():
            for curve in curves:
                _curve(axes, look[name], curve, several=len(curves) > 1)
        axes.set_title(f"{score} {MARK}" if score in carrying else score)
        tidy(axes, grid="both")
        ticked(axes.xaxis)
        ticked(axes.yaxis)
        axes.tick_params(labelbottom=place + across >= len(scores))
    for axes in grid.flat[len(scores) :]:
        axes.remove()
    figure.supylabel("true positive rate (higher = more leaks)", fontsize=8)
    names_legend(figure, shown, further=further, title="false positive rate")
    several = any(len(c) > 1 for found in scores.values() for c in found.values())
    return Drawing(
        name="roc",
        audit="mia",
        title="ROC of membership scores",
        caption=(
            "Members are train rows, non-members test rows; rates are means over "
            "tasks. Curves begin where one non-member of the smallest task is a false "
            "positive. Within the band are 95% of the rates of a score that knows "
            "nothing."
            + _resting_said(resting)
            + (
                " Of methods with several seeds each seed has a curve."
                if several
                else ""
            )
        ),
        alt=_alt(report, list(scores)),
        figure=figure,
    )


def _resting_said(resting: dict[str, str]) -> str:
    """Which score the verdict on whom rests on."""
    by_score: dict[str, list[str]] = {}
    for name, score in resting.items():
        by_score.setdefault(score, []).append(name)
    told = [f"{score} ({', '.join(names)})" for score, names in by_score.items()]
    return f" The verdict rests on {', '.join(told)}." if told else ""


def _chance(axes: Axes, curves: list[list[dict[str, Any]]], floor: float) -> None:
    axes.plot([floor, 1.0], [floor, 1.0], color=MUTED, linewidth=0.9, zorder=1.5)
    bounds = [known(curve, "chance_low", "chance_high") for curve in curves]
    longest = max(bounds, key=len, default=[])
    if longest:
        axes.fill_between(
            [r["fpr"] for r in longest],
            [max(r["chance_low"], floor) for r in longest],
            [max(r["chance_high"], floor) for r in longest],
            color=MUTED,
            alpha=0.22,
            linewidth=0,
            step="post",
            zorder=1,
        )


def _curve(
    axes: Axes, look: Look, curve: list[dict[str, Any]], *, several: bool
) -> None:
    points = [(r["fpr"], r["tpr"]) for r in curve if r["tpr"] > 0]
    fpr, tpr = zip(*points, strict=True)
    (line,) = axes.plot(
        fpr,
        tpr,
        color=look.colour,
        linestyle=look.dashes,
        linewidth=0.9 if several else 1.4,
        drawstyle="steps-post",
        marker=look.marker,
        markersize=3.5,
        markevery=max(1, len(points) // 4),
        zorder=2,
    )
    belongs(line, look)


def _alt(report: Report, scores: list[str]) -> str:
    found = []
    for score in scores:
        rows = rows_of(report, "mia", "auc", of=score)
        known_rows = {n: r.value for n, r in rows.items() if r.value is not None}
        if known_rows:
            best = max(known_rows, key=known_rows.__getitem__)
            found.append(f"{score} {number(known_rows[best])} ({best})")
    if not found:
        return f"ROC curves on log axes of {', '.join(scores)}."
    return f"ROC curves on log axes; the highest AUC of {', '.join(found)}."
