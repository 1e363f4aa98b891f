"""Forest plot of Delta_sel per checkpoint and of DiD per contrast."""

from __future__ import annotations

from spark_audit.names import BASE
from spark_audit.report.figures.entries import contrasts_of, estimable, rows_of
from spark_audit.report.figures.forest import Line, Section, forest, words_of
from spark_audit.report.figures.panel import AREA, Axis, Look, looks, wrapped
from spark_audit.report.figures.picture import Picture
from spark_audit.results import Report
from spark_audit.sentences import render

CHANGED = {
    "change": Look(marker="o"),
    "level": Look(marker="o", size=3.6, width=1.0, alpha=0.55),
    "regression": AREA,
}


def draw(report: Report) -> Picture | None:
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
        marks = [changes.get(name), levels.get(name)][not changed :]
        text = words_of(marks[0])
        if changed and name == BASE and name not in changes:
            text = render("figure.selectivity.reference")
        lines.append(Line(wrapped(name), look[name], marks, text, bands.get(name)))
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
            band = behind.get((name, baseline))
            lines.append(Line(label, look[name], [row], words_of(row), band))
        one = baselines.pop() if len(baselines) == 1 else ""
        sections.append(_section("contrasts", lines, baseline=one))
    return forest(
        sections,
        audit="matched",
        facts={"changed": changed or len(sections) > 1},
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
    return Section(lines, title, Axis(label))
