"""The figure of erasure: what remains of forget rows, next to the margin."""

from __future__ import annotations

from matplotlib.axes import Axes

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
from spark_audit.report.figures.marks import (
    band_sample,
    draw_legend,
    legend_lines,
    sample_of,
)
from spark_audit.report.figures.styling import INK, MUTED
from spark_audit.report.figures.text_room import plain, spanned
from spark_audit.report.figures.twins import interval_text
from spark_audit.report.figures.view import PLAIN_LOOK, Look, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import render

REMAINING_VARIANTS = ("row", "response", "identifiers")
"""Variants of the remaining difference; each that there is has a panel."""


def turned(value: float) -> float:
    """Return a change of NLL as readers see it: above 0 is likelier."""
    return -value


def draw_erasure(view: View) -> Sketch | None:
    """Draw the remaining difference of each checkpoint, a panel for each part."""
    forests: dict[str, Forest] = {}
    rows: list[Row] = []
    for part in REMAINING_VARIANTS:
        of_part = view.rows("erasure", "remaining", variant=part)
        if of_part:
            forests[part] = remaining_forest(view, of_part)
            rows += of_part.values()
    if not forests:
        return None

    first_forest = next(iter(forests.values()))
    samples = outcome_samples(first_forest)
    samples[render("figure.erasure.reference")] = sample_of(PLAIN_LOOK)
    samples[render("figure.erasure.margin")] = band_sample()
    figure, panels = canvas(
        heights_of(forests.values()), legend_lines=legend_lines(samples)
    )
    for axes, (part, forest) in zip(panels, forests.items(), strict=True):
        margin = margin_of(forest)
        low, high = span_of(forest, least=1.2 * margin)
        draw_forest(
            axes,
            forest,
            title=render(f"figure.erasure.{part}_title"),
            label=render("figure.erasure.axis"),
            limits=(min(low, -1.2 * margin), high),
            labelled_lines=2,
        )
        null_line(axes, 0.0, render("figure.erasure.null"))
        draw_margin(axes, margin)

    draw_legend(figure, samples)
    counts = [record["rows"] for record in forget_records(view)]
    whole_rows = view.rows("erasure", "remaining", variant=REMAINING_VARIANTS[0])
    return Sketch(
        figure=figure,
        rows=rows,
        counted=render("figure.erasure.rows", rows=spanned([sum(counts)])),
        values=[
            f"{name} {plain(turned(row.value or 0.0), 2)}"
            for name, row in whole_rows.items()
        ],
    )


def remaining_forest(view: View, of_part: dict[str, Row]) -> Forest:
    """Return the forest of one part, a line for each checkpoint.

    A verdict stands in the panel of the part that it rests on.
    """
    verdicts: dict[str, str] = {}
    parts: dict[str, str] = {}
    for finding in view.report.findings:
        if finding.audit == "erasure":
            remaining = finding.facts.get("remaining")
            verdicts[finding.checkpoint] = finding.verdict
            if isinstance(remaining, Row):
                parts[finding.checkpoint] = remaining.variant
    looks: dict[str, Look] = {}
    values: dict[str, str] = {}
    for name, row in of_part.items():
        # Those that others are compared with have no verdict.
        looks[name] = PLAIN_LOOK
        if verdicts.get(name):
            looks[name] = view.look(name, "erasure", row, is_leak=(row.value or 0) < 0)
        words = view.doubt(name, "erasure", row)
        rests_on_part = parts.get(name, row.variant) == row.variant
        if verdicts.get(name):
            words = verdicts[name] if rests_on_part else ""
        text = interval_text(turned_row(row), digits=2)
        values[name] = f"{text}\n{words}" if words else text

    marks = [ForestMarks(of_part, looks)]
    return Forest(lines=list(of_part), marks=marks, values=values, turn=turned)


def turned_row(row: Row) -> Row:
    """Return a row with its value and interval turned, for the text at its right."""
    low = None if row.high is None else -row.high
    high = None if row.low is None else -row.low
    return row.copy_unchecked(value=-(row.value or 0.0), low=low, high=high)


def margin_of(forest: Forest) -> float:
    """Return the margin that the rows of a forest have; 0: there is none."""
    margins = [0.0]
    for marks in forest.marks:
        for row in marks.rows.values():
            margins.append(row.no_effect_high or 0.0)
    return max(margins)


def draw_margin(axes: Axes, margin: float) -> None:
    """Draw the margin as a band around no effect, with its name above the panel."""
    if margin <= 0:
        return
    axes.axvspan(-margin, margin, color=MUTED, alpha=0.2, linewidth=0, zorder=0.5)
    for end in (-margin, margin):
        axes.axvline(end, color=INK, linewidth=0.6, linestyle=":", zorder=1.2)


def forget_records(view: View) -> list[dict[str, int]]:
    """Return the records on forget rows, one for each request."""
    records = view.report.tables.get("erasure_rows", [])
    return [record for record in records if record.get("side") == "forget"]
