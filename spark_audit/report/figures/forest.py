"""Forests: lines with values and intervals on one scale, in sections below each other.

They are narrow enough for a phone: names and figures stand above the marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from spark_audit.report.cells import VOID
from spark_audit.report.figures import picture, styling, text_room
from spark_audit.report.standings import (
    Standing,
    State,
    badge,
)
from spark_audit.results import Row

if TYPE_CHECKING:
    pass


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
class ForestLine:
    """A line of a forest: ``label`` and ``text`` above marks of ``rows``.

    The interval of ``behind`` is a band; ``below`` are further texts, with colours.
    """

    label: str
    look: picture.Style
    rows: Sequence[Row | None]
    text: str
    behind: Row | None = None
    below: Sequence[tuple[str, str]] = ()
    colour: str = styling.INK


def section(
    lines: Sequence[ForestLine], title: str, label: str, **axis: Any
) -> picture.Panel:
    """Lines on one axis as a panel; the unit of its height is an inch.

    ``axis`` are the panel's ``limits`` and ``ticks``.
    """
    lanes = max(len(line.rows) for line in lines)
    columns = columns_of(lines)
    foot = text_room.LETTERS * (columns[-1][1] + 1) if columns else 0.0
    parts, curves, at = [picture.rule(0.0, picture.ZERO_LINE, upright=True)], [], 0.0
    for line in lines:
        at += GAP
        for text, colour in ((line.label, line.colour), (line.text, styling.INK)):
            parts.append(picture.label(text, at, line.look, colour=colour))
            at += text_room.LETTERS * text_room.lines_of([text])
        under = at + LANE * lanes
        if line.behind and line.behind.ends:
            ends = [at + 0.02] * 2, [under - 0.02] * 2
            parts.append(picture.band(line.behind.ends, *ends, look=line.look))
        for row, style in zip(line.rows, STYLES, strict=False):
            mark, first = replace(line.look, dashes="none", **style), style is STYLES[0]
            height = [at + LANE * (0.5 if first else 1.5)]
            curves.append(picture.Curve(mark, [row], height, line.text, told=first))
        for (text, colour), (share, down) in zip(line.below, columns, strict=False):
            y = under + down * text_room.LETTERS
            parts.append(picture.label(text, y, line.look, share=share, colour=colour))
        at = under + foot + GAP
    return picture.Panel(
        curves,
        title,
        **axis,
        settings={"xlabel": label, "ylim": (at, 0.0), "yticks": []},
        parts=parts,
        forest=True,
        tall=at + 0.2 + text_room.LETTERS * text_room.lines_of([label]),
    )


def span(lines: Sequence[ForestLine]) -> tuple[float, float]:
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


def columns_of(lines: Sequence[ForestLine]) -> list[tuple[float, int]]:
    """Where what is below the marks stands: share of the width, and row."""
    places: list[tuple[float, int]] = []
    at, row = 0.0, 0
    for texts in zip_longest(*([text for text, _ in line.below] for line in lines)):
        width = text_room.inches(text for text in texts if text)
        if places and at + width > picture.FIGURE_WIDTH - 0.15:
            at, row = 0.0, row + 1
        places.append((at / (picture.FIGURE_WIDTH - 0.15), row))
        at += width + 0.08
    return places


def named_with_state(name: str, standing: Standing | None) -> tuple[str, str]:
    """A checkpoint's name behind its state, and the colour of both."""
    if standing is None:
        return text_room.wrapped(name), styling.INK
    label = text_room.wrapped(f"{badge(standing.state)}  {name}", lines=3)
    return label, STYLE_OF_STATE[standing.state].colour


def greyed(
    look: picture.Style, row: Row | None, *, is_doubtful: bool = False
) -> picture.Style:
    """Return the look, or a grey cross where nothing can be concluded."""
    is_void = row is not None and row.status in VOID
    if not is_void and not is_doubtful:
        return look
    return picture.crossed(look)


def figure_words(row: Row | None, doubt: str = "") -> str:
    """Return value and interval; of one that says nothing, its status or the doubt."""
    if row is None or row.value is None:
        return "not estimable"
    text = text_room.plain(row.value)
    if row.status in VOID:
        return f"{text} {row.status.replace('_', ' ').upper()}"
    if doubt:
        return f"{text} {doubt.upper()}"
    return f"{text} [{', '.join(map(text_room.plain, row.ends))}]" if row.ends else text


STYLE_OF_STATE: dict[State, picture.Style] = {
    "LEAKS": picture.Style(colour=styling.ALARM, marker="^"),
    "DETECTABLE": picture.Style(colour=styling.WARN, marker="D"),
    "NO LEAK FOUND": picture.Style(colour=styling.INK, marker="o", hollow=True),
    "NOT TESTED": picture.Style(colour=styling.MUTED, marker="x"),
}
"""Shape and colour of each state."""

DOUBTFUL = picture.Style(colour=styling.MUTED, marker="x", alpha=0.6)
"""The look of a figure from which nothing can be concluded."""
