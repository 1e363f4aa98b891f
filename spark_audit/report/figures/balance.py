"""The figure of the matching: balance before and after, as cobalt draws it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes

from spark_audit.report.figures.canvas import canvas, set_title
from spark_audit.report.figures.forest import AROUND_FOREST
from spark_audit.report.figures.marks import (
    draw_edges,
    draw_legend,
    draw_mark,
    legend_lines,
    sample_of,
)
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

BeforeAndAfter = Mapping[str, tuple[float, float]]
"""Covariate -> its imbalance before and after matching."""


def draw_manifest(view: View) -> Sketch | None:
    """Draw a love plot of differences of means, and one of ratios of variances."""
    records = balance_records(view)
    if not records:
        return None

    # The sign of a difference says only which side is harder, not how much.
    differences: dict[str, tuple[float, float]] = {}
    for record in records:
        before, after = record["smd_before"], record["smd_after"]
        differences[name_of(record)] = (abs(before), abs(after))

    samples = {
        render("figure.manifest.before"): sample_of(BEFORE_LOOK),
        render("figure.manifest.after"): sample_of(AFTER_LOOK),
    }
    height = len(records) * BALANCE_ROW + AROUND_FOREST
    figure, panels = canvas([height] * 2, legend_lines=legend_lines(samples))
    draw_differences(panels[0], differences)
    draw_ratios(panels[1], variance_ratios(records))
    draw_legend(figure, samples)

    by_type = view.report.tables.get("matching_by_type", [])
    n_matched = sum(record["matched"] for record in by_type)
    n_unmatched = sum(record["unmatched"] for record in by_type)
    return Sketch(
        figure=figure,
        counted=render(
            "figure.manifest.counted", matched=n_matched, every=n_matched + n_unmatched
        ),
        values=[
            f"{name} {plain(before, 2)}, {plain(after, 2)}"
            for name, (before, after) in differences.items()
        ],
    )


def balance_records(view: View) -> list[dict[str, Any]]:
    """Return the covariates with a difference on both sides, the largest first."""
    records = []
    for record in view.report.tables.get("balance", []):
        differences = record.get("smd_before"), record.get("smd_after")
        if None not in differences:
            records.append(record)

    records.sort(key=lambda record: -abs(record["smd_before"]))
    return records


def variance_ratios(records: Iterable[Mapping[str, Any]]) -> BeforeAndAfter:
    """Return the ratios of variances; a covariate without variance has none."""
    ratios = {}
    for record in records:
        before = record.get("variance_ratio_before")
        after = record.get("variance_ratio_after")
        # A log axis has no place for 0.
        if before and after:
            ratios[name_of(record)] = (before, after)
    return ratios


def name_of(record: Mapping[str, object]) -> str:
    """Return what a covariate is called."""
    covariate = str(record["covariate"])
    return optional(f"figure.manifest.covariate.{covariate}") or covariate


def draw_differences(axes: Axes, differences: BeforeAndAfter) -> None:
    """Draw the panel of standardised differences of means."""
    axes.set_xlim(0.0, MOST_DIFFERENCE)
    draw_love(
        axes,
        differences,
        title=render("figure.manifest.differences"),
        label=render("figure.manifest.differences_axis"),
        edges=DIFFERENCE_EDGES,
    )


def draw_ratios(axes: Axes, ratios: BeforeAndAfter) -> None:
    """Draw the panel of ratios of variances, on a log axis around 1."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(1 / MOST_RATIO, MOST_RATIO)  # before marks are clamped to it
    draw_love(
        axes,
        ratios,
        title=render("figure.manifest.ratios"),
        label=render("figure.manifest.ratios_axis"),
        edges=RATIO_EDGES,
    )

    # A log axis has ticks at every power of 2: too many for a narrow panel.
    axes.set_xticks(RATIO_TICKS, [f"{tick:g}" for tick in RATIO_TICKS])
    axes.minorticks_off()
    axes.axvline(1.0, color=INK, linewidth=0.9)


def draw_love(
    axes: Axes,
    values: BeforeAndAfter,
    *,
    title: str,
    label: str,
    edges: tuple[float, float],
) -> None:
    """Draw (before, after) of each covariate as an open and a filled mark."""
    low, high = axes.get_xlim()
    for height, (before, after) in enumerate(values.values()):
        ends = [min(max(before, low), high), min(max(after, low), high)]
        axes.plot(ends, [height] * 2, color=MUTED, linewidth=0.8, zorder=1.8)
        draw_balance_mark(axes, before, BEFORE_LOOK, height=height)
        draw_balance_mark(axes, after, AFTER_LOOK, height=height)

        text = f"{plain(before, 2)} → {plain(after, 2)}"
        axes.text(1.08, height, text, transform=axes.get_yaxis_transform(), va="center")

    draw_edges(axes, edges)
    label_edges(axes, edges)

    # The first covariate, which differs most, stands on top.
    set_title(axes, title, labelled_lines=1)
    axes.set_xlabel(label)
    axes.set_yticks(range(len(values)), [wrapped(name, width=18) for name in values])
    axes.set_ylim(max(len(values), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def draw_balance_mark(axes: Axes, value: float, look: Look, *, height: float) -> None:
    """Draw a value; one beyond the axis is an arrow at its end."""
    low, high = axes.get_xlim()
    if value > high:
        look = Look(">", look.colour, look.filled)
    elif value < low:
        look = Look("<", look.colour, look.filled)
    draw_mark(axes, min(max(value, low), high), height, look, gid=None, size=5)


def label_edges(axes: Axes, edges: tuple[float, float]) -> None:
    """Write both thresholds above a panel, away from each other."""
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
