"""The figure of the matching: balance before and after, as cobalt draws it."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from spark_audit.report.figures import parts
from spark_audit.report.figures.styling import INK, MUTED
from spark_audit.report.figures.text_room import plain, wrapped
from spark_audit.report.figures.view import Look, Sketch, View
from spark_audit.sentences import optional, render

BEFORE_LOOK = Look("o", INK, filled=False)

AFTER_LOOK = Look("o", INK)

DIFFERENCE_EDGES = (0.1, 0.25)
"""Standardised mean differences that are usually called balanced (Stuart 2010)."""

RATIO_EDGES = (0.5, 2.0)
"""Ratios of variances that are usually called balanced (Rubin 2001)."""

MOST_DIFFERENCE = 1.5
"""Where the axis of differences ends: beyond, an arrow and the number."""

MOST_RATIO = 8.0
"""Where the axis of ratios ends."""

RATIO_TICKS = (0.25, 1.0, 4.0)
"""Ticks that stand apart; 0.5 and 2 are labelled above the panel."""

BALANCE_ROW = 0.25
"""Inches of a covariate."""


def draw_manifest(view: View) -> Sketch | None:
    """Draw a love plot of differences of means, and one of ratios of variances."""
    records = [
        one
        for one in view.report.tables.get("balance", [])
        if one.get("smd_before") is not None and one.get("smd_after") is not None
    ]
    if not records:
        return None
    records.sort(key=lambda one: -abs(one["smd_before"]))
    samples = {
        render("figure.manifest.before"): parts.sample_of(BEFORE_LOOK),
        render("figure.manifest.after"): parts.sample_of(AFTER_LOOK),
    }
    height = len(records) * BALANCE_ROW + parts.AROUND_FOREST
    figure, panels = parts.canvas(
        [height] * 2, legend_lines=parts.legend_lines(samples)
    )
    differences = {
        name_of(one): (abs(one["smd_before"]), abs(one["smd_after"])) for one in records
    }
    title = render("figure.manifest.differences")
    axis = render("figure.manifest.differences_axis")
    panels[0].set_xlim(0.0, MOST_DIFFERENCE)
    draw_love(panels[0], differences, title=title, label=axis, edges=DIFFERENCE_EDGES)
    ratios = {}
    for one in records:
        before, after = (
            one.get("variance_ratio_before"),
            one.get("variance_ratio_after"),
        )
        if before and after:
            ratios[name_of(one)] = (before, after)
    title = render("figure.manifest.ratios")
    axis = render("figure.manifest.ratios_axis")
    panels[1].set_xscale("log", base=2)
    panels[1].set_xlim(1 / MOST_RATIO, MOST_RATIO)
    draw_love(panels[1], ratios, title=title, label=axis, edges=RATIO_EDGES)
    panels[1].set_xticks(RATIO_TICKS, [f"{tick:g}" for tick in RATIO_TICKS])
    panels[1].minorticks_off()
    panels[1].axvline(1.0, color=INK, linewidth=0.9)
    parts.draw_legend(figure, samples)
    kinds = view.report.tables.get("matching_by_type", [])
    matched = sum(one["matched"] for one in kinds)
    every = matched + sum(one["unmatched"] for one in kinds)
    return Sketch(
        figure=figure,
        counted=render("figure.manifest.counted", matched=matched, every=every),
        values=[
            f"{name} {plain(before, 2)}, {plain(after, 2)}"
            for name, (before, after) in differences.items()
        ],
    )


def name_of(record: Mapping[str, object]) -> str:
    """Return what a covariate is called."""
    covariate = str(record["covariate"])
    return optional(f"figure.manifest.covariate.{covariate}") or covariate


def draw_love(
    axes: Axes,
    values: Mapping[str, tuple[float, float]],
    *,
    title: str,
    label: str,
    edges: tuple[float, float],
) -> None:
    """Draw (before, after) of each covariate as an open and a filled mark."""
    low, high = axes.get_xlim()
    for place, (before, after) in enumerate(values.values()):
        inside = [min(max(value, low), high) for value in (before, after)]
        axes.plot(inside, [place] * 2, color=MUTED, linewidth=0.8, zorder=1.8)
        for value, x, look in zip(
            (before, after), inside, (BEFORE_LOOK, AFTER_LOOK), strict=True
        ):
            marker = look.marker if value == x else ">" if value > x else "<"
            drawn = Look(marker, look.colour, look.filled)
            parts.draw_mark(axes, x, place, drawn, gid=None, size=5)
        text = f"{plain(before, 2)} → {plain(after, 2)}"
        axes.text(1.08, place, text, transform=axes.get_yaxis_transform(), va="center")
    parts.draw_edges(axes, edges)
    for edge, side in zip(edges, ("right", "left"), strict=True):
        axes.annotate(
            f"{edge:g}",
            xy=(edge, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 1),
            textcoords="offset points",
            ha=side,
            va="bottom",
            color=MUTED,
        )
    parts.set_title(axes, title, labelled_lines=1)
    axes.set_xlabel(label)
    axes.set_yticks(range(len(values)), [wrapped(name, width=18) for name in values])
    axes.set_ylim(max(len(values), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
