"""Distribution of the ranks of identifier and control tokens."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.audits.contract import BASE
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import known, records_of, replicates_said
from spark_audit.report.figures.style import (
    WIDTH,
    Look,
    belongs,
    canvas,
    grid_of,
    legend,
    legend_height,
    looks,
    plain,
    sample,
    ticked,
    tidy,
    wrapped,
)
from spark_audit.report.figures.theme import MUTED, Drawing
from spark_audit.results import Report

TOGETHER = 4
"""Checkpoints up to which one axis holds all curves."""
SIDES = {"pii": "identifiers", "control": "equally hard other text (control)"}
DOTTED = (0, (3, 1.2))


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """Share of tokens with at most a given rank, identifiers solid, controls dashed."""
    curves = {
        name: found
        for name, members in records_of(report, "rank_distribution").items()
        if (found := _curves(members)).get("pii")
    }
    if not curves:
        return None
    look = looks(report)
    shown = [look[name] for name in curves]
    together = len(curves) <= TOGETHER
    labels = list(SIDES.values())
    handles = [
        Line2D([], [], color=MUTED, linestyle="-"),
        Line2D([], [], color=MUTED, linestyle=DOTTED),
    ]
    owners: list[Look | None] = [None, None]
    if together:
        handles = [sample(one) for one in shown] + handles
        labels = [one.name for one in shown] + labels
        owners = [*shown, None, None]
        for handle in handles[: len(shown)]:
            handle.set_linestyle("-")
    elif BASE in curves:
        handles.append(Line2D([], [], color=MUTED, linewidth=0.8))
        labels.append("identifiers on the base")
        owners.append(None)
    down, across = (1, 1) if together else grid_of(len(curves), most=3)
    titles = [wrapped(name, width=24) for name in curves]
    tall = 3.0 if together else 1.55 + 0.13 * max(t.count("\n") for t in titles)
    width = 5.2 if together else WIDTH
    figure = canvas(down * tall + 0.3 + legend_height(labels, width=width), width=width)
    grid = figure.subplots(
        down, across, squeeze=False, sharex=not together, sharey=not together
    )
    for place, (name, sides) in enumerate(curves.items()):
        axes = grid.flat[0 if together else place]
        if not together:
            belongs(axes.set_title(titles[place]), look[name])
            if BASE in curves and name != BASE:
                axes.plot(*_points(curves[BASE]["pii"]), color=MUTED, linewidth=0.8)
        for side, dashes in (("pii", "-"), ("control", DOTTED)):
            if side in sides:
                _curve(axes, look[name], sides[side], dashes, place)
    used = grid.flat[: 1 if together else len(curves)]
    longest = max(r for sides in curves.values() for s in sides.values() for r in s)
    for axes in used:
        axes.set_xscale("log", base=2)
        ranks = [2**k for k in range(0, longest.bit_length() + 1, 2)]
        ticked(axes.xaxis, ranks if len(ranks) <= 8 else ranks[::2])
        axes.set_ylim(0.0, 1.02)
        axes.set_xlim(0.9, longest * 1.1)
        tidy(axes, grid="both")
    for axes in grid.flat[len(used) :]:
        axes.remove()
    if not together:
        for place in range(len(curves)):
            if place + across >= len(curves):
                grid.flat[place].tick_params(axis="x", labelbottom=True)
    figure.supylabel("share of tokens with at most this rank", fontsize=8)
    legend(
        figure,
        handles,
        labels,
        owners=owners,
        title="rank of the true token (lower = more likely)",
    )
    return Drawing(
        name="ranks",
        audit="rank",
        title="Distribution of ranks",
        caption=(
            "Share of tokens whose rank in the whole vocabulary, after their true "
            "prefix, is at most the given one; matched train rows. A curve that lies "
            "lower is of tokens harder to guess." + replicates_said(report)
        ),
        alt=_alt(curves),
        figure=figure,
    )


def _curves(members: dict[str, list[dict[str, Any]]]) -> dict[str, dict[int, float]]:
    """Side -> rank -> share, the mean over replicates where all of them have it."""
    found: dict[str, dict[int, float]] = {}
    for side in SIDES:
        shares: dict[int, list[float]] = {}
        for records in members.values():
            for record in known(records, "rank", "share"):
                if record.get("of") == side:
                    shares.setdefault(int(record["rank"]), []).append(record["share"])
        most = max((len(s) for s in shares.values()), default=0)
        curve = {r: sum(s) / most for r, s in sorted(shares.items()) if len(s) == most}
        if curve:
            found[side] = curve
    return found


def _points(curve: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())


def _curve(
    axes: Axes, look: Look, curve: dict[int, float], dashes: Any, place: int
) -> None:
    (line,) = axes.plot(
        *_points(curve),
        color=look.colour,
        linestyle=dashes,
        marker=look.marker,
        markersize=4,
        markevery=(place % 2, 2),
    )
    belongs(line, look)


def _alt(curves: dict[str, dict[str, dict[int, float]]]) -> str:
    found = []
    for name, sides in curves.items():
        within = [
            f"{plain(100 * sides[side][1], 1)}% of {said}"
            for side, said in (("pii", "identifier tokens"), ("control", "controls"))
            if 1 in sides.get(side, {})
        ]
        if within:
            found.append(f"{name}: {' and '.join(within)}")
    return f"Curves of the share of tokens by rank; at rank 1, {'; '.join(found)}."
