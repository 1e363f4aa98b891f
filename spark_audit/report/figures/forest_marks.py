"""Sections, lines, marks and cells of a forest, and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from matplotlib.axes import Axes

from spark_audit.report.figures.picture import BAND, MISSING, ZERO, Look, plain, tidy
from spark_audit.report.figures.theme import HOLLOW, INK, MUTED, PAPER
from spark_audit.results import Row

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


def frame(axes: Axes, section: Section, *, bare: bool) -> None:
    """Axes, titles, references and, if not ``bare``, names and figures in words."""
    lines = section.lines
    axes.set_yticks(range(len(lines)), ["" if bare else x.label for x in lines])
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
        missing = all(mark.value is None for mark in line.marks)
        if (line.text and not bare) or missing:
            at, text = (1.02, line.text) if line.text else (0.03, MISSING)
            colour = MUTED if missing or line.text[0].isalpha() else INK
            said = axes.text(
                at, place, text, transform=aside, va="center", color=colour
            )
            line.look.owns(said)


def words(axes: Axes, line: Line, top: float, texts: tuple[str, str]) -> None:
    """Name and figures above a line's marks, on the ground's own colour."""
    ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
    for text, at, side in zip(texts, (0.0, 1.0), ("left", "right"), strict=True):
        if text:
            said = axes.text(
                at,
                top,
                text,
                transform=axes.get_yaxis_transform(),
                ha=side,
                va="top",
                color=MUTED if side == "right" and text[0].isalpha() else INK,
                bbox=ground,
                zorder=2.4,
            )
            line.look.owns(said)


def line_of(axes: Axes, line: Line, place: float, *, room: float = 1.0) -> None:
    """The band and the marks; ``room`` is the share of the line's height they have."""
    if line.band is not None and line.band[0] < line.band[1]:
        width = line.band[1] - line.band[0]
        bars = axes.barh(
            place, width, left=line.band[0], height=0.72 * room, zorder=1, **BAND
        )
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
            _cell(axes, look, mark, int(place))
        elif mark.value is not None:
            shift = (0.2 if mark.light else -0.12) * room if line.several else 0.0
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


def columns(axes: Axes, names: Sequence[str], lines: int) -> None:
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
