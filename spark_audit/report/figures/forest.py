"""Forests: a line for each checkpoint or group, with its value and its interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from spark_audit.report.figures.canvas import (
    LINE_LABEL,
    TEXT_LINE,
    TITLE_WIDTH,
    set_title,
)
from spark_audit.report.figures.marks import band_sample, draw_mark, sample_of
from spark_audit.report.figures.styling import ALARM, CHECKPOINT, INK, MUTED
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

AROUND_FOREST = 0.95
"""Inches of the title, of labels of lines of reference and of the axis, which stand
around the lines of a forest."""

MIN_LINE_HEIGHT = 0.25
"""Inches that a line of a forest has at least."""

MARK_HEIGHT = 0.13
"""Inches of one mark; the marks of a line stand below each other."""

LINE_GAP = 0.1
"""Inches between the texts or marks of two lines."""

BAND_HEIGHT = 0.6
"""Share of a line that the band of what could still be there fills."""

VALUE_PLACE = 1.06
"""Where the values at the right begin, in widths of the panel from its left edge."""

NAME_WIDTH = 14
"""Letters of a line of a name at the left."""

MARKS_HEIGHT = 0.6
"""Share of a line over which its marks are spread."""

LABEL_HEIGHT = 10
"""Points from the label of one line of reference to that of the next."""

OUTCOME_LOOKS = {
    "found": FOUND_LOOK,
    "less": LESS_LOOK,
    "nothing": NOTHING_LOOK,
    "doubt": DOUBT_LOOK,
}
"""Key of the legend -> look of what an attack came to."""

Turn = Callable[[float], float]
"""Gives the position of a value on the axis: of a change, for example, its negative."""


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
        Whether they are only for comparison, such as held-out identifiers.
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
        Line -> text at its right.
    band_ends
        Line -> position at which the band from the null ends.
    turn
        Gives the position of a value on the axis.
    no_effect
        Position of what no leak gives.
    of_checkpoints
        Whether the lines are checkpoints, which a page can hide.
    """

    lines: Sequence[str]
    marks: Sequence[ForestMarks]
    values: Mapping[str, str] = field(default_factory=dict)
    band_ends: Mapping[str, float] = field(default_factory=dict)
    turn: Turn = float
    no_effect: float = 0.0
    of_checkpoints: bool = True

    @property
    def labels(self) -> list[str]:
        """Return the names of the lines as they are broken."""
        return [wrapped(name, width=NAME_WIDTH, lines=3) for name in self.lines]

    @property
    def line_height(self) -> float:
        """Return the inches that a line of it needs."""
        texts = [*self.labels, *self.values.values()]
        by_text = TEXT_LINE * lines_of(texts) + LINE_GAP
        by_marks = MARK_HEIGHT * len(self.marks) + LINE_GAP
        return max(MIN_LINE_HEIGHT, by_text, by_marks)

    def gid_of(self, line: str) -> str | None:
        """Return the gid of all artists of a line, by which a page can hide them.

        None: the line is no checkpoint.
        """
        return CHECKPOINT + line if self.of_checkpoints else None


def heights_of(forests: Iterable[Forest]) -> list[float]:
    """Return the inches of panels whose lines are all equally high."""
    forests = list(forests)
    line_height = max((forest.line_height for forest in forests), default=0.0)
    return [len(forest.lines) * line_height + AROUND_FOREST for forest in forests]


def outcome_samples(forest: Forest) -> dict[str, Artist]:
    """Return the legend of the looks that the first marks of a forest have."""
    looks_drawn = set(forest.marks[0].looks.values())
    samples: dict[str, Artist] = {}
    for key, look in OUTCOME_LOOKS.items():
        if look in looks_drawn:
            samples[render(f"figure.key.{key}")] = sample_of(look)

    if forest.band_ends:
        samples[render("figure.key.at_most")] = band_sample()
    return samples


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
    n_lines = len(forest.lines)
    title = wrapped(title, width=TITLE_WIDTH, lines=3)
    set_title(axes, title, labelled_lines=labelled_lines)
    axes.set_xlabel(wrapped(label, width=26), loc="right")

    # The first line stands on top.
    axes.set(xlim=limits, ylim=(n_lines - 0.5, -0.5))
    axes.set_yticks(range(n_lines), forest.labels)

    # A narrow panel has room for few ticks.
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 4, 5, 10]))
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    if len(forest.marks) > 1:
        separate_lines(axes, n_lines)

    for index, name in enumerate(forest.lines):
        axes.yaxis.get_majorticklabels()[index].set_gid(forest.gid_of(name))
        draw_line(axes, forest, name, height=index)


def separate_lines(axes: Axes, n_lines: int) -> None:
    """Draw thin rules between lines, so that marks are not taken for a neighbour's."""
    rules = [height + 0.5 for height in range(n_lines)]
    axes.yaxis.set_minor_locator(FixedLocator(rules))
    axes.tick_params(axis="y", which="minor", length=0)
    axes.grid(visible=True, axis="y", which="minor")


def draw_line(axes: Axes, forest: Forest, name: str, *, height: int) -> None:
    """Draw one line: the band of what could still be there, its value, its marks.

    ``height`` is its position on the upright axis, which counts lines.
    """
    gid = forest.gid_of(name)
    if name in forest.band_ends:
        width = forest.band_ends[name] - forest.no_effect
        band = axes.barh(
            height,
            width,
            left=forest.no_effect,
            height=BAND_HEIGHT,
            color=MUTED,
            alpha=0.2,
        )
        band.patches[0].set_gid(gid)

    if name in forest.values:
        axes.text(
            VALUE_PLACE,
            height,
            forest.values[name],
            transform=axes.get_yaxis_transform(),
            va="center",
            gid=gid,
        )

    for index, marks in enumerate(forest.marks):
        if name not in marks.rows:
            continue

        # Several marks are below each other, around the middle of the line.
        shift = MARKS_HEIGHT * ((index + 0.5) / len(forest.marks) - 0.5)
        draw_row(
            axes,
            marks.rows[name],
            marks.looks[name],
            height=height + shift,
            turn=forest.turn,
            gid=gid,
        )


def draw_row(
    axes: Axes, row: Row, look: Look, *, height: float, turn: Turn, gid: str | None
) -> None:
    """Draw a value and its interval; an arrow points to what is beyond the axis."""
    assert row.value is not None
    left, right = axes.get_xlim()
    if row.ends is not None:
        # Where the axis is turned, the upper end of the interval is at the left.
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

    x = turn(row.value)
    if x < left:
        draw_mark(axes, left, height, Look("<", look.colour, look.filled), gid=gid)
    elif x > right:
        draw_mark(axes, right, height, Look(">", look.colour, look.filled), gid=gid)
    else:
        draw_mark(axes, x, height, look, gid=gid)


def span_of(forest: Forest, *, least: float = 0.0) -> tuple[float, float]:
    """Return ends of an axis with the null, all valid values and most intervals.

    A huge interval, such as one over two sources, must not flatten all others.

    Parameters
    ----------
    least
        Distance from the null that the axis shows at least.
    """
    values = [forest.no_effect, forest.no_effect + least, *forest.band_ends.values()]
    # Use widths and ends of the intervals, if there are any.
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
        # Intervals extend the axis, but at most by the usual width.
        usual_width = sorted(widths)[len(widths) // 2]
        reach = max(0.5 * (high - low), 1.5 * usual_width)
        lowest = max(min(ends), low - reach)
        highest = min(max(ends), high + reach)
        low = min(low, lowest)
        high = max(high, highest)

    room = 0.05 * (high - low) or 0.05
    return low - room, high + room


def rows_that_count(forest: Forest) -> list[Row]:
    """Return the valid rows for choosing an axis; all rows if none is valid."""
    # Void figures may have any size and must not flatten the others.
    valid = []
    all_rows = []
    has_valid_mark = False
    for marks in forest.marks:
        for name, row in marks.rows.items():
            all_rows.append(row)
            if marks.looks[name] != DOUBT_LOOK:
                valid.append(row)
                has_valid_mark |= not marks.is_reference

    # An axis for references alone could hide all other marks.
    return valid if has_valid_mark else all_rows


def null_line(axes: Axes, x: float, label: str) -> None:
    """Draw the value without a leak as a line with its label above the panel."""
    axes.axvline(x, color=INK, linewidth=0.9, zorder=1.5)
    _label_above(axes, x, label, colour=INK, n_below=0)


def leak_line(axes: Axes, x: float, name: str) -> None:
    """Draw the strongest leak as a thin upright line through the panel."""
    gid = CHECKPOINT + name
    dashes = (0, (4, 2))
    axes.axvline(x, color=ALARM, linewidth=0.8, linestyle=dashes, zorder=1.5, gid=gid)
    label = render("figure.strongest", name=wrapped(name, width=16, lines=1))
    _label_above(axes, x, label, colour=ALARM, n_below=1, gid=gid)


def _label_above(
    axes: Axes,
    x: float,
    label: str,
    *,
    colour: str,
    n_below: int,
    gid: str | None = None,
) -> None:
    """Write the label of a line of reference above a panel, towards its middle.

    ``n_below`` is how many labels stand below this one.
    """
    left, right = axes.get_xlim()
    share = (x - left) / (right - left)
    side = "center"
    if share < 0.3:
        side = "left"
    elif share > 0.7:
        side = "right"

    # The layout ignores the label: a long one moves sideways and shrinks no panel.
    text = axes.annotate(
        label,
        xy=(x, 1.0),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 2 + LABEL_HEIGHT * n_below),
        textcoords="offset points",
        ha=side,
        va="bottom",
        color=colour,
        gid=gid,
    )
    text.set(label=LINE_LABEL, in_layout=False)
