"""Forests: rows with values and intervals on one scale, in sections.

A mark is a point with its interval, a bar, or a cell that darkens with its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spark_audit.report.figures.picture import (
    BAND,
    MISSING,
    TITLE,
    ZERO,
    Look,
    Picture,
    Told,
    grid_of,
    inches,
    lines_of,
    plain,
    tidy,
)
from spark_audit.report.figures.theme import HOLLOW, INK, MUTED, PAPER
from spark_audit.results import Row

CELL, TALL = 0.33, 0.21
"""Inches of a cell."""
DENSE = 0.16
"""Inches of a line without a name."""
LEAST = 1.25
"""Inches that a section is wide at least."""
DARKEST = 0.55
"""How much of the colour a cell of 1 has: words stay readable on it."""


@dataclass(frozen=True)
class Mark:
    """A point of a line; an interval is drawn where both its ends are known.

    ``light`` marks stand below the main one, smaller and paler. With ``start`` it is a
    bar from there; with ``column`` a cell, whose value is between 0 and 1. ``look`` is
    its own where it is not the line's. A ``light`` cell is not filled.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    row: Row | None = None
    light: bool = False
    marker: str = ""
    look: Look | None = None
    start: float | None = None
    column: int | None = None

    @classmethod
    def of(cls, row: Row | None, *, factor: float = 1.0, **options: object) -> Mark:
        """The mark of a row (of nothing, where there is none), times a factor."""
        ends = (None, None, None) if row is None else (row.value, row.low, row.high)
        value, low, high = (None if end is None else end * factor for end in ends)
        return cls(value, low, high, row, **options)  # type: ignore[arg-type]

    @property
    def hollow(self) -> bool:
        """Whether it must not be read as found."""
        return self.row is not None and self.row.status in HOLLOW

    @property
    def bounded(self) -> bool:
        """Whether it has an interval."""
        return None not in (self.value, self.low, self.high)

    def words(self, digits: int = 3) -> str:
        """Value and interval; of a void one, its status."""
        if self.value is None:
            return MISSING
        text = plain(self.value, digits)
        if self.row is not None and self.hollow:
            return f"{text} {self.row.status.replace('_', ' ').upper()}"
        if self.low is None or self.high is None:
            return text
        return f"{text} [{plain(self.low, digits)}, {plain(self.high, digits)}]"


@dataclass(frozen=True)
class Line:
    """A line of a forest: a label, marks, a row whose interval is a band behind them.

    ``text`` stands at its right; ``joined`` marks have a thin line between them.
    """

    label: str
    look: Look
    marks: Sequence[Mark]
    behind: Row | None = None
    text: str = ""
    joined: bool = False

    @property
    def band(self) -> tuple[float, float] | None:
        """Ends of what stands behind the marks."""
        row = self.behind
        if row is None or row.low is None or row.high is None:
            return None
        return row.low, row.high

    @property
    def several(self) -> bool:
        """Whether marks stand below each other."""
        return any(m.light and m.value is not None for m in self.marks)


@dataclass(frozen=True)
class Section:
    """Lines on one axis, with upright ``references`` (where -> look).

    Without ``limits`` the axis holds all values, and of the intervals what is not far
    out. With ``linear`` it is logarithmic from there on.
    """

    lines: Sequence[Line]
    title: str = ""
    label: str = ""
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] | None = None
    linear: float | None = None
    references: Mapping[float, Look] = field(default_factory=lambda: {0.0: ZERO})

    @property
    def marks(self) -> list[Mark]:
        """All marks that have a value."""
        return [m for x in self.lines for m in x.marks if m.value is not None]


@dataclass(frozen=True, kw_only=True)
class Forest(Picture):
    """Sections below each other, or up to ``most`` side by side.

    Sections that share one ``label`` share their scale too; neighbours with the same
    lines name them once. ``columns`` name the places of cells.
    """

    sections: Sequence[Section]
    most: int = 1
    columns: Sequence[str] = ()

    @property
    def _across(self) -> int:
        edge = inches(x.label for s in self.sections for x in s.lines) + 0.2
        least, room = LEAST, self.width - edge
        if self.columns:
            least, room = CELL * len(self.columns) + edge, self.width - 0.2
        return grid_of(len(self.sections), most=self.most, width=room, least=least)[1]

    @property
    def _line(self) -> float:
        """Inches of a line."""
        lines = [line for section in self.sections for line in section.lines]
        if not any(line.label for line in lines):
            return DENSE
        few = max(len(section.lines) for section in self.sections) <= 6
        least = (0.28 if few else 0.22) + 0.06 * any(line.several for line in lines)
        least = TALL if self.columns else least
        return max(least, 0.15 * lines_of(line.label for line in lines) + 0.04)

    @property
    def _bands(self) -> list[Sequence[Section]]:
        """Sections that stand side by side."""
        across = self._across
        starts = range(0, len(self.sections), across)
        return [self.sections[start : start + across] for start in starts]

    @property
    def height(self) -> float:
        """Inches, less the legend."""
        shared = bool(self.label or self.columns)
        ticks = 0.7 * inches(self.columns) + 0.1 if self.columns else 0.22
        # Sections above a gap in the last row have their ticks below them too.
        ragged = len(self.sections) % self._across != 0
        total = ticks * (1 + ragged) if shared else 0.0
        for band in self._bands:
            total += max(len(section.lines) for section in band) * self._line + 0.12
            total += TITLE * lines_of(section.title for section in band)
            total += 0.0 if shared else ticks + 0.2
        return total

    def shown(self) -> Iterator[tuple[Look, Row | None]]:
        """Whose each mark is, and its row."""
        for section in self.sections:
            for line in section.lines:
                yield from ((line.look, mark.row) for mark in line.marks)

    def told(self) -> Iterator[tuple[str, list[Told]]]:
        """Of each line the main mark; of cells those of a titled section's last."""
        for section in self.sections:
            if self.columns:
                chosen = section.lines[-1:] if section.title else section.lines
                for line in chosen:
                    cells = [
                        (self.columns[m.column or 0].replace("\n", ""), m.value)
                        for m in line.marks
                        if m.value is not None
                    ]
                    values = [(x, v, plain(v, self.digits)) for x, v in cells]
                    yield section.title or line.label, values
                continue
            every = [line.marks for line in section.lines]
            main = next(
                (
                    place
                    for place in range(max(map(len, every)))
                    if any(m[place].value is not None for m in every if m[place:])
                ),
                0,
            )
            title = section.title if len(self.sections) > 1 else ""
            found = (self._told(x, x.marks[main:]) for x in section.lines)
            yield title, [values for values in found if values]

    def _told(self, line: Line, marks: Sequence[Mark]) -> Told | None:
        if not marks or marks[0].value is None:
            return None
        value, words = marks[0].value, line.text or marks[0].words(self.digits)
        if marks[0].start is not None:
            value = max((m.value for m in marks if m.value is not None), key=abs)
            words = marks[0].words(self.digits) if len(marks) == 1 else ""
            words = words or f"{plain(value, self.digits)}, {line.text}"
        return line.look.name or line.label, value, words

    def leaves(self) -> bool:
        """Whether an interval goes on beyond its axis."""
        for section in self.sections:
            low, high = self._limits(section)
            for mark in section.marks:
                if mark.low is not None and mark.high is not None:
                    if mark.low < low or mark.high > high:
                        return True
        return False

    def _limits(self, section: Section) -> tuple[float, float]:
        if self.columns:
            return -0.5, len(self.columns) - 0.5
        return section.limits or span(self.sections if self.label else [section])

    def paint(self, figure: Figure) -> None:
        """Draw all sections."""
        across = self._across
        most = [max(len(section.lines) for section in band) for band in self._bands]
        grid = figure.subplots(
            len(most), across, squeeze=False, gridspec_kw={"height_ratios": most}
        )
        for place, section in enumerate(self.sections):
            axes, left = grid.flat[place], self.sections[place - 1 : place]
            lines = [(line.label, line.look) for line in section.lines]
            again = place % across and left
            if again and lines == [(line.label, line.look) for line in left[0].lines]:
                bare = [replace(line, label="") for line in section.lines]
                section = replace(section, lines=bare)
            axes.set_xlim(*self._limits(section))
            # Lines are as high in a short section as in the long one beside it.
            axes.set_ylim(most[place // across] - 0.45, -0.55)
            _section(axes, section)
            if self.columns:
                _columns(axes, self.columns, len(section.lines))
            if self.label or self.columns:
                bottom = place + across >= len(self.sections)
                axes.tick_params(axis="x", labelbottom=bottom)
        for axes in grid.flat[len(self.sections) :]:
            axes.remove()


def span(sections: Sequence[Section]) -> tuple[float, float]:
    """Ends of an axis: all values, and of the intervals what is not far out."""
    lines = [line for section in sections for line in section.lines]
    marks = [mark for section in sections for mark in section.marks]
    values = [at for section in sections for at in section.references]
    values += [at for m in marks for at in (m.value, m.start) if at is not None]
    values += [end for line in lines for end in line.band or ()]
    low, high = min(values), max(values)
    bounds = [(m.low or 0.0, m.high or 0.0) for m in marks if m.bounded]
    widths = sorted(b - a for a, b in bounds)
    if widths:
        # One interval of a group with two sources must not flatten all others.
        reach = max(0.35 * (high - low), 2.0 * widths[len(widths) // 2])
        low = min(low, max(min(a for a, _ in bounds), low - reach))
        high = max(high, min(max(b for _, b in bounds), high + reach))
    room = (high - low) * 0.05 or 0.05
    bars = all(m.start is not None for m in marks)
    return (low if bars and low == 0.0 else low - room), high + room


def _section(axes: Axes, section: Section) -> None:
    """Draw lines from top to bottom with their figures in words at the right."""
    lines = section.lines
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    tidy(axes, grid="x")
    axes.tick_params(axis="y", length=0, pad=6)
    axes.spines["left"].set_visible(False)
    if section.linear is not None:
        ends = axes.get_xlim()
        axes.set_xscale("symlog", linthresh=section.linear)
        axes.set_xlim(*ends)
    if section.ticks is not None:
        axes.set_xticks(section.ticks, [f"{at:g}" for at in section.ticks])
        axes.set_xticks([], minor=True)
    axes.set_xlabel(section.label)
    title = axes.set_title(section.title)
    if len({line.look for line in lines}) == 1 < len(lines):
        lines[0].look.owns(title)
    for at, look in section.references.items():
        axes.axvline(at, **look.line, zorder=1.5 if look == ZERO else 2.2)
    aside = axes.get_yaxis_transform()
    for place, (line, tick) in enumerate(
        zip(lines, axes.get_yticklabels(), strict=True)
    ):
        line.look.owns(tick)
        _line(axes, line, place)
        missing = all(mark.value is None for mark in line.marks)
        if line.text or missing:
            at, text = (1.02, line.text) if line.text else (0.03, MISSING)
            colour = MUTED if missing or line.text[0].isalpha() else INK
            words = axes.text(
                at, place, text, transform=aside, va="center", color=colour
            )
            line.look.owns(words)


def _line(axes: Axes, line: Line, place: int) -> None:
    if line.band is not None and line.band[0] < line.band[1]:
        width = line.band[1] - line.band[0]
        bars = axes.barh(place, width, left=line.band[0], height=0.72, zorder=1, **BAND)
        line.look.owns(*bars)
    low, high = axes.get_xlim()
    values = [mark.value for mark in line.marks if mark.value is not None]
    if line.joined and len(values) > 1:
        ends = [min(max(end, low), high) for end in (min(values), max(values))]
        joint = axes.plot(ends, [place, place], color=MUTED, linewidth=0.8, zorder=2)
        line.look.owns(*joint)
    for mark in line.marks:
        look = replace(mark.look or line.look, name=line.look.name)
        if mark.column is not None:
            _cell(axes, look, mark, place)
        elif mark.value is not None:
            shift = (0.2 if mark.light else -0.12) if line.several else 0.0
            _whisker(axes, look, mark, place + shift)
            (_point if mark.start is None else _bar)(axes, look, mark, place + shift)


def _whisker(axes: Axes, look: Look, mark: Mark, place: float) -> None:
    """The interval of a mark, with an arrow where it leaves the axis."""
    if mark.low is None or mark.high is None:
        return
    left, right = axes.get_xlim()
    colour = look.colour if mark.start is None else INK
    bar = axes.plot(
        (max(mark.low, left), min(mark.high, right)),
        [place, place],
        color=colour,
        linewidth=1.0 if mark.light else 1.6 if mark.start is None else 1.2,
        alpha=0.55 if mark.light else 1.0,
        solid_capstyle="butt",
        zorder=2.5,
    )
    look.owns(*bar)
    for out, limit, arrow in (
        (mark.low < left, left, "<"),
        (mark.high > right, right, ">"),
    ):
        if out:
            head = Look(look.name, colour, arrow, "none", size=4)
            _put(axes, head, limit, place)


def _point(axes: Axes, look: Look, mark: Mark, place: float) -> None:
    """A mark, or an arrow at the edge where it stands beyond it."""
    low, high = axes.get_xlim()
    value = mark.value or 0.0
    beyond = "<" if value < low else ">" if value > high else ""
    look = replace(
        look,
        marker=beyond or mark.marker or look.marker,
        size=7.0 if mark.marker == "|" else 3.6 if mark.light else 6.0,
        hollow=look.hollow or mark.hollow,
        alpha=0.55 if mark.light and not mark.hollow and not mark.marker else 1.0,
    )
    _put(axes, look, min(max(value, low), high), place)


def _put(axes: Axes, look: Look, at: float, place: float) -> None:
    style = look.line | {"linestyle": "none", "clip_on": False}
    if look.marker == "|":
        style["markeredgewidth"] = 1.6
    look.owns(*axes.plot(at, place, zorder=3, **style))


def _bar(axes: Axes, look: Look, mark: Mark, place: float) -> None:
    start, hollow = mark.start or 0.0, mark.hollow or look.hollow
    bars = axes.barh(
        place,
        (mark.value or 0.0) - start,
        left=start,
        height=0.64,
        facecolor=PAPER if hollow else look.colour,
        edgecolor=look.colour if hollow else PAPER,
        hatch="" if mark.hollow else look.hatch,
        linewidth=1.2 if mark.hollow else 0.6,
        zorder=2,
    )
    look.owns(*bars)


def _cell(axes: Axes, look: Look, mark: Mark, place: int) -> None:
    known, column = mark.value is not None, mark.column or 0
    cell = axes.bar(
        column,
        1.0,
        bottom=place - 0.5,
        width=1.0,
        facecolor=MUTED if known and not mark.light else PAPER,
        alpha=DARKEST * min(max(mark.value or 0.0, 0.0), 1.0),
        linewidth=0,
    )
    text = axes.text(
        column,
        place,
        "–" if mark.value is None else f"{mark.value:.2f}",
        ha="center",
        va="center",
        color=INK if known and not mark.light else MUTED,
        fontstyle="italic" if mark.light else "normal",
    )
    look.owns(*cell, text)


def _columns(axes: Axes, names: Sequence[str], lines: int) -> None:
    """Edges between cells, and the names of columns below them."""
    axes.grid(False)
    axes.spines[:].set_visible(False)
    for edge in range(len(names) + 1):
        axes.axvline(edge - 0.5, color=PAPER, linewidth=1.5)
    for edge in range(lines + 1):
        axes.axhline(edge - 0.5, color=PAPER, linewidth=1.5)
    axes.set_xticks(
        range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor"
    )
    axes.tick_params(length=0)
