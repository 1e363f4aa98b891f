"""The figure of selectivity: its change since the reference, and paired contrasts."""

from __future__ import annotations

from collections.abc import Mapping

from spark_audit.names import BASE
from spark_audit.report.figures import parts
from spark_audit.report.figures.twins import interval_text
from spark_audit.report.figures.view import DOUBT_LOOK, PLAIN_LOOK, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import render


def draw_selectivity(view: View) -> Sketch | None:
    """Draw Delta_sel since the reference, and differences between checkpoints."""
    changes = view.rows("matched", "delta_sel", of="change")
    key = "changes"
    if not changes:
        changes = view.rows("matched", "delta_sel")
        key = "levels"
    if not changes:
        return None
    forests = {key: selectivity_forest(view, changes)}
    figure_rows: list[Row] = [*changes.values()]
    titles = {key: render(f"figure.selectivity.{key}")}
    for baseline, rows in view.contrasts("matched", "did").items():
        ordered = {name: rows[name] for name in view.ordered(rows)}
        forests[baseline] = selectivity_forest(view, ordered)
        titles[baseline] = render("figure.selectivity.contrasts", baseline=baseline)
        figure_rows += ordered.values()
    figure, panels = parts.canvas(parts.heights_of(forests.values()))
    for axes, (panel, forest) in zip(panels, forests.items(), strict=True):
        limits = parts.span_of(forest)
        kind = panel if panel == key else "contrasts"
        axis = render(f"figure.selectivity.{kind}_axis")
        parts.draw_forest(axes, forest, title=titles[panel], label=axis, limits=limits)
        parts.null_line(axes, 0.0, render("figure.selectivity.null"))
    sizes = [row.clusters for row in changes.values()]
    first = forests[key].values
    return Sketch(
        figure=figure,
        rows=figure_rows,
        counted=render("figure.selectivity.counted", groups=max(sizes)),
        values=[f"{name} {text}" for name, text in first.items()],
    )


def selectivity_forest(view: View, rows: Mapping[str, Row]) -> parts.Forest:
    """Return a forest in nats; of the reference itself there is no change to show."""
    shown = {name: row for name, row in rows.items() if name != BASE or row.value}
    looks = {}
    values = {}
    for name, row in shown.items():
        doubt = view.doubt(name, "matched", row)
        looks[name] = DOUBT_LOOK if doubt else PLAIN_LOOK
        values[name] = interval_text(row, digits=3)
        if doubt:
            values[name] += f"\n{doubt}"
    return parts.Forest(list(shown), [parts.ForestMarks(shown, looks)], values=values)
