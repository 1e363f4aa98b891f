"""Forests: rows with values and intervals on one scale, in sections.

A mark is a point with its interval, a bar, or a cell that darkens with its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from spark_audit.report.figures.forest_marks import (
    Line,
    Mark,
    Section,
    columns,
    frame,
    line_of,
    words,
)
from spark_audit.report.figures.picture import (
    TITLE,
    Look,
    Picture,
    Told,
    grid_of,
    inches,
    lines_of,
    plain,
)
from spark_audit.results import Row

CELL, TALL = 0.33, 0.21
"""Inches of a cell."""
DENSE = 0.16
"""Inches of a line without a name."""
LANE, LETTERS = 0.32, 0.15
"""Inches of the marks of a line whose name stands above them, and of a line of text."""
LEAST = 1.25
"""Inches that a section is wide at least."""


@dataclass(frozen=True, kw_only=True)
class Forest(Picture):
    """Sections below each other, or up to ``most`` side by side.

    Sections that share one ``label`` share their scale too; neighbours with the same
    lines name them once. ``columns`` name the places of cells. In a ``stacked`` one,
    narrow enough for a phone, names and figures stand above the marks.
    """

    sections: Sequence[Section]
    most: int = 1
    columns: Sequence[str] = ()
    stacked: bool = False

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
        if self.stacked:
            return LANE + LETTERS * lines_of(self._above(line)[0] for line in lines)
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
            total += LETTERS * max(s.label.count("\n") for s in band)
        return total

    def _above(self, line: Line) -> tuple[str, str]:
        """What stands above a stacked line, at the left and at the right."""
        if inches([line.label]) + inches([line.text]) + 0.5 < self.width:
            return line.label, line.text
        return f"{line.label}\n{line.text}", ""

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
            frame(axes, section, bare=self.stacked)
            for at, line in enumerate(section.lines):
                if self.stacked:
                    lane = LANE / self._line
                    words(axes, line, at - 0.5 + lane / 5, self._above(line))
                    line_of(axes, line, at + 0.5 - lane / 2, room=lane)
                else:
                    line_of(axes, line, at)
            if self.columns:
                columns(axes, self.columns, len(section.lines))
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
