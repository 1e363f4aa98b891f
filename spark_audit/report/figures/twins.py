"""The figure of twins: how far identifiers rose among strings like them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_audit.report.figures import parts
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
"""Bits that an axis has at least beyond the null."""


def draw_twins(view: View) -> Sketch | None:
    """Draw the gain since the base, of trained, of held-out, and the difference."""
    metric = "rise"
    trained = view.rows("twins", metric, of="trained")
    if not trained:
        metric = "exposure_mean"
        trained = view.rows("twins", metric, of="trained")
    if not trained:
        return None
    held_out = view.rows("twins", metric, of="never-trained")
    beyond = view.rows("twins", "beyond", of=metric)
    less = [name for name, row in beyond.items() if (row.value or 0.0) < 0]
    forests = {
        "gain": gain_forest(view, trained, held_out, metric=metric, less_likely=less)
    }
    if beyond:
        forests["beyond"] = beyond_forest(view, beyond)

    samples = parts.outcome_samples(next(reversed(forests.values())))
    samples = {render("figure.key.held_out"): parts.sample_of(HELD_OUT_LOOK)} | samples
    figure, panels = parts.canvas(
        parts.heights_of(forests.values()),
        legend_lines=parts.legend_lines(samples),
    )
    for axes, (key, forest) in zip(panels, forests.items(), strict=True):
        words = f"figure.twins.{key if key == 'beyond' else metric}"
        limits = parts.span_of(forest, least=BITS_LEAST)
        title = render(f"{words}_title")
        axis = render(f"{words}_axis")
        parts.draw_forest(
            axes, forest, title=title, label=axis, limits=limits, labelled_lines=2
        )
        parts.null_line(axes, forest.null, render(f"{words}_null"))
    leaking = [name for name in view.leaking(beyond, "twins") if name not in less]
    if leaking:
        strongest = max(leaking, key=lambda name: beyond[name].value or 0.0)
        parts.leak_line(panels[-1], beyond[strongest].value or 0.0, strongest)
    parts.draw_legend(figure, samples)
    sizes = [row.n for row in trained.values()]
    held_out_sizes = [row.n for row in held_out.values()] or [0]
    texts = forests["gain"].values
    return Sketch(
        figure=figure,
        rows=[*trained.values(), *held_out.values(), *beyond.values()],
        counted=render(
            "figure.identifiers",
            trained=spanned(sizes),
            held_out=spanned(held_out_sizes),
        ),
        values=[f"{name} {text}" for name, text in texts.items()],
    )


def gain_forest(
    view: View,
    trained: Mapping[str, Row],
    held_out: Mapping[str, Row],
    *,
    metric: str,
    less_likely: Collection[str],
) -> parts.Forest:
    """Return the forest of trained (above) and held-out identifiers (below).

    ``less_likely`` are checkpoints whose trained ones gained less than held-out ones.
    """
    looks: dict[str, Look] = {}
    values: dict[str, str] = {}
    for name, row in trained.items():
        looks[name] = view.look(name, "twins", row, is_leak=name not in less_likely)
        values[name] = f"{plain(row.value or 0.0, 2)}"
        if name in held_out:
            values[name] += f" | {plain(held_out[name].value or 0.0, 2)}"
        values[name] += (
            f"\n{doubt}" if (doubt := view.doubt(name, "twins", row)) else ""
        )
    nulls = [row.null for row in trained.values() if row.null is not None]
    return parts.Forest(
        lines=list(trained),
        marks=[
            parts.ForestMarks(trained, looks),
            parts.ForestMarks(
                held_out, dict.fromkeys(held_out, HELD_OUT_LOOK), is_reference=True
            ),
        ],
        values=values,
        null=nulls[0] if nulls and metric != "rise" else 0.0,
    )


def beyond_forest(view: View, beyond: Mapping[str, Row]) -> parts.Forest:
    """Return the forest of what trained identifiers gained beyond held-out ones."""
    looks: dict[str, Look] = {}
    values: dict[str, str] = {}
    ends: dict[str, float] = {}
    for name, row in beyond.items():
        looks[name] = view.look(name, "twins", row, is_leak=(row.value or 0.0) > 0)
        values[name] = interval_text(row, digits=2)
        end = row.at_most
        if looks[name] == NOTHING_LOOK and end is not None and end > 0:
            ends[name] = end
    marks = [parts.ForestMarks(beyond, looks)]
    return parts.Forest(lines=list(beyond), marks=marks, values=values, ends=ends)


def interval_text(row: Row, *, digits: int, scale: float = 1.0) -> str:
    """Return a value, and its interval in the next line."""
    text = plain(scale * (row.value or 0.0), digits)
    if row.ends is None:
        return text
    low, high = (plain(scale * end, digits) for end in row.ends)
    return f"{text}\n[{low}, {high}]"
