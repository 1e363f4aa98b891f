"""The figure of draws: how many identifiers come out at least, and at most.

A panel for each checkpoint has a line for all identifiers and one for each type. In a
line stands a bar for each number of draws: from what the best scored decoder gives to
what no decoder that keeps the order of tokens exceeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.axes import Axes

from spark_audit.report.figures.canvas import canvas
from spark_audit.report.figures.forest import (
    MARKS_HEIGHT,
    Forest,
    ForestMarks,
    draw_forest,
    heights_of,
)
from spark_audit.report.figures.marks import (
    draw_legend,
    draw_mark,
    legend_lines,
    sample_of,
)
from spark_audit.report.figures.styling import CHECKPOINT, INK
from spark_audit.report.figures.view import DOUBT_LOOK, Look, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import render
from spark_audit.sentences.renderer import number_down, number_up

EXTRACT_AUDIT = "extract"

MARKER_OF_DRAWS = {"1": "o", "1000": "s", "1000000": "D"}
"""Variant of the rows (number of draws) -> marker, in the order from above."""

DRAWS_AT_THE_RIGHT = "1000000"
"""The number of draws of which the values at the right are."""


class BothSides(NamedTuple):
    """The two bounds of a group of identifiers for one number of draws."""

    at_least: Row
    at_most: Row


Lines = Mapping[str, Mapping[str, BothSides]]
"""Number of draws -> name of a line -> its bounds."""


def draw_draws(view: View) -> Sketch | None:
    """Draw both bounds of extraction, a panel for each checkpoint."""
    names = view.rows(EXTRACT_AUDIT, "drawn_at_most", variant=DRAWS_AT_THE_RIGHT)
    lines_by_name: dict[str, Lines] = {}
    for name in names:
        lines = _lines_of(view, name)
        if DRAWS_AT_THE_RIGHT in lines:
            lines_by_name[name] = lines
    if not lines_by_name:
        return None

    forests = {
        name: _forest(view, name, lines) for name, lines in lines_by_name.items()
    }
    samples = {}
    for draws, marker in MARKER_OF_DRAWS.items():
        look = Look(marker, INK, filled=False)
        samples[render(f"figure.draws.key.{draws}")] = sample_of(look)
    samples[render("figure.draws.key.at_least")] = sample_of(Look("o", INK))
    samples[render("figure.draws.key.at_most")] = sample_of(Look("o", INK, False))
    figure, panels = canvas(
        heights_of(forests.values()), legend_lines=legend_lines(samples)
    )
    for axes, (name, forest) in zip(panels, forests.items(), strict=True):
        doubt = view.doubt(name, EXTRACT_AUDIT)
        title = f"{name}: {doubt}" if doubt else name
        label = render("figure.draws.axis")
        draw_forest(axes, forest, title=title, label=label, limits=(-0.02, 1.02))
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
        _draw_lower_ends(axes, forest, lines_by_name[name], name)
    draw_legend(figure, samples)

    all_identifiers = render("figure.draws.all")
    values = []
    for name, forest in forests.items():
        values.append(f"{name} {forest.values[all_identifiers]}")
    return Sketch(figure=figure, values=values)


def _lines_of(view: View, name: str) -> Lines:
    """Return the bounds of a checkpoint: of all identifiers, then of each type."""
    names_of_groups = {"pooled": render("figure.draws.all")}
    for pii_type in view.groups(
        EXTRACT_AUDIT, "drawn_at_most", "type", variant=DRAWS_AT_THE_RIGHT
    ):
        names_of_groups[f"type:{pii_type}"] = pii_type

    lines: dict[str, dict[str, BothSides]] = {}
    for draws in MARKER_OF_DRAWS:
        for group, line in names_of_groups.items():
            at_least = view.rows(
                EXTRACT_AUDIT, "drawn_at_least", variant=draws, group=group
            )
            at_most = view.rows(
                EXTRACT_AUDIT, "drawn_at_most", variant=draws, group=group
            )
            if name in at_least and name in at_most:
                both = BothSides(at_least[name], at_most[name])
                lines.setdefault(draws, {})[line] = both
    return lines


def _forest(view: View, name: str, lines: Lines) -> Forest:
    """Return the forest of a checkpoint: marks at the upper bounds, bars to them."""
    marks = []
    for draws, marker in MARKER_OF_DRAWS.items():
        rows = {}
        looks = {}
        for line, (at_least, at_most) in lines.get(draws, {}).items():
            # The bar reaches from one bound to the other.
            rows[line] = at_most.copy_unchecked(low=at_least.value, high=at_most.value)
            is_void = bool(view.doubt(name, EXTRACT_AUDIT, at_most))
            looks[line] = DOUBT_LOOK if is_void else Look(marker, INK, filled=False)
        marks.append(ForestMarks(rows, looks))

    values = {}
    for line, (at_least, at_most) in lines[DRAWS_AT_THE_RIGHT].items():
        values[line] = render(
            "figure.draws.value",
            low=number_down(at_least),
            high=number_up(at_most),
            count=at_most.n,
        )
    return Forest(list(values), marks, values=values, of_checkpoints=False)


def _draw_lower_ends(axes: Axes, forest: Forest, lines: Lines, name: str) -> None:
    """Draw a filled mark at each lower bound, where the bars of a forest begin."""
    n_marks = len(MARKER_OF_DRAWS)
    for index, (draws, marker) in enumerate(MARKER_OF_DRAWS.items()):
        shift = MARKS_HEIGHT * ((index + 0.5) / n_marks - 0.5)
        for height, line in enumerate(forest.lines):
            both = lines.get(draws, {}).get(line)
            if both is None or forest.marks[index].looks[line] == DOUBT_LOOK:
                continue
            draw_mark(
                axes,
                both.at_least.value or 0.0,
                height + shift,
                Look(marker, INK),
                gid=CHECKPOINT + name,
                size=3.5,
            )
