"""The figure of extraction: how many came out, of trained and of held-out rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_audit.report.figures import parts
from spark_audit.report.figures.text_room import spanned
from spark_audit.report.figures.view import HELD_OUT_LOOK, Look, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import optional, render
from spark_audit.stats.intervals import clopper_pearson

if TYPE_CHECKING:
    import pandas as pd

SHARE_LEAST = 0.02
"""Share that an axis has at least."""

WHOLE = "identifiers"
"""Records of whole identifiers; the others are of parts of them."""


def draw_extract(view: View) -> Sketch | None:
    """Draw the share that came out word for word, a panel for each prompt."""
    counts = ("clusters", "spans", "found", "held_out", "held_out_found")
    frame = view.frame("extract_prompts", "prompt", "of", *counts)
    frame = frame[(frame["of"] == WHOLE) & (frame["spans"] > 0)]
    if frame.empty:
        return None
    forests: dict[str, parts.Forest] = {}
    for prompt, own in frame.groupby("prompt", sort=False):
        forests[str(prompt)] = share_forest(view, own)
    first = next(iter(forests.values()))
    held_out_key = render("figure.key.held_out")
    samples = parts.outcome_samples(first)
    samples[held_out_key] = parts.sample_of(HELD_OUT_LOOK)
    figure, panels = parts.canvas(
        parts.heights_of(forests.values()), legend_lines=parts.legend_lines(samples)
    )
    ends = [parts.span_of(one, least=SHARE_LEAST)[1] for one in forests.values()]
    limits = (-0.02 * max(ends), min(max(ends), 1.02))
    for axes, (prompt, forest) in zip(panels, forests.items(), strict=True):
        title = optional(f"figure.extract.{prompt}") or prompt
        axis = render("figure.extract.axis")
        parts.draw_forest(axes, forest, title=title, label=axis, limits=limits)
        parts.null_line(axes, 0.0, render("figure.extract.null"))
        ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= limits[1]]
        axes.set_xticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
    parts.draw_legend(figure, samples)
    return Sketch(
        figure=figure,
        rows=[*first.marks[0].rows.values()],
        counted=render(
            "figure.identifiers",
            trained=spanned(frame["spans"].astype(int)),
            held_out=spanned(frame["held_out"].astype(int)),
        ),
        values=[f"{name} {text}" for name, text in first.values.items()],
    )


def share_forest(view: View, own: pd.DataFrame) -> parts.Forest:
    """Return the forest of shares: trained above, held out below in each line."""
    trained: dict[str, Row] = {}
    held_out: dict[str, Row] = {}
    values: dict[str, str] = {}
    looks: dict[str, Look] = {}
    by_name = {str(name): mine for name, mine in own.groupby("entry", sort=False)}
    for name in view.ordered(by_name):
        largest = by_name[name].max(numeric_only=True)
        record = {str(column): value for column, value in largest.items()}
        trained[name] = share_row(name, record, "found", "spans")
        looks[name] = view.look(name, "extract", trained[name])
        values[name] = f"{record['found']:g} of {record['spans']:g}"
        if record["held_out"]:
            held_out[name] = share_row(name, record, "held_out_found", "held_out")
            values[name] += f"\n{record['held_out_found']:g} of {record['held_out']:g}"
        doubt = view.doubt(name, "extract")
        values[name] += f"\n{doubt}" if doubt else ""
    return parts.Forest(
        lines=list(trained),
        marks=[
            parts.ForestMarks(trained, looks),
            parts.ForestMarks(
                held_out, dict.fromkeys(held_out, HELD_OUT_LOOK), is_reference=True
            ),
        ],
        values=values,
    )


def share_row(name: str, record: Mapping[str, Any], found: str, tried: str) -> Row:
    """Return a share with its exact interval, of counts of a table."""
    share = min(record[found] / record[tried], 1.0)
    # Several identifiers of one source tell no more than one.
    independent = min(record[tried], record["clusters"] or record[tried])
    low, high = clopper_pearson(share * independent, independent)
    return Row(
        audit="extract",
        checkpoint=name,
        metric=found,
        value=share,
        low=low,
        high=high,
        n=int(record[tried]),
    )
