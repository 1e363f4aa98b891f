"""The figure of a series: leaks of all its stages, and of the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spark_audit.report.figures.canvas import (
    SMALL_WIDTH,
    TEXT_LINE,
    canvas,
    set_title,
    with_equal_lines,
)
from spark_audit.report.figures.marks import (
    draw_curve,
    draw_legend,
    legend_lines,
    sample_of,
)
from spark_audit.report.figures.styling import ALARM, CHECKPOINT, INK
from spark_audit.report.figures.text_room import plain, wrapped
from spark_audit.report.figures.view import DOUBT_LOOK, Look, Sketch, View
from spark_audit.sentences import render

SERIES_HEIGHT = 1.9
"""Inches of a panel of a series, with a title of one line."""

SERIES_LOOKS = {"series": Look("o", INK), "last": Look("s", INK, filled=False)}
"""Look of each way of sharing: all stages so far, or a single checkpoint."""

SERIES_FOUND_LOOK = Look("o", ALARM)
"""Look of all stages so far if they leak."""

StageRecord = Mapping[str, Any]
"""A record of the table ``series_stages``: one series after one stage."""


def draw_series(view: View) -> Sketch | None:
    """Draw the AUC by stage, a panel for each series, with all stages and with one."""
    by_series: dict[str, list[StageRecord]] = {}
    for record in view.report.tables.get("series_stages", []):
        if record["series_value"]:
            by_series.setdefault(record["checkpoint"], []).append(record)

    names = view.ordered(by_series)
    if not names:
        return None

    rows = view.rows("series", "auc")
    titles = []
    looks = {}
    for name in names:
        doubt = view.doubt(name, "series", rows.get(name))
        looks[name] = series_looks(view, name, doubt)
        titles.append(f"{wrapped(name, width=18, lines=3)}\n{doubt}".rstrip())

    # All panels are equally high, so that their axes stand in line.
    titles = with_equal_lines(titles)

    samples = series_samples(looks)
    height = SERIES_HEIGHT + TEXT_LINE * titles[0].count("\n")
    figure, panels = canvas(
        [height] * len(names), width=SMALL_WIDTH, legend_lines=legend_lines(samples)
    )
    for axes, name, title in zip(panels, names, titles, strict=True):
        set_title(axes, title)
        axes.set_gid(CHECKPOINT + name)
        draw_stage_curves(axes, by_series[name], looks[name])

    share_limits(panels)
    draw_legend(figure, samples)

    # The table of stages may be there without a pooled row.
    counted = ""
    if rows:
        n_rows = max(row.n for row in rows.values())
        counted = render("figure.mia.counted", rows=n_rows)
    return Sketch(
        figure=figure,
        counted=counted,
        values=[
            f"{name} {plain(by_series[name][-1]['series_value'], 2)}" for name in names
        ],
    )


def series_looks(view: View, name: str, doubt: str) -> dict[str, Look]:
    """Return what is shared, and its look: red only where all stages give a leak."""
    if doubt:
        return dict.fromkeys(SERIES_LOOKS, DOUBT_LOOK)
    if view.outcome(name, "series") == "FOUND":
        return {**SERIES_LOOKS, "series": SERIES_FOUND_LOOK}
    return SERIES_LOOKS


def series_samples(
    looks_by_name: Mapping[str, Mapping[str, Look]],
) -> dict[str, Artist]:
    """Return the legend of the looks that the panels have, and of chance."""
    drawn: set[Look] = set()
    for looks in looks_by_name.values():
        drawn.update(looks.values())

    look_by_key = {
        "figure.series.found": SERIES_FOUND_LOOK,
        "figure.series.series": SERIES_LOOKS["series"],
        "figure.series.last": SERIES_LOOKS["last"],
        "figure.key.doubt": DOUBT_LOOK,
    }
    samples: dict[str, Artist] = {}
    for key, look in look_by_key.items():
        if look in drawn:
            samples[render(key)] = sample_of(look, dashes="-")

    samples[render("figure.series.null")] = Line2D([], [], color=INK, linewidth=0.9)
    return samples


def draw_stage_curves(
    axes: Axes, records: Sequence[StageRecord], looks: Mapping[str, Look]
) -> None:
    """Draw chance, and the AUC by stage of each way of sharing, with intervals."""
    axes.axhline(0.5, color=INK, linewidth=0.9)
    for key, look in looks.items():
        # The first stages may have too few rows for an estimate.
        estimated = [record for record in records if record[f"{key}_value"] is not None]
        stages = []
        values = []
        for record in estimated:
            stages.append(record["stage"])
            values.append(record[f"{key}_value"])
        draw_curve(axes, stages, values, look, size=4.5)

        for record in estimated:
            ends = [record[f"{key}_low"], record[f"{key}_high"]]
            if None not in ends:
                stage = record["stage"]
                axes.plot([stage, stage], ends, color=look.colour, linewidth=1)

    ticks = [record["stage"] for record in records]
    axes.set_xticks(ticks, [f"{stage}" for stage in ticks])
    axes.set(xlabel=render("figure.stages_axis"), ylabel=render("figure.series.side"))


def share_limits(panels: Sequence[Axes]) -> None:
    """Give all panels the same vertical axis, so that they can be compared."""
    limits = [axes.get_ylim() for axes in panels]
    low = min(low for low, _ in limits)
    high = max(high for _, high in limits)
    for axes in panels:
        axes.set_ylim(low, high)
