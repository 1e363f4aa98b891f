"""Forests: lines with values and intervals on one scale, in sections below each other.

They are narrow enough for a phone: names and figures stand above the marks.
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
    inches,
    lines_of,
    plain,
    tidy,
)
from spark_audit.report.figures.theme import HOLLOW, INK, MUTED, PAPER
from spark_audit.results import Row

LANE, LETTERS = 0.16, 0.15
"""Inches of a line's marks (twice that with light ones), and of a line of text."""


@dataclass(frozen=True)
class Mark:
    """A point of a line, with the interval of its row where that has both ends.

    ``light`` marks stand below the main one, smaller and paler. ``look`` is the mark's
    where it is not the line's.
    """

    value: float | None
    row: Row | None = None
    light: bool = False
    look: Look | None = None

    @classmethod
    def of(cls, row: Row | None, *, light: bool = False) -> Mark:
        """The mark of a row; of nothing, where there is none."""
        return cls(None) if row is None else cls(row.value, row, light)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends of its interval, if it has one."""
        return None if self.row is None else self.row.ends

    @property
    def hollow(self) -> bool:
        """Whether it must not be read as found."""
        return self.row is not None and self.row.status in HOLLOW

    def words(self) -> str:
        """Value and interval; of a void one, its status."""
        if self.value is None:
            return MISSING
        text = plain(self.value)
        if self.row is not None and self.hollow:
            return f"{text} {self.row.status.replace('_', ' ').upper()}"
        return f"{text} [{', '.join(map(plain, self.ends))}]" if self.ends else text


@dataclass(frozen=True)
class Line:
    """A line of a forest: a label, marks, a row whose interval is a band behind them.

    ``text`` stands at its right; ``joined`` marks have a thin line between them.
    """

    label: str
    look: Look
    marks: Sequence[Mark]
    text: str
    behind: Row | None = None
    joined: bool = False

    @property
    def band(self) -> tuple[float, float] | None:
        """Ends of what stands behind the marks."""
        return None if self.behind is None else self.behind.ends

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
    title: str
    label: str
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] | None = None
    linear: float | None = None
    references: Mapping[float, Look] = field(default_factory=lambda: {0.0: ZERO})

    @property
    def marks(self) -> list[Mark]:
        """All marks that have a value."""
        return [m for x in self.lines for m in x.marks if m.value is not None]

    @property
    def span(self) -> tuple[float, float]:
        """Ends of the axis."""
        if self.limits is not None:
            return self.limits
        values = [
            *self.references,
            *(m.value for m in self.marks if m.value is not None),
        ]
        values += [end for line in self.lines for end in line.band or ()]
        low, high = min(values), max(values)
        if bounds := [m.ends for m in self.marks if m.ends]:
            # One interval of a group with two sources must not flatten all others.
            widths = sorted(b - a for a, b in bounds)
            reach = max(0.35 * (high - low), 2.0 * widths[len(widths) // 2])
            low = min(low, max(min(a for a, _ in bounds), low - reach))
            high = max(high, min(max(b for _, b in bounds), high + reach))
        room = (high - low) * 0.05 or 0.05
        return low - room, high + room


@dataclass(frozen=True, kw_only=True)
class Forest(Picture):
    """Sections of lines; on a page a screen of 390 px wide, letters as the page's."""

    sections: Sequence[Section]
    width: float = 3.0

    @property
    def _lane(self) -> float:
        several = any(x.several for section in self.sections for x in section.lines)
        return LANE * (1 + several)

    @property
    def _line(self) -> float:
        """Inches of a line."""
        lines = [line for section in self.sections for line in section.lines]
        return self._lane + LETTERS * lines_of(self._above(line)[0] for line in lines)

    @property
    def height(self) -> float:
        """Inches, less the legend."""
        total = 0.0
        for section in self.sections:
            total += len(section.lines) * self._line + 0.54
            total += TITLE * lines_of([section.title])
            total += LETTERS * section.label.count("\n")
        return total

    def _above(self, line: Line) -> tuple[str, str]:
        """What stands above a line's marks, at the left and at the right."""
        if inches([line.label]) + inches([line.text]) + 0.5 < self.width:
            return line.label, line.text
        return f"{line.label}\n{line.text}", ""

    def shown(self) -> Iterator[tuple[Look, Row | None]]:
        """Whose each mark is, and its row."""
        for section in self.sections:
            for line in section.lines:
                yield from ((line.look, mark.row) for mark in line.marks)

    def told(self) -> Iterator[tuple[str, list[Told]]]:
        """Of each line the words at its right, by its first mark."""
        for section in self.sections:
            title = section.title if len(self.sections) > 1 else ""
            lines = [(x, x.marks[0].value) for x in section.lines]
            yield (
                title.replace("\n", " "),
                [
                    (x.look.name or x.label, value, x.text)
                    for x, value in lines
                    if value is not None
                ],
            )

    def leaves(self) -> bool:
        """Whether an interval continues beyond its axis."""
        return any(
            mark.ends[0] < section.span[0] or mark.ends[1] > section.span[1]
            for section in self.sections
            for mark in section.marks
            if mark.ends
        )

    def paint(self, figure: Figure) -> None:
        """Draw all sections."""
        counts = [len(section.lines) for section in self.sections]
        ratios = {"height_ratios": counts}
        grid = figure.subplots(len(counts), squeeze=False, gridspec_kw=ratios)
        for axes, section in zip(grid.flat, self.sections, strict=True):
            tidy(axes, grid="x")
            axes.set(xlim=section.span, ylim=(len(section.lines) - 0.45, -0.55))
            axes.set(yticks=[], xlabel=section.label, title=section.title)
            axes.spines["left"].set_visible(False)
            if section.linear is not None:
                axes.set_xscale("symlog", linthresh=section.linear)
                axes.set_xlim(*section.span)
            if section.ticks is not None:
                axes.set_xticks(section.ticks, [f"{at:g}" for at in section.ticks])
                axes.set_xticks([], minor=True)
            for at, look in section.references.items():
                axes.axvline(at, **look.line, zorder=1.5 if look == ZERO else 2.2)
            lane = self._lane / self._line
            for at, line in enumerate(section.lines):
                _words(axes, line, at - 0.5 + lane / 5, self._above(line))
                _line(axes, line, at + 0.5 - lane / 2, room=lane)


def _words(axes: Axes, line: Line, top: float, texts: tuple[str, str]) -> None:
    """Name and figures above a line's marks, on the ground's own colour."""
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
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
                zorder=2.4,
            )
            line.look.owns(said)


def _line(axes: Axes, line: Line, place: float, *, room: float) -> None:
    """The band and the marks; ``room`` is the share of the line's height they have."""
    if line.band is not None:
        left, right = line.band
        bars = axes.barh(
            place, right - left, left=left, height=0.72 * room, zorder=1, **BAND
        )
        line.look.owns(*bars)
    low, high = axes.get_xlim()
    values = [mark.value for mark in line.marks if mark.value is not None]
    if line.joined and len(values) > 1:
        joint = axes.plot(values, [place] * len(values), color=MUTED, lw=0.8, zorder=2)
        line.look.owns(*joint)
    for mark in line.marks:
        if mark.value is None:
            continue
        at = place + ((0.2 if mark.light else -0.12) * room if line.several else 0.0)
        look = replace(mark.look or line.look, name=line.look.name, dashes="none")
        if mark.ends:
            left, right = mark.ends
            bar = axes.plot(
                (max(left, low), min(right, high)),
                [at, at],
                color=look.colour,
                linewidth=1.0 if mark.light else 1.6,
                alpha=0.55 if mark.light else 1.0,
                solid_capstyle="butt",
                zorder=2.5,
            )
            look.owns(*bar)
            for out, limit, arrow in (
                (left < low, low, "<"),
                (right > high, high, ">"),
            ):
                if out:
                    _put(
                        axes, Look(look.name, look.colour, arrow, "none", 4), limit, at
                    )
        beyond = "<" if mark.value < low else ">" if mark.value > high else ""
        look = replace(
            look,
            marker=beyond or look.marker,
            size=3.6 if mark.light else 6.0,
            hollow=look.hollow or mark.hollow,
            alpha=0.55 if mark.light and not mark.hollow else 1.0,
        )
        _put(axes, look, min(max(mark.value, low), high), at)


def _put(axes: Axes, look: Look, at: float, place: float) -> None:
    look.owns(*axes.plot(at, place, zorder=3, clip_on=False, **look.line))
