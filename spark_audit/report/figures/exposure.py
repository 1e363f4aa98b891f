"""Exposure of canaries against how often they were in the training rows."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import known, records_of, replicates_said
from spark_audit.report.figures.style import (
    WIDTH,
    Look,
    belongs,
    canvas,
    looks,
    names_height,
    names_legend,
    plain,
    tidy,
)
from spark_audit.report.figures.theme import MUTED, Drawing
from spark_audit.results import Report

MANY = 5
"""Checkpoints from which a part takes the whole width."""
SPREAD = 0.72
"""Share of a dose's place that the checkpoints' marks take."""
BAND = "chance: 95% of what guessing gives"

Place = tuple[bool, float]


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """Mean exposure by dose, a panel a part, held-out canaries apart."""
    entries = records_of(report, "canary_by_dose")
    found = {
        name: known(
            [record for records in members.values() for record in records],
            "part",
            "dose",
            "exposure_mean",
        )
        for name, members in entries.items()
    }
    found = {name: records for name, records in found.items() if records}
    if not found:
        return None
    every = [record for records in found.values() for record in records]
    parts = list(dict.fromkeys(record["part"] for record in every))
    look = looks(report)
    shown = [look[name] for name in found]
    across = min(3, len(parts)) if len(shown) < MANY else 1
    down = -(-len(parts) // across)
    further = [(Patch(color=MUTED, alpha=0.25, linewidth=0), BAND)]
    figure = canvas(
        down * 1.9 + 0.45 + names_height(shown, further=[BAND]), width=WIDTH
    )
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for place, part in enumerate(parts):
        axes = grid.flat[place]
        mine = {
            name: [record for record in records if record["part"] == part]
            for name, records in found.items()
        }
        _panel(axes, {n: r for n, r in mine.items() if r}, look)
        axes.set_title(f"{part}")
    for axes in grid.flat[len(parts) :]:
        axes.remove()
    figure.supylabel("mean exposure, bits\n(higher = more remembered)", fontsize=8)
    names_legend(
        figure,
        shown,
        further=further,
        title="dose: training rows that a canary stood in",
    )
    return Drawing(
        name="exposure",
        audit="canary",
        title="Exposure against dose",
        caption=(
            "Mean exposure of the planted canaries, by part and by how many training "
            "rows they stood in; canaries that were held out (left of the dotted line) "
            "were never trained on. Within the grey band are 95% of the means that a "
            "model gives that remembers nothing: it is as wide as the canaries are few."
            + replicates_said(report)
        ),
        alt=_alt(every, found),
        figure=figure,
    )


def _place(record: dict[str, Any]) -> Place:
    return (not record.get("held_out", False), float(record["dose"]))


def _panel(
    axes: Axes, found: dict[str, list[dict[str, Any]]], look: dict[str, Look]
) -> None:
    every = [record for records in found.values() for record in records]
    places = sorted({_place(record) for record in every})
    tidy(axes, grid="y")
    for spot, place in enumerate(places):
        bounds = known(
            [record for record in every if _place(record) == place],
            "chance_exposure_low",
            "chance_exposure_high",
        )
        if bounds:
            axes.fill_between(
                [spot - 0.5, spot + 0.5],
                min(record["chance_exposure_low"] for record in bounds),
                max(record["chance_exposure_high"] for record in bounds),
                color=MUTED,
                alpha=0.25,
                linewidth=0,
            )
    held_out = sum(not trained for trained, _ in places)
    if 0 < held_out < len(places):
        axes.axvline(held_out - 0.5, color=MUTED, linestyle=":", linewidth=1)
    for rank, (name, records) in enumerate(found.items()):
        shift = SPREAD * ((rank + 0.5) / len(found) - 0.5)
        means: dict[Place, list[float]] = {}
        for record in records:
            means.setdefault(_place(record), []).append(record["exposure_mean"])
        known_places = sorted(means)
        for trained in (False, True):
            spots = [p for p in known_places if p[0] is trained]
            (line,) = axes.plot(
                [places.index(p) + shift for p in spots],
                [sum(means[p]) / len(means[p]) for p in spots],
                color=look[name].colour,
                marker=look[name].marker,
                linestyle=look[name].dashes if trained else "none",
                linewidth=1,
            )
            belongs(line, look[name])
    axes.set_xticks(
        range(len(places)),
        [f"{dose:g}" if trained else "held out" for trained, dose in places],
    )
    axes.set_xlim(-0.5, len(places) - 0.5)


def _alt(every: list[dict[str, Any]], found: dict[str, list[dict[str, Any]]]) -> str:
    part = every[0]["part"]
    said = []
    for name, records in found.items():
        mine = [r for r in records if r["part"] == part]
        if not mine:
            continue
        top = max(map(_place, mine))
        means = [r["exposure_mean"] for r in mine if _place(r) == top]
        where = f"dose {top[1]:g}" if top[0] else "held out"
        said.append(f"{name} {plain(sum(means) / len(means), 1)} bits ({where})")
    return f"Mean exposure by dose; of part {part}, at its highest: {', '.join(said)}."
