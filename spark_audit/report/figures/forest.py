"""Forests: lines with values and intervals on one scale, in sections below each other.

They are narrow enough for a phone: names and figures stand above the marks. The memory
plot is one; here is that of Delta_sel and DiD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from spark_audit.names import BASE
from spark_audit.report.figures.drawing import INK
from spark_audit.report.figures.entries import contrasts_of, estimable, rows_of
from spark_audit.report.figures.panel import (
    AREA,
    ZERO,
    Axis,
    Band,
    Curve,
    Label,
    Look,
    Panel,
    inches,
    lines_of,
    looks,
    plain,
    wrapped,
)
from spark_audit.report.figures.picture import LETTERS, WIDTH, Picture
from spark_audit.report.table_cells import VOID
from spark_audit.results import Report, Row
from spark_audit.sentences import render

LANE = 0.16
"""Inches of a line's mark."""
GAP = 0.06
"""Inches above and below a line."""
STYLES: tuple[dict[str, Any], ...] = (
    {"size": 6.0, "width": 1.6},
    {"size": 3.6, "width": 1.0, "alpha": 0.55},
)
"""How the first mark of a line is drawn, and one below it."""


@dataclass(frozen=True)
class Line:
    """A line of a forest: ``label`` and ``text`` above marks of ``rows``.

    The interval of ``behind`` is a band; ``below`` are further texts, with colours.
    """

    label: str
    look: Look
    rows: Sequence[Row | None]
    text: str
    behind: Row | None = None
    below: Sequence[tuple[str, str]] = ()
    colour: str = INK


def section(lines: Sequence[Line], title: str, axis: Axis) -> Panel:
    """Lines on one axis as a panel; the unit of its height is an inch."""
    lanes = max(len(line.rows) for line in lines)
    columns = columns_of(lines)
    foot = LETTERS * (columns[-1][1] + 1) if columns else 0.0
    curves, bands, labels, tall = [], [], [], 0.0
    for line in lines:
        top = tall + GAP
        below = top + LETTERS * lines_of([line.label])
        labels.append(Label(line.label, top, line.look, colour=line.colour))
        labels.append(Label(line.text, below, line.look))
        lane = below + LETTERS * lines_of([line.text])
        for at, (row, style) in enumerate(zip(line.rows, STYLES, strict=False)):
            curves.append(
                Curve(
                    replace(line.look, dashes="none", **style),
                    [row],
                    [lane + LANE * (at + 0.5)],
                    words=line.text,
                    told=at == 0,
                )
            )
        under = lane + LANE * lanes
        if line.behind and line.behind.ends:
            ends = [lane + 0.02] * 2, [under - 0.02] * 2
            bands.append(Band(line.behind.ends, *ends, look=line.look))
        for (text, colour), (share, down) in zip(line.below, columns, strict=False):
            labels.append(Label(text, under + down * LETTERS, line.look, share, colour))
        tall = under + foot + GAP
    return Panel(
        curves,
        title,
        x=replace(axis, limits=axis.limits or span(lines)),
        y=Axis(limits=(tall, 0.0), ticks={}),
        bands=bands,
        references=[("x", 0.0, ZERO)],
        labels=labels,
        tall=tall + 0.2 + LETTERS * lines_of([axis.label]),
    )


def span(lines: Sequence[Line]) -> tuple[float, float]:
    """Ends of an axis with 0, all values, and of the intervals what is not far out."""
    rows = [row for line in lines for row in line.rows if row is not None]
    known = [row for row in rows if row.value is not None]
    values = [0.0, *(row.value or 0.0 for row in known)]
    values += [end for one in lines if one.behind for end in one.behind.ends or ()]
    low, high = min(values), max(values)
    if bounds := [row.ends for row in known if row.ends]:
        # One interval of a group with two sources must not flatten all others.
        widths = sorted(b - a for a, b in bounds)
        reach = max(0.35 * (high - low), 2.0 * widths[len(widths) // 2])
        low = min(low, max(min(a for a, _ in bounds), low - reach))
        high = max(high, min(max(b for _, b in bounds), high + reach))
    room = (high - low) * 0.05 or 0.05
    return low - room, high + room


def columns_of(lines: Sequence[Line]) -> list[tuple[float, int]]:
    """Where what is below the marks stands: share of the width, and row."""
    places: list[tuple[float, int]] = []
    at, row = 0.0, 0
    for texts in zip_longest(*([text for text, _ in line.below] for line in lines)):
        width = inches(text for text in texts if text)
        if places and at + width > WIDTH - 0.15:
            at, row = 0.0, row + 1
        places.append((at / (WIDTH - 0.15), row))
        at += width + 0.08
    return places


# --- selectivity ----------------------------------------------------------------------

KEYS = {
    "change": Look(marker="o"),
    "level": Look(marker="o", **STYLES[1]),
    "regression": AREA,
}


def selectivity(report: Report) -> Picture | None:
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
        rows = [changes.get(name), levels.get(name)][not changed :]
        text = _words(rows[0])
        if changed and name == BASE and name not in changes:
            text = render("figure.selectivity.reference")
        lines.append(Line(wrapped(name), look[name], rows, text, bands.get(name)))
    panels = [_section("changes", lines)]
    contrasts = contrasts_of(report, "matched", "did")
    if estimable(contrasts):
        behind = contrasts_of(report, "matched", "rtm_bias")
        baselines = {baseline for _, baseline in contrasts}
        one = baselines.pop() if len(baselines) == 1 else ""
        lines = [
            Line(
                wrapped(name) if one else f"{wrapped(name)}\nvs {wrapped(baseline)}",
                look[name],
                [row],
                _words(row),
                behind.get((name, baseline)),
            )
            for (name, baseline), row in contrasts.items()
        ]
        panels.append(_section("contrasts", lines, baseline=one))
    return Picture(
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


def _section(name: str, lines: list[Line], **facts: str) -> Panel:
    title, label = (
        wrapped(render(f"figure.selectivity.{key}", **facts), width=42, lines=3)
        for key in (name, f"{name}_axis")
    )
    return section(lines, title, Axis(label))


def _words(row: Row | None) -> str:
    """Value and interval; of a void one, its status."""
    if row is None or row.value is None:
        return "not estimable"
    text = plain(row.value)
    if row.status in VOID:
        return f"{text} {row.status.replace('_', ' ').upper()}"
    return f"{text} [{', '.join(map(plain, row.ends))}]" if row.ends else text
