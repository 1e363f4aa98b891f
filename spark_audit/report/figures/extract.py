"""The figure of extraction: shares of trained and held-out identifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_audit.report.figures.canvas import canvas
from spark_audit.report.figures.forest import (
    Forest,
    ForestMarks,
    draw_forest,
    heights_of,
    null_line,
    outcome_samples,
    span_of,
)
from spark_audit.report.figures.marks import draw_legend, legend_lines, sample_of
from spark_audit.report.figures.text_room import spanned
from spark_audit.report.figures.view import HELD_OUT_LOOK, Look, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import optional, render
from spark_audit.stats.intervals import clopper_pearson

if TYPE_CHECKING:
    import pandas as pd

SHARE_LEAST = 0.02
"""Share that every axis reaches at least."""

WHOLE = "identifiers"
"""Value in the column ``variant`` of records on whole identifiers; others are on
parts."""


def draw_extract(view: View) -> Sketch | None:
    """Draw the share that came out word for word, a panel for each prompt."""
    counts = ("clusters", "spans", "found", "held_out", "held_out_found")
    frame = view.frame("extract_prompts", "prompt", "variant", *counts)
    frame = frame[(frame["variant"] == WHOLE) & (frame["spans"] > 0)]
    if frame.empty:
        return None

    forests: dict[str, Forest] = {}
    for prompt, records in frame.groupby("prompt", sort=False):
        forests[str(prompt)] = share_forest(view, records)

    # All panels share the looks, since an audit has one outcome for all prompts.
    first = next(iter(forests.values()))
    samples = outcome_samples(first)
    samples[render("figure.key.held_out")] = sample_of(HELD_OUT_LOOK)
    heights = heights_of(forests.values())
    figure, panels = canvas(heights, legend_lines=legend_lines(samples))

    # One axis for all prompts begins just below 0, so that a mark at 0 is whole.
    highest = max(span_of(forest, least=SHARE_LEAST)[1] for forest in forests.values())
    limits = (-0.02 * highest, min(highest, 1.02))
    for axes, (prompt, forest) in zip(panels, forests.items(), strict=True):
        title = optional(f"figure.extract.{prompt}") or prompt
        label = render("figure.extract.axis")
        draw_forest(axes, forest, title=title, label=label, limits=limits)
        null_line(axes, 0.0, render("figure.extract.null"))

        ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= limits[1]]
        axes.set_xticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
    draw_legend(figure, samples)

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


def share_forest(view: View, records: pd.DataFrame) -> Forest:
    """Return the forest of shares: trained above, held out below in each line.

    Parameters
    ----------
    records
        Columns ``entry``, and the counts ``spans``, ``found``, ``held_out``,
        ``held_out_found`` and ``clusters``.
    """
    trained: dict[str, Row] = {}
    held_out: dict[str, Row] = {}
    values: dict[str, str] = {}
    looks: dict[str, Look] = {}
    records_by_name = {}
    for entry, records_of_entry in records.groupby("entry", sort=False):
        records_by_name[str(entry)] = records_of_entry

    # One line for each checkpoint, the worst on top.
    for name in view.ordered(records_by_name):
        # For a method with several seeds, take the largest counts of any seed.
        largest = records_by_name[name].max(numeric_only=True)
        record = {str(column): value for column, value in largest.items()}
        trained[name] = share_row(
            name, record, found_column="found", tried_column="spans"
        )
        looks[name] = view.look(name, "extract", trained[name])
        lines = [f"{record['found']:g} of {record['spans']:g}"]
        if record["held_out"]:
            # The share of held-out identifiers stands below, as their mark does.
            held_out[name] = share_row(
                name, record, found_column="held_out_found", tried_column="held_out"
            )
            lines.append(f"{record['held_out_found']:g} of {record['held_out']:g}")

        lines.append(view.doubt(name, "extract"))
        values[name] = "\n".join(lines).rstrip()

    held_out_looks = dict.fromkeys(held_out, HELD_OUT_LOOK)
    return Forest(
        lines=list(trained),
        marks=[
            ForestMarks(trained, looks),
            ForestMarks(held_out, held_out_looks, is_reference=True),
        ],
        values=values,
    )


def share_row(
    name: str, record: Mapping[str, Any], *, found_column: str, tried_column: str
) -> Row:
    """Return a share with its exact interval, from two counts of a record."""
    n_found = record[found_column]
    n_tried = record[tried_column]
    share = min(n_found / n_tried, 1.0)

    # Several identifiers of one source count as one.
    n_independent = min(n_tried, record["clusters"] or n_tried)
    low, high = clopper_pearson(share * n_independent, n_independent)
    return Row(
        audit="extract",
        checkpoint=name,
        metric=found_column,
        value=share,
        low=low,
        high=high,
        n=int(n_tried),
    )
