"""Curves: lines, steps and points over an axis, in panels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from spark_audit.report.figures.picture import (
    BAND,
    TITLE,
    Look,
    Picture,
    Told,
    grid_of,
    lines_of,
    plain,
    tidy,
)
from spark_audit.report.figures.theme import HOLLOW
from spark_audit.results import Row

FEW_DECADES = 150.0
"""Ratio of an axis' ends below which it is labelled at 2 and 5 too."""

Value: TypeAlias = float | Row
"""A number, or a row with its interval and status."""


def _value(at: Value) -> float | None:
    return at.value if isinstance(at, Row) else float(at)


@dataclass(frozen=True)
class Curve:
    """Points in the plane, joined where the look has dashes; a row has its interval.

    Points whose row has no value are left out. ``label`` names it in the alt text,
    where it is ``told``; ``every`` says which points have markers.
    """

    look: Look
    x: Sequence[Value]
    y: Sequence[Value]
    label: str = ""
    told: bool = True
    step: bool = False
    every: slice = field(default_factory=lambda: slice(None))
    front: float = 2.0

    @property
    def points(self) -> list[tuple[float, float, Value, Value]]:
        """Coordinates of each point that has both, with what they are made of."""
        pairs = zip(self.x, self.y, strict=True)
        known = [(_value(x), _value(y), x, y) for x, y in pairs]
        return [(x, y, a, b) for x, y, a, b in known if x is not None and y is not None]


@dataclass(frozen=True)
class Axis:
    """A scale (linear, log, symlog) with its ends, and ticks (where -> what)."""

    label: str = ""
    scale: str = "linear"
    limits: tuple[float | None, float | None] = (None, None)
    ticks: Mapping[float, str] | None = None

    def set(self, axes: Axes, side: Literal["x", "y"]) -> None:
        """Make it an axis of a panel that has its curves."""
        axis = axes.xaxis if side == "x" else axes.yaxis
        axis.set_label_text(self.label)
        if self.limits != (None, None):
            # Setting none would end the scaling of all panels that share the axis.
            getattr(axes, f"set_{side}lim")(*self.limits)
        if self.ticks is not None:
            axis.set_major_locator(FixedLocator(list(self.ticks)))
            axis.set_ticklabels(list(self.ticks.values()))
        elif self.scale == "log":
            low, high = axis.get_view_interval()
            few = high / low < FEW_DECADES
            axis.set_major_locator(
                LogLocator(subs=(1, 2, 5) if few else (1,), numticks=6)
            )
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


@dataclass(frozen=True)
class Band:
    """An area between two heights over a range."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    step: Any = None


@dataclass(frozen=True)
class Panel:
    """Curves on two axes, with bands behind them and lines of reference.

    ``references`` stand at an ``x`` or ``y``; a "diagonal" goes through that point.
    A title may belong to an ``owner``.
    """

    curves: Sequence[Curve]
    title: str = ""
    owner: Look = field(default_factory=Look)
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    bands: Sequence[Band] = ()
    references: Sequence[tuple[str, float, Look]] = ()


def first(curve: Curve) -> list[float]:
    """The value at the lowest x."""
    return [y for _, y, _, _ in curve.points[:1]]


def last(curve: Curve) -> list[float]:
    """The value at the highest x."""
    return [y for _, y, _, _ in curve.points[-1:]]


@dataclass(frozen=True, kw_only=True)
class Curves(Picture):
    """Panels of ``tall`` inches, up to ``most`` side by side, on one scale of y.

    Parameters
    ----------
    tells
        What the alt text tells of each curve.
    dodge
        Width over which the checkpoints' points stand side by side.
    grid
        The axis with grid lines, or "both".
    """

    panels: Sequence[Panel]
    tells: Callable[[Curve], list[float]] = last
    most: int = 3
    tall: float = 1.75
    dodge: float = 0.0
    grid: str = "both"

    @property
    def height(self) -> float:
        """Inches, less the legend."""
        down, _ = grid_of(len(self.panels), most=self.most)
        titles = TITLE * lines_of(panel.title for panel in self.panels)
        labels = max(lines_of([panel.x.label]) for panel in self.panels)
        return down * (self.tall + titles) + 0.3 + 0.1 * labels

    def shown(self) -> Iterator[tuple[Look, Row | None]]:
        """Whose each point is, and its rows."""
        for panel in self.panels:
            for curve in panel.curves:
                yield curve.look, None
                for at in (*curve.x, *curve.y):
                    if isinstance(at, Row):
                        yield curve.look, at

    def told(self) -> Iterator[tuple[str, list[Told]]]:
        """Of each curve with a name what ``tells`` gives."""
        for panel in self.panels:
            values: list[Told] = []
            for curve in panel.curves:
                label = curve.label or curve.look.name
                numbers = self.tells(curve) if label and curve.told else []
                if numbers:
                    words = " and ".join(plain(n, self.digits) for n in numbers)
                    values.append((label, numbers[0], words))
            yield panel.title.replace("\n", ""), values

    def paint(self, figure: Figure) -> None:
        """Draw all panels."""
        down, across = grid_of(len(self.panels), most=self.most)
        grid = figure.subplots(down, across, squeeze=False, sharey="all")
        for place, axes in enumerate(grid.flat):
            if place >= len(self.panels):
                axes.remove()
                continue
            panel = self.panels[place]
            axes.set(xscale=panel.x.scale, yscale=panel.y.scale)
            self._panel(axes, panel)
            panel.owner.owns(axes.set_title(panel.title))
            tidy(axes, grid=self.grid)
            panel.x.set(axes, "x")
            panel.y.set(axes, "y")
            below = self.panels[place + across : place + across + 1]
            # The same axis is labelled below the lowest panel alone.
            if below and replace(below[0].x, label=panel.x.label) == panel.x:
                axes.tick_params(axis="x", labelbottom=False)
                axes.set_xlabel("")

    def _panel(self, axes: Axes, panel: Panel) -> None:
        for band in panel.bands:
            axes.fill_between(
                band.x, band.low, band.high, step=band.step, zorder=1, **BAND
            )
        names = list(dict.fromkeys(curve.look.name for curve in panel.curves))
        log = panel.x.scale == "log"
        for curve in panel.curves:
            place = (names.index(curve.look.name) + 0.5) / len(names) - 0.5
            _curve(axes, curve, shift=self.dodge * place)
        for kind, at, look in panel.references:
            style = look.line | {"zorder": 1.5}
            if kind == "diagonal":
                axes.axline((at, at), (at * 10 if log else at + 1,) * 2, **style)
            else:
                look.owns((axes.axvline if kind == "x" else axes.axhline)(at, **style))


def _curve(axes: Axes, curve: Curve, *, shift: float) -> None:
    look, points = curve.look, curve.points
    hollow = {
        place
        for place, (_, _, *made) in enumerate(points)
        if any(isinstance(at, Row) and at.status in HOLLOW for at in made)
    }
    at_x = [x + shift for x, _, _, _ in points]
    marked = range(len(points))[curve.every]
    line = axes.plot(
        at_x,
        [y for _, y, _, _ in points],
        drawstyle="steps-post" if curve.step else "default",
        markevery=[place for place in marked if place not in hollow],
        clip_on=look.dashes != "none",
        zorder=curve.front,
        **look.line,
    )
    look.owns(*line)
    bar: dict[str, Any] = {"color": look.colour, "linewidth": 1.1, "zorder": 1.9}
    for place, (x, (_, y, across, up)) in enumerate(zip(at_x, points, strict=True)):
        if isinstance(across, Row) and across.ends:
            look.owns(*axes.plot(across.ends, [y, y], **bar))
        if isinstance(up, Row) and up.ends:
            look.owns(*axes.plot([x, x], up.ends, **bar))
        if place in hollow:
            empty = replace(look, hollow=True, dashes="none")
            look.owns(*axes.plot(x, y, zorder=curve.front + 0.1, **empty.line))
