"""The figure of selectivity: Delta_sel, its change, and contrasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_audit.names import BASE
from spark_audit.report.figures import chosen_rows, picture, text_room
from spark_audit.report.standings import (
    standings,
)
from spark_audit.results import Report
from spark_audit.sentences import render

if TYPE_CHECKING:
    pass
from spark_audit.report.figures.forest import (
    STYLES,
    ForestLine,
    figure_words,
    greyed,
    named_with_state,
    section,
    span,
)

KEYS = {
    "change": picture.Style(marker="o"),
    "level": picture.Style(marker="o", **STYLES[1]),
    "regression": picture.AREA,
}


def selectivity(report: Report) -> picture.Picture | None:
    """Delta_sel and its change with intervals, and contrasts between checkpoints."""
    changes = chosen_rows.rows_of(report, "matched", "delta_sel", of="change")
    levels = chosen_rows.rows_of(report, "matched", "delta_sel")
    changed = any(row.value is not None for row in changes.values())
    if not changed and all(row.value is None for row in levels.values()):
        return None
    if BASE in changes and changes[BASE].value is None:
        # Of the reference itself there is no change to show.
        del changes[BASE]
    bands = chosen_rows.rows_of(report, "matched", "rtm_bias", of="change")
    memories = chosen_rows.rows_of(report, "matched", "memory")
    stand = {one.name: one for one in standings(report)}
    look, lines = picture.looks(report), []
    for name in dict.fromkeys([*levels, *changes]):
        rows = [changes.get(name), levels.get(name)][not changed :]
        standing = stand.get(name)
        doubt = standing.doubt_of("matched") if standing else ""
        text = figure_words(rows[0], doubt)
        if changed and name == BASE and name not in changes:
            text = render("figure.selectivity.reference")
        memory_row = memories.get(name)
        if memory_row is not None and memory_row.value is not None:
            text += "\n" + render(
                "figure.selectivity.memory", memory=figure_words(memory_row, doubt)
            )
        label, colour = named_with_state(name, standing)
        style = greyed(look[name], rows[0], is_doubtful=bool(doubt))
        lines.append(
            ForestLine(label, style, rows, text, bands.get(name), colour=colour)
        )
    panels = [_section("changes", lines)]
    contrasts, behind = (
        chosen_rows.chosen_of(report, report.contrasts, "matched", metric, "", "pooled")
        for metric in ("did", "rtm_bias")
    )
    if any(row.value is not None for row in contrasts.values()):
        baselines = {baseline for _, baseline in contrasts}
        one = baselines.pop() if len(baselines) == 1 else ""
        lines = []
        for (name, baseline), row in contrasts.items():
            label, colour = named_with_state(name, stand.get(name))
            label += "" if one else f"\nvs {text_room.wrapped(baseline)}"
            band = behind.get((name, baseline))
            standing = stand.get(name)
            doubt = standing.doubt_of("matched") if standing else ""
            style = greyed(look[name], row, is_doubtful=bool(doubt))
            lines.append(
                ForestLine(
                    label, style, [row], figure_words(row, doubt), band, colour=colour
                )
            )
        panels.append(_section("contrasts", lines, baseline=one))
    return picture.Picture(
        audit="matched",
        panels=panels,
        most=1,
        facts={"changed": changed or len(panels) > 1},
        keys={
            render(f"figure.selectivity.{name}"): key
            for name, key in KEYS.items()
            if changed or name != "change"
        },
    )


def _section(name: str, lines: list[ForestLine], **facts: str) -> picture.Panel:
    title, label = (
        text_room.wrapped(
            render(f"figure.selectivity.{key}", **facts), width=42, lines=3
        )
        for key in (name, f"{name}_axis")
    )
    return section(lines, title, label, limits=span(lines))
