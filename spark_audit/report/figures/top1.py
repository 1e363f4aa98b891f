"""How often the model's first guess is the identifier, and how often a control."""

from __future__ import annotations

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import estimable, rows_of
from spark_audit.report.figures.forest import Forest
from spark_audit.report.figures.forest_marks import Line, Mark, Section
from spark_audit.report.figures.picture import Look, looks, wrapped
from spark_audit.results import Report

PERCENT = 100.0


@FIGURES.register(order=60)
def draw(report: Report) -> Forest | None:
    """Top-1 over the whole vocabulary, identifiers and controls, in percent."""
    pii = rows_of(report, "rank", "top1_rate", of="pii")
    control = rows_of(report, "rank", "top1_rate", of="control")
    if not estimable(pii):
        return None
    look = looks(report)
    lines = []
    for name, row in pii.items():
        mark = Mark.of(row, factor=PERCENT)
        tick = Mark.of(control.get(name), factor=PERCENT, light=True, marker="|")
        lines.append(
            Line(wrapped(name), look[name], [mark, tick], text=mark.words(digits=1))
        )
    label = "Top-1, % of tokens (lower = less often the model's first guess)"
    return Forest(
        audit="rank",
        title="Full-vocabulary Top-1",
        caption="Share of identifier tokens that rank first among the whole vocabulary "
        "after their true prefix, beside that of equally hard other text (tick).",
        shows="Forest plot of the Top-1 rate of identifiers, in per cent",
        sections=[Section(lines, label=label, references={})],
        keys={
            "identifiers": Look(marker="o", width=1.6),
            "equally hard other text (control)": Look(marker="|", size=6, width=1),
        },
        digits=1,
    )
