"""The figure of selectivity: its change since the reference, and paired contrasts."""

from __future__ import annotations

from collections.abc import Mapping

from spark_audit.names import BASE
from spark_audit.report.figures.canvas import canvas
from spark_audit.report.figures.forest import (
    Forest,
    ForestMarks,
    draw_forest,
    heights_of,
    null_line,
    span_of,
)
from spark_audit.report.figures.twins import interval_text
from spark_audit.report.figures.view import DOUBT_LOOK, PLAIN_LOOK, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import render


def draw_selectivity(view: View) -> Sketch | None:
    """Draw Delta_sel since the reference, and differences between checkpoints."""
    # Without a reference there is no change, so draw the level itself.
    key = "changes"
    rows_of_first = view.rows("matched", "delta_sel", variant="change")
    if not rows_of_first:
        key = "levels"
        rows_of_first = view.rows("matched", "delta_sel")
    if not rows_of_first:
        return None

    first = selectivity_forest(view, rows_of_first)
    forests = [first]
    titles = [render(f"figure.selectivity.{key}")]
    labels = [render(f"figure.selectivity.{key}_axis")]
    drawn_rows: list[Row] = [*rows_of_first.values()]
    for baseline, contrasts in view.contrasts("matched", "did").items():
        ordered = {name: contrasts[name] for name in view.ordered(contrasts)}
        forests.append(selectivity_forest(view, ordered))
        titles.append(render("figure.selectivity.contrasts", baseline=baseline))
        labels.append(render("figure.selectivity.contrasts_axis"))
        drawn_rows += ordered.values()

    figure, panels = canvas(heights_of(forests))
    for axes, forest, title, label in zip(panels, forests, titles, labels, strict=True):
        draw_forest(axes, forest, title=title, label=label, limits=span_of(forest))
        null_line(axes, 0.0, render("figure.selectivity.null"))

    # Checkpoints may lack groups: the title has the most that any is measured on.
    n_groups = max(row.clusters for row in rows_of_first.values())
    return Sketch(
        figure=figure,
        rows=drawn_rows,
        counted=render("figure.selectivity.counted", groups=n_groups),
        values=[f"{name} {text}" for name, text in first.values.items()],
    )


def selectivity_forest(view: View, rows: Mapping[str, Row]) -> Forest:
    """Return a forest in nats; of the reference itself there is no change to show."""
    shown_rows = {}
    looks = {}
    values = {}
    for name, row in rows.items():
        if name == BASE and not row.value:
            continue

        doubt = view.doubt(name, "matched", row)
        shown_rows[name] = row
        looks[name] = DOUBT_LOOK if doubt else PLAIN_LOOK
        text = interval_text(row, digits=3)
        values[name] = f"{text}\n{doubt}" if doubt else text

    return Forest(list(shown_rows), [ForestMarks(shown_rows, looks)], values=values)
