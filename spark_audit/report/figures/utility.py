"""The figure of utility: accuracy by task and stage, Last, Avg and BWT."""

from __future__ import annotations

from collections.abc import Mapping

from spark_audit.report.figures.canvas import canvas
from spark_audit.report.figures.forest import (
    Forest,
    ForestMarks,
    draw_forest,
    heights_of,
    null_line,
    span_of,
)
from spark_audit.report.figures.heat_map import draw_heat, heat_height
from spark_audit.report.figures.stages import accuracy_blocks, rows_by_stage
from spark_audit.report.figures.styling import INK
from spark_audit.report.figures.text_room import plain
from spark_audit.report.figures.view import (
    DOUBT_LOOK,
    PLAIN_LOOK,
    Look,
    Sketch,
    View,
)
from spark_audit.results import Row
from spark_audit.sentences import render

AVERAGE_LOOK = Look("s", INK, filled=False)
"""Avg, below Last, which is a dot."""

LEAST_SHARE = 0.02
"""Least share of right answers at the end of an axis."""


def draw_utility(view: View) -> Sketch | None:
    """Draw accuracy by task and stage, and Last, Avg and BWT with intervals."""
    stages_and_tasks = view.groups_of_stages("utility", "accuracy")
    last = view.rows("utility", "last")
    if not stages_and_tasks and not last:
        return None

    stages = sorted({stage for stage, _ in stages_and_tasks})
    tasks = list(dict.fromkeys(task for _, task in stages_and_tasks))
    rows = rows_by_stage(view, "utility", "accuracy", tasks=tasks, stages=stages)
    blocks = accuracy_blocks(rows)
    forests = utility_forests(view)

    # The heat map stands last: it is much higher than the forests.
    heights = heights_of(forests.values())
    if blocks:
        heights.append(heat_height(blocks, tasks))
    figure, panels = canvas(heights)
    if blocks:
        title = render("figure.stages.accuracy")
        draw_heat(panels.pop(), blocks, tasks=tasks, stages=stages, title=title)
    for axes, (metric, forest) in zip(panels, forests.items(), strict=True):
        draw_forest(
            axes,
            forest,
            title=render(f"figure.utility.{metric}"),
            label=render(f"figure.utility.{metric}_axis"),
            limits=span_of(forest, least=LEAST_SHARE),
        )
        if metric == "bwt":
            null_line(axes, 0.0, render("figure.utility.null"))

    # The title states the smallest number of rows behind any of the figures.
    sizes = [row.n for row in last.values()]
    for cells in rows.values():
        sizes += [row.n for row in cells.values()]

    drawn_rows: list[Row] = []
    for forest in forests.values():
        drawn_rows += forest.marks[0].rows.values()

    return Sketch(
        figure=figure,
        rows=drawn_rows,
        counted=render("figure.utility.counted", rows=min(sizes, default=0)),
        values=[f"{name} {plain(row.value or 0.0, 2)}" for name, row in last.items()],
    )


def utility_forests(view: View) -> dict[str, Forest]:
    """Return forests of Last and Avg, and of BWT, of the checkpoints that have them."""
    last = view.rows("utility", "last")
    average = view.rows("utility", "avg")
    transfer = view.rows("utility", "bwt")
    forests = {}
    if last:
        marks = [utility_marks(view, last, PLAIN_LOOK)]
        if average:
            marks.append(utility_marks(view, average, AVERAGE_LOOK))

        values = {}
        for name, row in last.items():
            values[name] = plain(row.value or 0.0, 2)
            if name in average:
                values[name] += f" | {plain(average[name].value or 0.0, 2)}"
        forests["last"] = Forest(list(last), marks, values=values)

    # A checkpoint with one stage has no earlier task and so no BWT.
    if transfer:
        values = {}
        for name, row in transfer.items():
            values[name] = plain(row.value or 0.0, 2)
        marks = [utility_marks(view, transfer, PLAIN_LOOK)]
        forests["bwt"] = Forest(list(transfer), marks, values=values)
    return forests


def utility_marks(view: View, rows: Mapping[str, Row], look: Look) -> ForestMarks:
    """Return marks of one look, and grey crosses where a row is void."""
    looks = {}
    for name, row in rows.items():
        is_void = bool(view.doubt(name, "utility", row))
        looks[name] = DOUBT_LOOK if is_void else look
    return ForestMarks(rows, looks)
