"""The figure of doors: what is told of rows by what an attacker sees of a checkpoint.

A panel for each checkpoint has a line for each access, from the one that sees least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist

from spark_audit.audits.doors.accesses import DOORS
from spark_audit.audits.doors.outcomes import CONFOUNDED, SHOWN
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
from spark_audit.report.figures.marks import draw_legend, legend_lines, sample_of
from spark_audit.report.figures.styling import CHECKPOINT
from spark_audit.report.figures.text_room import plain
from spark_audit.report.figures.view import (
    DOUBT_LOOK,
    FOUND_LOOK,
    HELD_OUT_LOOK,
    NOTHING_LOOK,
    Look,
    Sketch,
    View,
)
from spark_audit.results import Row
from spark_audit.sentences import render

DOORS_AUDIT = "doors"

OUTCOMES_TABLE = "doors_outcomes"

CHANCE_AUC = 0.5

AUC_LEAST = 0.1
"""Least length of an axis beyond chance."""

LOOK_OF_KEY = {"shown": FOUND_LOOK, "not_shown": NOTHING_LOOK, "confounded": DOUBT_LOOK}
"""Key of the legend -> look of what the tests of an access came to."""


def draw_doors(view: View) -> Sketch | None:
    """Draw the AUC of each access, a panel for each checkpoint, next to the base's."""
    rows_by_door: dict[str, Mapping[str, Row]] = {}
    names: list[str] = []
    for door in DOORS:
        row_by_name = view.rows(DOORS_AUDIT, "auc", variant=door.name)
        if row_by_name:
            rows_by_door[door.name] = row_by_name
            names += row_by_name
    audited = [name for name in view.ordered(names) if name != BASE]
    if not audited:
        return None

    outcomes = _outcomes(view)
    forests = {
        name: _forest(view, name, rows_by_door, outcomes.get(name, {}))
        for name in audited
    }
    samples = _samples(list(forests.values()))
    figure, panels = canvas(
        heights_of(forests.values()), legend_lines=legend_lines(samples)
    )
    for axes, (name, forest) in zip(panels, forests.items(), strict=True):
        doubt = view.doubt(name, DOORS_AUDIT)
        draw_forest(
            axes,
            forest,
            title=f"{name}: {doubt}" if doubt else name,
            label=render("figure.doors.axis"),
            limits=span_of(forest, least=AUC_LEAST),
        )
        null_line(axes, CHANCE_AUC, render("figure.doors.null"))
        axes.set_gid(CHECKPOINT + name)
    draw_legend(figure, samples)

    rows: list[Row] = []
    values: list[str] = []
    for name, forest in forests.items():
        rows += forest.marks[0].rows.values()
        words = [f"{line} {value}" for line, value in forest.values.items()]
        values.append(f"{name} {', '.join(words)}")
    return Sketch(figure=figure, rows=rows, values=values)


def _outcomes(view: View) -> dict[str, dict[str, str]]:
    """Return checkpoint -> access -> what its tests came to."""
    outcomes: dict[str, dict[str, str]] = {}
    for record in view.report.tables.get(OUTCOMES_TABLE, ()):
        of_checkpoint = outcomes.setdefault(str(record["checkpoint"]), {})
        of_checkpoint[str(record["variant"])] = str(record["says"])
    return outcomes


def _forest(
    view: View,
    name: str,
    rows_by_door: Mapping[str, Mapping[str, Row]],
    outcomes: Mapping[str, str],
) -> Forest:
    """Return the forest of a checkpoint: its AUCs above those of the base.

    Parameters
    ----------
    rows_by_door
        Access -> checkpoint -> its AUC.
    outcomes
        Access -> what the tests of this checkpoint came to.
    """
    rows: dict[str, Row] = {}
    looks: dict[str, Look] = {}
    values: dict[str, str] = {}
    base_rows: dict[str, Row] = {}
    for door, row_by_name in rows_by_door.items():
        line = render(f"figure.doors.line.{door.replace('.', '_')}")
        if name in row_by_name:
            row = row_by_name[name]
            rows[line] = row
            looks[line] = _look(view, name, row, outcomes.get(door, ""))
            values[line] = plain(row.value or 0.0, 2)
        if name in row_by_name and BASE in row_by_name:
            base_rows[line] = row_by_name[BASE]

    marks = [ForestMarks(rows, looks)]
    if base_rows:
        base_looks = dict.fromkeys(base_rows, HELD_OUT_LOOK)
        marks.append(ForestMarks(base_rows, base_looks, is_reference=True))
    return Forest(
        list(rows), marks, values=values, no_effect=CHANCE_AUC, of_checkpoints=False
    )


def _look(view: View, name: str, row: Row, outcome: str) -> Look:
    """Return the look of an access: shown, not shown, or in doubt."""
    if outcome == CONFOUNDED or view.doubt(name, DOORS_AUDIT, row):
        return DOUBT_LOOK
    return FOUND_LOOK if outcome == SHOWN else NOTHING_LOOK


def _samples(forests: Sequence[Forest]) -> dict[str, Artist]:
    """Return the legend of the looks that are drawn."""
    looks_drawn = {
        look for forest in forests for look in forest.marks[0].looks.values()
    }
    samples: dict[str, Artist] = {}
    for key, look in LOOK_OF_KEY.items():
        if look in looks_drawn:
            samples[render(f"figure.doors.key.{key}")] = sample_of(look)
    if any(len(forest.marks) > 1 for forest in forests):
        samples[render("figure.doors.key.base")] = sample_of(HELD_OUT_LOOK)
    return samples
