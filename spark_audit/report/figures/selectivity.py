"""Forest plot of Delta_sel per checkpoint and of DiD per contrast."""

from __future__ import annotations

from spark_audit.names import BASE
from spark_audit.report.figures.entries import contrasts_of, estimable, rows_of
from spark_audit.report.figures.forest import Forest, Line, Mark, Section
from spark_audit.report.figures.picture import AREA, Look, looks, wrapped
from spark_audit.results import Report
from spark_audit.sentences import render

CHANGED = {
    "change": Look(marker="o"),
    "level": Look(marker="o", size=3.6, width=1.0, alpha=0.55),
    "regression": AREA,
}


def draw(report: Report) -> Forest | None:
    """Delta_sel and its change with intervals, and contrasts between checkpoints."""
    changes = rows_of(report, "matched", "delta_sel", of="change")
    levels = rows_of(report, "matched", "delta_sel")
    if not estimable(changes) and not estimable(levels):
        return None
    if BASE in changes and changes[BASE].value is None:
        # Of the reference itself there is no change to show.
        del changes[BASE]
    bands = rows_of(report, "matched", "rtm_bias", of="change")
    look, changed = looks(report), bool(estimable(changes))
    lines = []
    for name in dict.fromkeys([*levels, *changes]):
        marks = [Mark.of(changes.get(name)), Mark.of(levels.get(name), light=changed)]
        text = marks[0 if changed else 1].words()
        if changed and name == BASE and name not in changes:
            text = render("figure.selectivity.reference")
        shown = marks if changed else marks[1:]
        lines.append(Line(wrapped(name), look[name], shown, text, bands.get(name)))
    sections = [_section("changes", lines)]
    contrasts = contrasts_of(report, "matched", "did")
    if estimable(contrasts):
        behind = contrasts_of(report, "matched", "rtm_bias")
        baselines = {baseline for _, baseline in contrasts}
        lines = []
        for (name, baseline), row in contrasts.items():
            label = wrapped(name)
            if len(baselines) > 1:
                label += f"\nvs {wrapped(baseline)}"
            mark, band = Mark.of(row), behind.get((name, baseline))
            lines.append(Line(label, look[name], [mark], mark.words(), band))
        one = baselines.pop() if len(baselines) == 1 else ""
        sections.append(_section("contrasts", lines, baseline=one))
    return Forest(
        audit="matched",
        facts={"changed": changed or len(sections) > 1},
        sections=sections,
        keys={
            render(f"figure.selectivity.{name}"): key
            for name, key in CHANGED.items()
            if changed or name != "change"
        },
    )


def _section(name: str, lines: list[Line], **facts: str) -> Section:
    title, label = (
        wrapped(render(f"figure.selectivity.{key}", **facts), width=42, lines=3)
        for key in (name, f"{name}_axis")
    )
    return Section(lines, title, label)
