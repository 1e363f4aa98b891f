"""The figure of twins: how far identifiers rose among strings like them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from spark_audit.report.figures.canvas import canvas
from spark_audit.report.figures.forest import (
    Forest,
    ForestMarks,
    draw_forest,
    heights_of,
    leak_line,
    null_line,
    outcome_samples,
    span_of,
)
from spark_audit.report.figures.marks import draw_legend, legend_lines, sample_of
from spark_audit.report.figures.text_room import plain, spanned
from spark_audit.report.figures.view import (
    HELD_OUT_LOOK,
    NOTHING_LOOK,
    Look,
    Sketch,
    View,
)
from spark_audit.results import Row
from spark_audit.sentences import render

BITS_LEAST = 0.3
"""Least length of an axis beyond the null, bits."""


def draw_twins(view: View) -> Sketch | None:
    """Draw the gain since the base, of trained, of held-out, and the difference."""
    # Without a base there is no rise, so draw the exposure itself.
    metric = "rise"
    trained = view.rows("twins", metric, variant="trained")
    if not trained:
        metric = "exposure_mean"
        trained = view.rows("twins", metric, variant="trained")
    if not trained:
        return None

    held_out = view.rows("twins", metric, variant="never-trained")
    beyond = view.rows("twins", "beyond", variant=metric)
    less_likely = [name for name, row in beyond.items() if (row.value or 0.0) < 0]

    gain = gain_forest(view, trained, held_out, metric=metric, less_likely=less_likely)
    forests = {metric: gain}
    if beyond:
        forests["beyond"] = beyond_forest(view, beyond)

    # The last panel has all outcomes: a finding rests on the difference.
    last_forest = next(reversed(forests.values()))
    samples: dict[str, Artist] = {}
    samples[render("figure.key.held_out")] = sample_of(HELD_OUT_LOOK)
    samples |= outcome_samples(last_forest)

    heights = heights_of(forests.values())
    figure, panels = canvas(heights, legend_lines=legend_lines(samples))
    for axes, (panel, forest) in zip(panels, forests.items(), strict=True):
        draw_forest(
            axes,
            forest,
            title=render(f"figure.twins.{panel}_title"),
            label=render(f"figure.twins.{panel}_axis"),
            limits=span_of(forest, least=BITS_LEAST),
            labelled_lines=2,
        )
        null_line(axes, forest.no_effect, render(f"figure.twins.{panel}_null"))

    draw_strongest_leak(panels[-1], view, beyond)
    draw_legend(figure, samples)
    n_held_out = [row.n for row in held_out.values()] or [0]
    return Sketch(
        figure=figure,
        rows=[*trained.values(), *held_out.values(), *beyond.values()],
        counted=render(
            "figure.identifiers",
            trained=spanned(row.n for row in trained.values()),
            held_out=spanned(n_held_out),
        ),
        values=[f"{name} {text}" for name, text in gain.values.items()],
    )


def draw_strongest_leak(axes: Axes, view: View, beyond: Mapping[str, Row]) -> None:
    """Draw the largest gain beyond held-out identifiers as a line, if any is a leak."""
    gains = {}
    for name in view.leaking(beyond, "twins"):
        gain = beyond[name].value or 0.0
        # Trained identifiers that gained less than held-out ones are no leak.
        if gain >= 0:
            gains[name] = gain

    if gains:
        strongest = max(gains, key=lambda name: gains[name])
        leak_line(axes, gains[strongest], strongest)


def gain_forest(
    view: View,
    trained: Mapping[str, Row],
    held_out: Mapping[str, Row],
    *,
    metric: str,
    less_likely: Collection[str],
) -> Forest:
    """Return the forest of trained (above) and held-out identifiers (below).

    ``less_likely`` are checkpoints whose trained ones gained less than held-out ones.
    """
    looks: dict[str, Look] = {}
    values: dict[str, str] = {}
    for name, row in trained.items():
        looks[name] = view.look(name, "twins", row, is_leak=name not in less_likely)

        text = plain(row.value or 0.0, 2)
        if name in held_out:
            text += f" | {plain(held_out[name].value or 0.0, 2)}"
        doubt = view.doubt(name, "twins", row)
        values[name] = f"{text}\n{doubt}" if doubt else text

    # Nothing has risen where there is no memory; exposure has a null of its own.
    nulls = [row.no_effect for row in trained.values() if row.no_effect is not None]
    null = 0.0
    if nulls and metric != "rise":
        null = nulls[0]

    held_out_looks = dict.fromkeys(held_out, HELD_OUT_LOOK)
    return Forest(
        lines=list(trained),
        marks=[
            ForestMarks(trained, looks),
            ForestMarks(held_out, held_out_looks, is_reference=True),
        ],
        values=values,
        no_effect=null,
    )


def beyond_forest(view: View, beyond: Mapping[str, Row]) -> Forest:
    """Return the forest of gains of trained identifiers beyond held-out ones."""
    looks: dict[str, Look] = {}
    values: dict[str, str] = {}
    band_ends: dict[str, float] = {}
    for name, row in beyond.items():
        looks[name] = view.look(name, "twins", row, is_leak=(row.value or 0.0) > 0)
        values[name] = interval_text(row, digits=2)
        if looks[name] == NOTHING_LOOK and row.at_most is not None and row.at_most > 0:
            band_ends[name] = row.at_most

    marks = [ForestMarks(beyond, looks)]
    return Forest(lines=list(beyond), marks=marks, values=values, band_ends=band_ends)


def interval_text(row: Row, *, digits: int) -> str:
    """Return a value, and its interval in the next line."""
    text = plain(row.value or 0.0, digits)
    if row.ends is None:
        return text
    low, high = row.ends
    return f"{text}\n[{plain(low, digits)}, {plain(high, digits)}]"
