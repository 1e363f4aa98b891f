"""Parts that figures share: the canvas, forests, lines of reference, legend.

A panel is narrow enough for a phone. A page sets the panels of a figure side by side or
below each other, a file has them in a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator, MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike

from spark_audit.report.figures.styling import (
    ALARM,
    CHECKPOINT,
    INK,
    MUTED,
    PAPER,
)
from spark_audit.report.figures.text_room import lines_of, wrapped
from spark_audit.report.figures.view import (
    DOUBT_LOOK,
    FOUND_LOOK,
    LESS_LOOK,
    NOTHING_LOOK,
    Look,
)
from spark_audit.results import Row
from spark_audit.sentences import render

PANEL_WIDTH = 3.4
"""Inches of a panel: a phone's screen at the size of its letters."""

SMALL_WIDTH = 1.7
"""Inches of a panel of which two stand side by side on a phone."""

TEXT_LINE = 0.14
"""Inches of a line of text."""

AROUND_FOREST = 0.95
"""Inches of title, labelled lines and axis around the lines of a forest."""

TITLE_WIDTH = 40
"""Letters of a line of a panel's title."""

PANEL_TITLE = "title of a panel"
"""What marks the text that is a panel's title."""

LINE_LABEL = "label of a line"
"""What marks the text above a panel that names a line of reference."""

CELL_MARGIN = 0.06
"""Inches around a panel with its labels."""

MIN_LABEL_GAP = 0.06
"""Inches between two labels of an axis."""

LEGEND_LINE = 0.18
"""Inches of a line of the legend."""

NAME_WIDTH = 14
"""Letters of a line of a name at the left."""

LEGEND_WIDTH = 22
"""Letters of a line of the legend."""

Turn = Callable[[float], float]
"""Where a value stands on the axis."""


@dataclass(frozen=True)
class ForestMarks:
    """Marks of one kind in a forest, at most one in each line.

    Attributes
    ----------
    rows
        Line -> row.
    looks
        Line -> how its mark is drawn.
    is_reference
        Whether they stand there for comparison only, as held-out identifiers do.
    """

    rows: Mapping[str, Row]
    looks: Mapping[str, Look]
    is_reference: bool = False


@dataclass(frozen=True)
class Forest:
    """Lines with marks and intervals on one axis.

    Attributes
    ----------
    lines
        Names of the lines, from above.
    marks
        One for each kind of mark; in a line they stand below each other.
    values
        Line -> what stands at its right.
    ends
        Line -> up to where a band goes from the null.
    turn
        Where a value stands on the axis.
    of_checkpoints
        Whether the lines are checkpoints, which a page can hide.
    """

    lines: Sequence[str]
    marks: Sequence[ForestMarks]
    values: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, float] = field(default_factory=dict)
    turn: Turn = float
    null: float = 0.0
    of_checkpoints: bool = True

    @property
    def labels(self) -> list[str]:
        """Names of the lines as they are broken."""
        return [wrapped(name, width=NAME_WIDTH, lines=3) for name in self.lines]

    @property
    def line_height(self) -> float:
        """Inches that a line of it needs."""
        texts = [*self.labels, *self.values.values()]
        by_text = TEXT_LINE * lines_of(texts) + 0.1
        by_marks = 0.13 * len(self.marks) + 0.1
        return max(0.25, by_text, by_marks)


def heights_of(forests: Iterable[Forest]) -> list[float]:
    """Return the inches of panels whose lines are all equally high."""
    forests = list(forests)
    line_height = max((forest.line_height for forest in forests), default=0.0)
    return [len(forest.lines) * line_height + AROUND_FOREST for forest in forests]


def canvas(
    heights: Sequence[float], *, width: float = PANEL_WIDTH, legend_lines: int = 0
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each height, as many side by side as fit.

    Until :func:`lay_out` has made room for labels, a panel fills its whole cell.
    """
    across = min(len(heights), round(2 * PANEL_WIDTH / width))
    rows = [heights[first : first + across] for first in range(0, len(heights), across)]
    foot = LEGEND_LINE * legend_lines + 0.1 if legend_lines else 0.0
    wide = across * width
    tall = sum(max(row) for row in rows) + foot
    figure = Figure(figsize=(max(wide, PANEL_WIDTH), tall))
    panels: list[Axes] = []
    upper = tall
    for row in rows:
        for place, height in enumerate(row):
            cell = (
                place * width / figure.get_figwidth(),
                (upper - height) / tall,
                width / figure.get_figwidth(),
                height / tall,
            )
            axes = figure.add_axes(cell)
            axes.set_gid(f"panel:{len(panels)}")
            panels.append(axes)
        upper -= max(row)
    return figure, panels


def lay_out(figure: Figure) -> None:
    """Shrink each panel by what its labels need, so that it stays in its cell.

    The cell remains its original position. One pass is enough: what stands around a
    panel does not depend on its size, and titles begin at the cell's edge.
    """
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    margin = CELL_MARGIN * figure.dpi
    width, height = figure.bbox.size
    for axes in figure.axes:
        cell = axes.bbox.frozen()
        titles = [
            child
            for child in axes.get_children()
            if isinstance(child, Text) and child.get_label() == PANEL_TITLE
        ]
        labels = axes.get_tightbbox(renderer)
        assert labels is not None
        tops = [labels.y1, *(one.get_window_extent(renderer).y1 for one in titles)]
        left = 2 * cell.x0 - labels.x0 + margin
        right = 2 * cell.x1 - max(labels.x1, cell.x1) - margin
        lower = 2 * cell.y0 - labels.y0 + margin
        upper = 2 * cell.y1 - max(tops) - margin
        inner = Bbox.from_extents(
            left / width, lower / height, right / width, upper / height
        )
        axes.set_axes_locator(_Placed(inner))
        axes.apply_aspect(inner)
        for title in titles:
            title.set_x((cell.x0 + margin - left) / (right - left))
        _keep_line_labels(axes, cell.x0 + margin, cell.x1 - margin)
        _thin_tick_labels(axes)


def _thin_tick_labels(axes: Axes) -> None:
    """Hide each label of the horizontal axis that would touch the one before it."""
    room = MIN_LABEL_GAP * axes.figure.dpi
    left, right = axes.get_xlim()
    last_end = -math.inf
    for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        if not left <= place <= right or not label.get_text():
            continue
        box = label.get_window_extent()
        is_apart = box.x0 - last_end >= room
        label.set_visible(is_apart)
        if is_apart:
            last_end = box.x1


def _keep_line_labels(axes: Axes, left: float, right: float) -> None:
    """Move labels of lines of reference sideways, until they are in their cell."""
    for label in axes.texts:
        if not isinstance(label, Annotation) or label.get_label() != LINE_LABEL:
            continue
        box = label.get_window_extent()
        shift = max(left - box.x0, 0.0) or min(right - box.x1, 0.0)
        x, y = label.xyann
        label.xyann = (x + 72 * shift / axes.figure.dpi, y)


class _Placed:
    """Keeps a panel at its place, whenever it is drawn."""

    def __init__(self, place: Bbox) -> None:
        self.place = place

    def __call__(self, axes: object, renderer: object) -> Bbox:
        return self.place


def set_title(
    axes: Axes, title: str, *, labelled_lines: int = 0, weight: str = "bold"
) -> None:
    """Set the title of a panel, which begins at the left edge of its cell.

    ``labelled_lines`` is how many lines of reference have a label below it.
    """
    text = axes.set_title(title, pad=5 + 10 * labelled_lines, fontsize=8.0)
    text.set(label=PANEL_TITLE, in_layout=False, weight=weight)


def with_equal_lines(titles: Sequence[str]) -> list[str]:
    """Return titles with empty lines above, so that all panels are equally high."""
    most = max((title.count("\n") for title in titles), default=0)
    return ["\n" * (most - title.count("\n")) + title for title in titles]


def draw_forest(
    axes: Axes,
    forest: Forest,
    *,
    title: str,
    label: str,
    limits: tuple[float, float],
    labelled_lines: int = 1,
) -> None:
    """Draw lines with marks, intervals, names at the left and values at the right.

    ``labelled_lines`` is how many lines of reference have a label above the panel.
    """
    count = len(forest.lines)
    title = wrapped(title, width=TITLE_WIDTH, lines=3)
    set_title(axes, title, labelled_lines=labelled_lines)
    axes.set_xlabel(wrapped(label, width=26), loc="right")
    axes.set(xlim=limits, ylim=(count - 0.5, -0.5))
    axes.set_yticks(range(count), forest.labels)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 4, 5, 10]))
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    if len(forest.marks) > 1:
        separate_lines(axes, count)

    for place, name in enumerate(forest.lines):
        gid = CHECKPOINT + name if forest.of_checkpoints else None
        axes.yaxis.get_majorticklabels()[place].set_gid(gid)
        if name in forest.ends:
            width = forest.ends[name] - forest.null
            band = axes.barh(
                place, width, left=forest.null, height=0.6, color=MUTED, alpha=0.2
            )
            band.patches[0].set_gid(gid)
        if name in forest.values:
            axes.text(
                1.06,
                place,
                forest.values[name],
                transform=axes.get_yaxis_transform(),
                va="center",
                gid=gid,
            )
        for rank, marks in enumerate(forest.marks):
            if name not in marks.rows:
                continue
            shift = 0.6 * ((rank + 0.5) / len(forest.marks) - 0.5)
            draw_row(
                axes,
                marks.rows[name],
                marks.looks[name],
                height=place + shift,
                turn=forest.turn,
                gid=gid,
            )


def separate_lines(axes: Axes, count: int) -> None:
    """Draw thin rules between lines, so that marks are not taken for a neighbour's."""
    axes.yaxis.set_minor_locator(FixedLocator([place + 0.5 for place in range(count)]))
    axes.tick_params(axis="y", which="minor", length=0)
    axes.grid(visible=True, axis="y", which="minor")


def draw_row(
    axes: Axes, row: Row, look: Look, *, height: float, turn: Turn, gid: str | None
) -> None:
    """Draw a value and its interval; an arrow points to what is beyond the axis."""
    assert row.value is not None
    left, right = axes.get_xlim()
    x = turn(row.value)
    if row.ends is not None:
        low, high = sorted(turn(end) for end in row.ends)
        axes.plot(
            [min(max(low, left), right), max(min(high, right), left)],
            [height, height],
            color=look.colour,
            linewidth=1.4,
            solid_capstyle="butt",
            gid=gid,
        )
        if low < left:
            draw_mark(axes, left, height, Look("<", look.colour), gid=gid, size=4)
        if high > right:
            draw_mark(axes, right, height, Look(">", look.colour), gid=gid, size=4)
    if left <= x <= right:
        draw_mark(axes, x, height, look, gid=gid)
    else:
        marker = "<" if x < left else ">"
        beyond = Look(marker, look.colour, look.filled)
        draw_mark(axes, min(max(x, left), right), height, beyond, gid=gid)


def draw_mark(
    axes: Axes, x: float, y: float, look: Look, *, gid: str | None, size: float = 6
) -> None:
    """Draw one mark above the lines."""
    mark = sample_of(look, size=size)
    mark.set_data([x], [y])
    mark.set(zorder=3, clip_on=False, gid=gid)
    axes.add_line(mark)


def draw_curve(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    look: Look,
    *,
    size: float,
    width: float = 1.4,
    gid: str | None = None,
) -> None:
    """Draw marks that are joined by a line."""
    curve = sample_of(look, dashes="-", size=size, width=width)
    curve.set_data(np.asarray(x, float), np.asarray(y, float))
    curve.set_gid(gid)
    axes.add_line(curve)
    axes.autoscale_view()


def span_of(forest: Forest, *, least: float = 0.0) -> tuple[float, float]:
    """Return ends of an axis with the null, all valid values and most intervals.

    One interval of a group with two sources must not flatten all others.
    """
    values = [forest.null, forest.null + least, *forest.ends.values()]
    widths = []
    ends = []
    for row in rows_that_count(forest):
        values.append(forest.turn(row.value or 0.0))
        if row.ends is not None:
            low, high = sorted(forest.turn(end) for end in row.ends)
            widths.append(high - low)
            ends += [low, high]
    low, high = min(values), max(values)
    if ends:
        reach = max(0.5 * (high - low), 1.5 * sorted(widths)[len(widths) // 2])
        low, high = (
            min(low, max(min(ends), low - reach)),
            max(high, min(max(ends), high + reach)),
        )
    room = 0.05 * (high - low) or 0.05
    return low - room, high + room


def rows_that_count(forest: Forest) -> list[Row]:
    """Return the valid rows, from which an axis is made; all where none is valid."""
    valid = []
    every = []
    has_valid_mark = False
    for marks in forest.marks:
        for name, row in marks.rows.items():
            every.append(row)
            if marks.looks[name] != DOUBT_LOOK:
                valid.append(row)
                has_valid_mark |= not marks.is_reference
    # References alone would make an axis on which nothing else is seen.
    return valid if has_valid_mark else every


def null_line(axes: Axes, at: float, label: str) -> None:
    """Draw what no leak gives as a line with its label above the panel."""
    axes.axvline(at, color=INK, linewidth=0.9, zorder=1.5)
    _label_above(axes, at, label, colour=INK, line=0)


def leak_line(axes: Axes, at: float, name: str) -> None:
    """Draw the strongest leak as a thin line through all rows."""
    gid = CHECKPOINT + name
    dashes = (0, (4, 2))
    axes.axvline(at, color=ALARM, linewidth=0.8, linestyle=dashes, zorder=1.5, gid=gid)
    label = render("figure.strongest", name=wrapped(name, width=16, lines=1))
    _label_above(axes, at, label, colour=ALARM, line=1, gid=gid)


def _label_above(
    axes: Axes, at: float, label: str, *, colour: str, line: int, gid: str | None = None
) -> None:
    low, high = axes.get_xlim()
    share = (at - low) / (high - low)
    side = "left" if share < 0.3 else "right" if share > 0.7 else "center"
    text = axes.annotate(
        label,
        xy=(at, 1.0),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 2 + 10 * line),
        textcoords="offset points",
        ha=side,
        va="bottom",
        color=colour,
        gid=gid,
    )
    text.set(label=LINE_LABEL, in_layout=False)


def draw_legend(
    figure: Figure, samples: Mapping[str, Artist], *, names: Sequence[str] = ()
) -> None:
    """Draw a legend in two columns below all panels.

    Parameters
    ----------
    names
        Labels that are checkpoints, which a page can hide.
    """
    labels = [wrapped(label, width=LEGEND_WIDTH, lines=3) for label in samples]
    legend = figure.legend(
        list(samples.values()),
        labels,
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=2 if len(samples) > 1 else 1,
    )
    legend.set_gid("legend")
    parts = zip(samples, legend.legend_handles, legend.get_texts(), strict=True)
    for label, handle, text in parts:
        if label in names and handle is not None:
            handle.set_gid(CHECKPOINT + label)
            text.set_gid(CHECKPOINT + label)


def legend_lines(samples: Mapping[str, Artist]) -> int:
    """Return the lines that a legend needs."""
    labels = [wrapped(label, width=LEGEND_WIDTH, lines=3) for label in samples]
    counts = [label.count("\n") + 1 for label in labels]
    left = counts[: -(-len(counts) // 2)]
    right = counts[len(left) :]
    return max(sum(left), sum(right))


def sample_of(
    look: Look,
    *,
    dashes: Literal["-", "none"] = "none",
    size: float = 6,
    width: float = 1.4,
) -> Line2D:
    """Return a line without points that has a look, as the legend shows it."""
    return Line2D(
        [],
        [],
        color=look.colour,
        marker=look.marker,
        linestyle=dashes,
        linewidth=width,
        markersize=size,
        markeredgewidth=1.3,
        markerfacecolor=look.colour if look.filled else PAPER,
    )


def patch_sample(colour: str, *, alpha: float) -> Patch:
    """Return a filled patch for the legend."""
    return Patch(facecolor=colour, edgecolor=PAPER, alpha=alpha)


def frame_sample() -> Patch:
    """Return what stands for a framed cell in the legend."""
    return Patch(facecolor="none", edgecolor=INK)


def band_sample() -> Patch:
    """Return what stands for a grey band in the legend."""
    return patch_sample(MUTED, alpha=0.25)


def outcome_samples(forest: Forest) -> dict[str, Artist]:
    """Return the legend of the looks that the first marks of a forest have."""
    keys = {
        "found": FOUND_LOOK,
        "less": LESS_LOOK,
        "nothing": NOTHING_LOOK,
        "doubt": DOUBT_LOOK,
    }
    drawn = set(forest.marks[0].looks.values())
    samples: dict[str, Artist] = {
        render(f"figure.key.{key}"): sample_of(look)
        for key, look in keys.items()
        if look in drawn
    }
    if forest.ends:
        samples[render("figure.key.at_most")] = band_sample()
    return samples


def draw_band(
    axes: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> None:
    """Draw the grey area of what chance gives."""
    axes.fill_between(x, low, high, color=MUTED, alpha=0.22, linewidth=0, zorder=1)


def draw_edges(axes: Axes, edges: Sequence[float]) -> None:
    """Draw thresholds as thin broken lines."""
    for edge in edges:
        axes.axvline(edge, color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)))
