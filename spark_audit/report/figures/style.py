"""What all figures share: looks of checkpoints, forests, bands, grids and legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import seaborn
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from spark_audit.report.figures.entries import palette
from spark_audit.report.figures.theme import (
    CHECKPOINT,
    HOLLOW,
    INK,
    LIGHT,
    MUTED,
    PAPER,
)
from spark_audit.results import Report, Row, number

WIDTH = 6.5
"""Inches of a figure over both columns of a page."""

DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (4, 1, 1, 1)),
    (0, (7, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 1)),
)
HATCHES = ("", "///", "\\\\\\", "---", "xxx", "|||", "+++")
NAME_WIDTH = 30
"""Letters of a name in one line."""
NAME_LINES = 2
ENTRY_WIDTH = 34
"""Letters of a name in a line of the legend: two columns fit side by side."""
FONT = 8.0
OVER = {"sources": "sources", "seeds": "seeds", "both": "sources and seeds"}
MISSING = "not estimable"
FEW_DECADES = 150.0
"""Ratio of an axis' ends below which it is labelled at 2 and 5 too."""


@dataclass(frozen=True)
class Look:
    """How a checkpoint is drawn everywhere."""

    name: str
    colour: str
    marker: str
    dashes: Any
    hatch: str

    @property
    def gid(self) -> str:
        """Marks an artist as the checkpoint's."""
        return CHECKPOINT + self.name


def looks(report: Report) -> dict[str, Look]:
    """Look of every checkpoint; replicates have their entry's."""
    order: dict[tuple[int, str], int] = {}
    found = {}
    for name, (index, marker) in palette(report).items():
        place = order.setdefault((index, marker), len(order))
        found[name] = Look(
            name=name,
            colour=LIGHT[index],
            marker=marker,
            dashes=DASHES[place % len(DASHES)],
            hatch=HATCHES[place % len(HATCHES)],
        )
    return found


# ------------------------------------------------------------------ canvas, text


def canvas(height: float, *, width: float = WIDTH) -> Figure:
    """An empty figure (inches) that makes room for every label by itself."""
    figure = Figure(figsize=(width, height), layout="constrained")
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=0.06, h_pad=0.05, wspace=0.04, hspace=0.04)  # type: ignore[call-arg]
    return figure


def wrapped(name: str, *, width: int = NAME_WIDTH, lines: int = NAME_LINES) -> str:
    """A long name in several lines, broken after its punctuation where there is any."""
    if len(name) <= width:
        return name
    found, line = [], ""
    for part in _pieces(name, width):
        if line and len(line) + len(part) > width:
            found.append(line.rstrip())
            line = ""
        line += part
    found.append(line)
    if len(found) > lines:
        # The end tells variants apart, so the middle is what is left out.
        found = [*found[: lines - 1], "…" + "".join(found)[-(width - 1) :]]
    return "\n".join(found)


def _pieces(name: str, width: int) -> list[str]:
    pieces = [""]
    for letter in name:
        pieces[-1] += letter
        if letter in "-_.+@/ " or len(pieces[-1]) == width:
            pieces.append("")
    return [piece for piece in pieces if piece]


def inches(text: str, *, size: float = FONT) -> float:
    """Width of a text as it will be drawn."""
    font = FontProperties(family="DejaVu Sans", size=size)
    measure = TextToPath()
    widest = 0.0
    for line in text.split("\n"):
        found = measure.get_text_width_height_descent(line, font, False)
        widest = max(widest, found[0])
    return widest / 72.0


def lines_of(text: str) -> int:
    """Lines of a label."""
    return text.count("\n") + 1


def tidy(axes: Axes, *, grid: str = "") -> None:
    """No box, a faint grid along the named axis, labels that a page can turn."""
    seaborn.despine(ax=axes)
    if grid:
        axes.grid(True, axis=grid, linewidth=0.6, zorder=0)  # type: ignore[arg-type]
        axes.set_axisbelow(True)
    axes.yaxis.label.set_rotation_mode("anchor")


def belongs(artists: Artist | Iterable[Any] | None, look: Look) -> None:
    """Mark artists (and containers of them) as a checkpoint's."""
    if artists is None:
        return
    if isinstance(artists, Artist):
        artists.set_gid(look.gid)
        return
    for artist in artists:
        belongs(artist, look)


def legend(
    figure: Figure,
    handles: Sequence[Artist],
    labels: Sequence[str],
    *,
    owners: Sequence[Look | None] = (),
    title: str = "",
) -> Legend:
    """A legend below the axes, in as many columns as fit; ``owners`` mark entries.

    Its title is the label that all axes above it share: a label of the figure itself
    would stand in the legend's place.
    """
    labels = [
        wrapped(label, width=ENTRY_WIDTH) if owners else label for label in labels
    ]
    room = figure.get_figwidth() - 0.3
    widest = max(inches(label) for label in labels) + 0.65
    columns = max(1, min(len(labels), int(room / widest), 4))
    found = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.6,
        labelspacing=0.45,
        title=title or None,
        title_fontsize=FONT,
        alignment="center",
    )
    for look, handle, text in zip(
        owners, found.legend_handles, found.get_texts(), strict=False
    ):
        if look is not None:
            belongs([handle, text], look)
    return found


def legend_height(labels: Sequence[str], *, width: float = WIDTH) -> float:
    """Inches that ``legend`` will take, to be added to a figure's height."""
    labels = [wrapped(label, width=ENTRY_WIDTH) for label in labels]
    widest = max(inches(label) for label in labels) + 0.65
    columns = max(1, min(len(labels), int((width - 0.3) / widest), 4))
    rows = math.ceil(len(labels) / columns)
    return 0.12 + (0.03 + 0.16 * max(map(lines_of, labels))) * rows


def notes_of(
    rows: Iterable[Row], *, marker: str = "o", colour: str = MUTED
) -> list[tuple[Artist, str]]:
    """Entries of the legend: what the intervals are, and why marks are hollow."""
    rows = list(rows)
    found: list[tuple[Artist, str]] = []
    bounded = [r for r in rows if r.value is not None and r.low is not None]
    if bounded:
        levels = " and ".join(
            f"{100 * x:g}%" for x in sorted({r.level for r in bounded})
        )
        over = " / ".join(OVER[o] for o in OVER if any(r.over == o for r in bounded))
        bar = Line2D([], [], color=colour, linewidth=1.6)
        found.append((bar, f"{levels} interval over {over}"))
    statuses = sorted({row.status for row in rows} & set(HOLLOW))
    if statuses:
        mark = Line2D(
            [],
            [],
            color=MUTED,
            marker=marker,
            linestyle="none",
            markerfacecolor=PAPER,
            markeredgewidth=1.2,
        )
        words = ", ".join(status.replace("_", " ") for status in statuses)
        found.append((mark, f"hollow: {words}"))
    return found


def sample(look: Look, *, line: bool = True, **options: Any) -> Line2D:
    """A legend's mark of a checkpoint."""
    return Line2D(
        [],
        [],
        color=look.colour,
        marker=look.marker,
        linestyle=look.dashes if line else "none",
        **options,
    )


# ------------------------------------------------------------------ forests


@dataclass(frozen=True)
class Mark:
    """A point of a forest; ``low`` and ``high`` are drawn only where both are known.

    ``light`` marks stand below the main one, smaller and paler.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    light: bool = False
    marker: str = ""

    @classmethod
    def of(cls, row: Row | None, *, scale: float = 1.0, **options: Any) -> Mark:
        """The mark of a row (of nothing, where there is none)."""
        if row is None or row.value is None:
            return cls(None)
        low, high = (None if b is None else b * scale for b in (row.low, row.high))
        hollow = row.status in HOLLOW
        return cls(row.value * scale, low, high, hollow=hollow, **options)


@dataclass(frozen=True)
class Line:
    """A line of a forest: a label, marks, a figure behind them, figures in words."""

    label: str
    look: Look
    marks: Sequence[Mark]
    band: tuple[float, float] | None = None
    text: str = ""


def said(row: Row | None, *, scale: float = 1.0, digits: int = 3) -> str:
    """Value and interval of a row in a narrow column; of a void one, its status."""
    if row is None:
        return "-"
    if row.value is None:
        return MISSING
    text = plain(row.value * scale, digits)
    if row.status in HOLLOW:
        return f"{text} {row.status.replace('_', ' ').upper()}"
    if row.low is not None and row.high is not None:
        low, high = (plain(b * scale, digits) for b in (row.low, row.high))
        text += f" [{low}, {high}]"
    return text


def ticked(axis: Axis, values: Sequence[float] | None = None) -> None:
    """A logarithmic axis, its limits set, with ticks that are plain numbers."""
    if values is not None:
        axis.set_major_locator(FixedLocator(list(values)))
    else:
        low, high = axis.get_view_interval()
        few = high / low < FEW_DECADES
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def plain(value: float, digits: int = 3) -> str:
    """A figure with a true minus."""
    return number(value, digits).replace("-", "\N{MINUS SIGN}")


def line_height(lines: Sequence[Line]) -> float:
    """Inches of a line of a forest."""
    least = 0.34 if len(lines) <= 6 else 0.28
    several = any(m.light and m.value is not None for x in lines for m in x.marks)
    return max(
        least if several else least - 0.06,
        0.16 * max(lines_of(line.label) for line in lines) + 0.04,
    )


def forest(
    axes: Axes,
    lines: Sequence[Line],
    *,
    zero: float | None = 0.0,
    limits: tuple[float, float] | None = None,
    named: bool = True,
) -> None:
    """Draw lines from top to bottom with their figures in words at the right.

    Parameters
    ----------
    zero
        Where a line stands that all are compared with.
    limits
        Ends of the axis, where several forests share them.
    named
        Whether labels are written; the figures in words are, where lines have any.
    """
    low, high = limits or span([lines], zero=zero)
    axes.set_xlim(low, high)
    axes.set_ylim(len(lines) - 0.45, -0.55)
    axes.set_yticks(range(len(lines)), [line.label if named else "" for line in lines])
    tidy(axes, grid="x")
    axes.tick_params(axis="y", length=0, pad=6)
    axes.spines["left"].set_visible(False)
    if zero is not None:
        axes.axvline(zero, color=INK, linewidth=0.9, zorder=1.5)
    aside = axes.get_yaxis_transform()
    for place, (line, tick) in enumerate(
        zip(lines, axes.get_yticklabels(), strict=True)
    ):
        belongs(tick, line.look)
        if line.band is not None and line.band[0] < line.band[1]:
            bar = axes.barh(
                place,
                line.band[1] - line.band[0],
                left=line.band[0],
                height=0.72,
                color=MUTED,
                alpha=0.28,
                linewidth=0,
                zorder=1,
            )
            belongs(bar, line.look)
        several = any(m.light and m.value is not None for m in line.marks)
        for mark in line.marks:
            shift = (0.2 if mark.light else -0.12) if several else 0.0
            whisker(axes, line.look, mark, place + shift)
        if line.text:
            text = axes.text(
                1.02,
                place,
                line.text,
                transform=aside,
                va="center",
                color=MUTED if line.text[0].isalpha() else INK,
            )
            belongs(text, line.look)
        elif all(mark.value is None for mark in line.marks):
            text = axes.text(
                0.03, place, MISSING, transform=aside, va="center", color=MUTED
            )
            belongs(text, line.look)


def span(
    forests: Sequence[Sequence[Line]], *, zero: float | None
) -> tuple[float, float]:
    """Ends of an axis: all values, and of the intervals what is not far out."""
    lines = [line for some in forests for line in some]
    marks = [m for line in lines for m in line.marks if m.value is not None]
    values = [m.value for m in marks if m.value is not None]
    values += [] if zero is None else [zero]
    values += [end for line in lines for end in line.band or ()]
    low, high = min(values), max(values)
    widths = sorted(
        m.high - m.low for m in marks if m.low is not None and m.high is not None
    )
    if widths:
        # One interval of a group with two sources must not flatten all others.
        reach = max(0.35 * (high - low), 2.0 * widths[len(widths) // 2])
        ends = [e for m in marks for e in (m.low, m.high) if e is not None]
        low = min(low, max(min(ends), low - reach))
        high = max(high, min(max(ends), high + reach))
    room = (high - low) * 0.05 or 0.05
    return low - room, high + room


def arrows_said(axes: Axes, lines: Sequence[Line]) -> str:
    """A sentence for the caption where an interval leaves the axis."""
    low, high = axes.get_xlim()
    ends = [(m.low, m.high) for line in lines for m in line.marks]
    if any(a is not None and b is not None and (a < low or b > high) for a, b in ends):
        return " An arrow marks an interval that goes on."
    return ""


def whisker(axes: Axes, look: Look, mark: Mark, place: float) -> None:
    """A mark at (value, place) with its interval; an arrow where it leaves the axis."""
    if mark.value is None:
        return
    alpha = 0.55 if mark.light else 1.0
    if mark.low is not None and mark.high is not None:
        left, right = axes.get_xlim()
        ends = (max(mark.low, left), min(mark.high, right))
        (bar,) = axes.plot(
            ends,
            [place, place],
            color=look.colour,
            linewidth=1.0 if mark.light else 1.6,
            alpha=alpha,
            solid_capstyle="butt",
            zorder=2.5,
            marker="none",
        )
        belongs(bar, look)
        for end, limit, arrow in ((mark.low, left, "<"), (mark.high, right, ">")):
            if (end < limit) if arrow == "<" else (end > limit):
                (head,) = axes.plot(
                    limit,
                    place,
                    marker=arrow,
                    color=look.colour,
                    markersize=4,
                    clip_on=False,
                    linestyle="none",
                    alpha=alpha,
                    zorder=2.6,
                )
                belongs(head, look)
    tick = mark.marker == "|"
    (point,) = axes.plot(
        mark.value,
        place,
        marker=mark.marker or look.marker,
        linestyle="none",
        markersize=7 if tick else 3.6 if mark.light else 6,
        color=look.colour,
        markerfacecolor=PAPER if mark.hollow else look.colour,
        markeredgecolor=look.colour,
        markeredgewidth=1.6 if tick else 1.2 if mark.hollow else 0.6,
        alpha=None if mark.hollow or tick else alpha,
        zorder=3,
    )
    belongs(point, look)


def names_legend(
    figure: Figure,
    shown: Sequence[Look],
    *,
    line: bool = True,
    further: Sequence[tuple[Artist, str]] = (),
    title: str = "",
) -> Legend:
    """A legend of checkpoints, and below them what further marks mean."""
    handles: list[Artist] = [sample(look, line=line) for look in shown]
    labels = [look.name for look in shown]
    owners: list[Look | None] = list(shown)
    for handle, label in further:
        handles.append(handle)
        labels.append(label)
        owners.append(None)
    return legend(figure, handles, labels, owners=owners, title=title)


def names_height(
    shown: Sequence[Look], *, further: Sequence[str] = (), width: float = WIDTH
) -> float:
    """Inches of ``names_legend``."""
    return legend_height([*(look.name for look in shown), *further], width=width)


def cross(axes: Axes, look: Look, across: Mark, up: Mark) -> None:
    """A point in the plane with an interval in one direction or in both."""
    if across.value is None or up.value is None:
        return
    bars = [(across.low, across.high, False), (up.low, up.high, True)]
    for low, high, upright in bars:
        if low is None or high is None:
            continue
        here = across.value if upright else up.value
        ends = ([here, here], [low, high])
        (bar,) = axes.plot(
            *(ends if upright else ends[::-1]),
            color=look.colour,
            linewidth=1.2,
            zorder=2.5,
            marker="none",
        )
        belongs(bar, look)
    hollow = across.hollow or up.hollow
    (point,) = axes.plot(
        across.value,
        up.value,
        marker=look.marker,
        linestyle="none",
        markersize=6,
        color=look.colour,
        markerfacecolor=PAPER if hollow else look.colour,
        markeredgecolor=look.colour,
        markeredgewidth=1.2 if hollow else 0.6,
        zorder=3,
    )
    belongs(point, look)


def grid_of(
    count: int, *, most: int = 3, width: float = WIDTH, least: float = 0.0
) -> tuple[int, int]:
    """Rows and columns of small multiples, columns at least ``least`` inches wide."""
    fitting = int(width / least) if least else most
    columns = max(1, min(count, most, fitting))
    # No row with a single panel where two rows can be even.
    columns = math.ceil(count / math.ceil(count / columns))
    return math.ceil(count / columns), columns


def reach(row: Row | None) -> tuple[float, float] | None:
    """The interval of a figure that stands behind the marks; without one no band."""
    if row is None or row.low is None or row.high is None:
        return None
    return row.low, row.high
