"""How often the model's first guess is the identifier, and how often a control."""

from __future__ import annotations

from matplotlib.lines import Line2D

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import (
    intervals_said,
    replicates_said,
    rows_of,
    statuses_said,
)
from spark_audit.report.figures.style import (
    Line,
    Mark,
    arrows_said,
    canvas,
    forest,
    legend,
    legend_height,
    line_height,
    looks,
    notes_of,
    plain,
    said,
    wrapped,
)
from spark_audit.report.figures.theme import MUTED, Drawing
from spark_audit.results import Report, Row

PERCENT = 100.0
LABELS = ("identifiers", "equally hard other text (control)")


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """Top-1 over the whole vocabulary, identifiers and controls, in percent."""
    pii = rows_of(report, "rank", "top1_rate", of="pii")
    control = rows_of(report, "rank", "top1_rate", of="control")
    if not any(row.value is not None for row in pii.values()):
        return None
    look = looks(report)
    lines = [
        Line(
            wrapped(name),
            look[name],
            [
                Mark.of(row, scale=PERCENT),
                Mark.of(control.get(name), scale=PERCENT, light=True, marker="|"),
            ],
            text=said(row, scale=PERCENT, digits=1),
        )
        for name, row in pii.items()
    ]
    rows = [*pii.values(), *control.values()]
    notes = notes_of(rows)
    labels = [*LABELS, *(label for _, label in notes)]
    size = len(lines) * line_height(lines)
    figure = canvas(size + 0.55 + legend_height(labels))
    axes = figure.subplots()
    forest(axes, lines, zero=None)
    axes.set_xlabel("Top-1, % of tokens (lower = less often the model's first guess)")
    legend(
        figure,
        [
            Line2D([], [], color=MUTED, marker="o", linewidth=1.6),
            Line2D([], [], color=MUTED, marker="|", markersize=6, linewidth=1),
            *(handle for handle, _ in notes),
        ],
        labels,
    )
    return Drawing(
        name="top1",
        audit="rank",
        title="Full-vocabulary Top-1",
        caption=(
            "Share of identifier tokens that rank first among the whole vocabulary "
            "after their true prefix, beside that of equally hard other text (tick). "
            + intervals_said(rows)
            + statuses_said(rows)
            + arrows_said(axes, lines)
            + replicates_said(report)
        ),
        alt=f"Forest plot of the Top-1 rate of identifiers: {_alt(pii, control)}.",
        figure=figure,
    )


def _alt(pii: dict[str, Row], control: dict[str, Row]) -> str:
    found = []
    for name, row in pii.items():
        if row.value is None:
            continue
        text = f"{name} {plain(row.value * PERCENT, 1)}%"
        other = control.get(name)
        if other is not None and other.value is not None:
            text += f" (control {plain(other.value * PERCENT, 1)}%)"
        found.append(text)
    return ", ".join(found)
