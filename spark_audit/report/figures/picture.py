"""A figure as it is declared: panels of curves on two axes, their legend, and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from spark_audit.names import entry_of
from spark_audit.report.cells import VOID, is_shared
from spark_audit.report.figures.drawing import Drawing
from spark_audit.report.figures.styling import (
    CHECKPOINT,
    INK,
    LIGHT,
    MARKERS,
    MUTED,
    PAPER,
    palette,
)
from spark_audit.report.figures.text_room import (
    FONT,
    TITLE,
    inches,
    lines_of,
    plain,
    wrapped,
)
from spark_audit.results import Report, Row
from spark_audit.sentences import optional, render

SCREEN = 5.0
"""Inches of a panel from which on its axis stands above it, too."""

DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (4, 1, 1, 1)),
    (0, (7, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 1)),
)

Value: TypeAlias = "float | Row | None"
"""A number, or a row with its interval and status."""


@dataclass(frozen=True)
class Style:
    """How something is drawn, and what stands for it in the legend.

    What has the ``name`` of a checkpoint belongs to it. ``dashes`` of "none" are marks
    without a line, an ``area`` is a patch. ``size`` and ``width`` are in points.
    """

    name: str = ""
    colour: str = MUTED
    marker: str = "none"
    dashes: Any = "-"
    size: float = 5.0
    width: float = 1.4
    alpha: float = 1.0
    hollow: bool = False
    area: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Matplotlib's options of a line."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "linewidth": self.width,
            "markersize": self.size,
            "markerfacecolor": PAPER if self.hollow else self.colour,
            "markeredgewidth": 1.2 if self.hollow else 0.6,
            "alpha": self.alpha,
        }

    @property
    def sample(self) -> Artist:
        """What stands for it in the legend."""
        if self.area:
            return Patch(facecolor=self.colour, edgecolor=PAPER, alpha=self.alpha)
        return Line2D([], [], **self.line)

    def owns(self, *artists: Artist | None) -> None:
        """Mark artists as the checkpoint's."""
        for artist in artists:
            if self.name and artist:
                artist.set_gid(CHECKPOINT + self.name)


def crossed(look: Style) -> Style:
    """Return the look of a figure from which nothing can be concluded: a grey cross."""
    return replace(look, colour=MUTED, marker="x", alpha=0.6)


AREA = Style(area=True, alpha=0.25)

DASHED = Style(colour=INK, dashes="--", width=1.0)

DOTTED = Style(dashes=":", width=1.0)

ZERO_LINE = Style(colour=INK, width=0.9)


def looks(report: Report, **options: Any) -> dict[str, Style]:
    """Look of every checkpoint, with further fields; replicates have their entry's."""
    return {
        name: Style(
            name,
            LIGHT[place % len(LIGHT)],
            MARKERS[place % len(MARKERS)],
            DASHES[place % len(DASHES)],
            **options,
        )
        for name, place in palette(report).items()
    }


@dataclass(frozen=True)
class Curve:
    """Points in the plane, joined where the look has dashes; a row has its interval.

    Points whose row has no value are left out. The alt text tells its ``words``, or the
    height of its last point, unless it is not ``told``. Points at an x of ``hollow``
    have hollow marks, those of a void row grey crosses. Steps have few markers.
    """

    look: Style
    x: Sequence[Value]
    y: Sequence[Value]
    words: str = ""
    told: bool = True
    hollow: Sequence[float] = ()
    step: bool = False

    @property
    def points(self) -> list[tuple[float, float, Value, Value]]:
        """Coordinates of each point that has both, with what they are made of."""
        found = []
        for across, up in zip(self.x, self.y, strict=True):
            x = across.value if isinstance(across, Row) else across
            y = up.value if isinstance(up, Row) else up
            if x is not None and y is not None:
                found.append((x, y, across, up))
        return found

    def paint(self, axes: Axes, limits: tuple[float, float], *, shift: float) -> None:
        """Draw its line and its intervals; what is void is a grey cross.

        Of what lies beyond the ends of the axis an arrow is shown.
        """
        look, points, (low, high) = self.look, self.points, limits
        at_x, heights, apart, is_void = [], [], [], []
        for x, y, *made in points:
            at_x.append(min(max(x, low), high) + shift)
            heights.append(y)
            void = any(isinstance(at, Row) and at.status in VOID for at in made)
            is_void.append(void)
            apart.append(void or x in self.hollow or not low <= x <= high)
        every = max(1, len(points) // 4) if self.step else 1
        drawn = axes.plot(
            at_x,
            heights,
            drawstyle="steps-post" if self.step else "default",
            markevery=[k for k in range(0, len(points), every) if not apart[k]],
            clip_on=look.dashes != "none",
            **look.line,
        )
        for shown, (x, y, across, up), void, hollow in zip(
            at_x, points, is_void, apart, strict=True
        ):
            mark_look = crossed(look) if void else look
            bar: dict[str, Any] = {"color": mark_look.colour, "alpha": mark_look.alpha}
            bar |= {"linewidth": look.width, "zorder": 1.9, "solid_capstyle": "butt"}
            marks = []
            if isinstance(across, Row) and across.ends:
                left, right = across.ends
                drawn += axes.plot((max(left, low), min(right, high)), [y, y], **bar)
                arrow = replace(mark_look, size=4)
                marks += [(low, replace(arrow, marker="<"))] if left < low else []
                marks += [(high, replace(arrow, marker=">"))] if right > high else []
            if isinstance(up, Row) and up.ends:
                drawn += axes.plot([shown, shown], up.ends, **bar)
            if hollow:
                marker = "<" if x < low else ">" if x > high else mark_look.marker
                mark = replace(mark_look, marker=marker, hollow=low <= x <= high)
                marks.append((shown, mark))
            for at, mark in marks:
                style = replace(mark, dashes="none").line
                drawn += axes.plot(at, y, zorder=2.1, clip_on=False, **style)
        look.owns(*drawn)


Part: TypeAlias = Callable[[Axes], object]
"""Draws something on a panel's axes."""


def band(
    x: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    *,
    look: Style = AREA,
    step: Any = None,
) -> Part:
    """An area between two heights over a range, of the checkpoint of the look."""
    grey: dict[str, Any] = {"color": AREA.colour, "alpha": AREA.alpha, "linewidth": 0}

    def draw(axes: Axes) -> None:
        look.owns(axes.fill_between(x, low, high, step=step, zorder=1, **grey))

    return draw


def rule(at: float, look: Style, *, upright: bool = False) -> Part:
    """A line of reference across the panel."""
    draw = Axes.axvline if upright else Axes.axhline
    return lambda axes: draw(axes, at, zorder=1.5, **look.line)


def label(
    text: str, top: float, look: Style, *, share: float = 0.0, colour: str = INK
) -> Part:
    """Text of a checkpoint: its upper edge at a height, from a share of the width."""

    def draw(axes: Axes) -> None:
        drawn = axes.text(
            *(share, top, text),
            transform=axes.get_yaxis_transform(),
            va="top",
            color=colour,
            # On the ground's own colour, above the grid.
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
            zorder=1.6,
        )
        look.owns(drawn)

    return draw


@dataclass(frozen=True)
class Panel:
    """Curves on two axes, and further ``parts``, such as lines of reference.

    ``limits`` and ``ticks`` (where -> what) are those of x, ``settings`` what else
    ``axes.set`` takes. A ``forest`` has no axis at the left.
    """

    curves: Sequence[Curve]
    title: str = ""
    limits: tuple[float, float] | None = None
    ticks: Mapping[float, str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    parts: Sequence[Part] = ()
    tall: float = 1.75
    forest: bool = False

    def paint(self, axes: Axes, *, dodge: float) -> None:
        """Draw it; points of several checkpoints stand side by side in ``dodge``."""
        axes.set(title=self.title, **self.settings)
        if self.ticks is not None:
            axes.set_xticks([*self.ticks], [*self.ticks.values()])
        if self.limits is not None:
            axes.set_xlim(self.limits)
        axes.minorticks_off()
        axes.grid(True, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines["left"].set_visible(not self.forest)
        if self.forest and self.tall > SCREEN:
            axes.tick_params("x", top=True, labeltop=True)
        names = list(dict.fromkeys(curve.look.name for curve in self.curves))
        limits = self.limits or (-math.inf, math.inf)
        for curve in filter(lambda curve: curve.points, self.curves):
            place = (names.index(curve.look.name) + 0.5) / len(names) - 0.5
            curve.paint(axes, limits, shift=dodge * place)
        for part in self.parts:
            part(axes)


FIGURE_WIDTH = 3.0
"""Inches: on a page a screen of 390 px, letters as the page's."""

ENTRY_WIDTH = 17
"""Letters of a line of a name in the legend: two columns fit side by side."""

MOST_TOLD = 40
"""Values up to which the alt text tells all: more are read in the tables."""

OVER_KINDS = ("sources", "seeds", "both")

SIDE = 38
"""Letters of a line of a label of all panels."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Panels, up to ``most`` side by side; words are the sentences ``figure.NAME``.

    Of these ``title``, ``caption`` and ``shows``, how the alt text begins, are needed;
    ``remark`` follows what the caption says of intervals, ``label`` and ``side`` are of
    axes that all panels share.

    Parameters
    ----------
    audit
        An audit's name, ``manifest`` or ``training``.
    facts
        Of the sentences.
    keys
        Looks in the legend, by their labels.
    digits
        Decimals of the heights that the alt text tells.
    dodge
        Width over which the checkpoints' points stand side by side.
    """

    audit: str
    panels: Sequence[Panel]
    facts: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Style] = field(default_factory=dict)
    digits: int = 3
    most: int = 2
    dodge: float = 0.0

    def drawing(self, name: str, report: Report) -> Drawing:
        """Lay it out, draw it, and say what it shows."""
        facts = {"name": name, **self._facts(report), **self.facts}
        entries = dict(self.keys)
        if facts["levels"]:
            entries[render("figure.interval", **facts)] = Style(width=1.6)
        if facts["crosses"]:
            cross = crossed(Style(dashes="none"))
            entries[render("figure.crosses", **facts)] = cross
        shows = self._alt(render(f"figure.{name}.shows", **facts))
        return Drawing(
            name=name,
            audit=self.audit,
            title=render(f"figure.{name}.title", **facts),
            caption=render("figure.caption", **facts),
            alt=f"{shows} {render('figure.void', **facts)}".rstrip(),
            figure=self._drawn(name, entries),
        )

    def _drawn(self, name: str, entries: Mapping[str, Style]) -> Figure:
        label = wrapped(optional(f"figure.{name}.label"), width=SIDE)
        side = wrapped(optional(f"figure.{name}.side"), width=SIDE)
        labels = [wrapped(label, width=ENTRY_WIDTH, lines=3) for label in entries]
        columns = max(1, min(int((FIGURE_WIDTH - 0.2) / (inches(labels) + 0.5)), 4))
        if columns == 1:
            labels = [wrapped(label, width=2 * ENTRY_WIDTH) for label in entries]
        legend = (0.03 + 0.16 * lines_of(labels)) * math.ceil(len(labels) / columns)
        legend += 0.42 + 0.18 * lines_of([label])
        # No row with a single panel where two rows can be even.
        down = math.ceil(len(self.panels) / self.most)
        across = math.ceil(len(self.panels) / down)
        rows = [self.panels[k * across : (k + 1) * across] for k in range(down)]
        titles = TITLE * lines_of(panel.title for panel in self.panels)
        talls = [max(panel.tall for panel in row) + titles for row in rows]
        figure = Figure(figsize=(FIGURE_WIDTH, sum(talls) + legend))
        figure.set_layout_engine(
            "constrained", w_pad=0.06, h_pad=0.05, wspace=0.04, hspace=0.04
        )
        forest = any(panel.forest for panel in self.panels)
        grid = figure.subplots(
            down, across, squeeze=False, sharey=not forest, height_ratios=talls
        )
        count = len(self.panels)
        for axes in grid.flat[count:]:
            axes.remove()
        for place, (panel, axes) in enumerate(
            zip(self.panels, grid.flat, strict=False)
        ):
            panel.paint(axes, dodge=self.dodge)
            # The same axis is labelled below the lowest panel alone.
            if place + across < count and "xlabel" not in panel.settings:
                axes.tick_params("x", labelbottom=False)
        if side:
            figure.supylabel(side, fontsize=FONT)
        # A label of the figure itself would stand in the legend's place.
        drawn = figure.legend(
            [look.sample for look in entries.values()],
            labels,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            handlelength=2.0,
            columnspacing=1.0,
            labelspacing=0.45 if columns > 1 else 0.8,
            title=label or None,
            title_fontsize=FONT,
        )
        parts = drawn.legend_handles, drawn.get_texts()
        for look, *own in zip(entries.values(), *parts, strict=True):
            look.owns(*own)
        return figure

    def _facts(self, report: Report) -> dict[str, Any]:
        """What a caption says of intervals, crosses, missing figures and seeds."""
        curves = chain.from_iterable(panel.curves for panel in self.panels)
        shown = chain.from_iterable((*curve.x, *curve.y) for curve in curves)
        rows = [at for at in shown if isinstance(at, Row)]
        levels, over, crosses = set(), set(), set()
        lacking: dict[str, dict[str, None]] = {}
        for row in rows:
            if row.value is not None and row.low is not None:
                levels.add(row.level)
                over.add(row.over)
            if row.status in VOID:
                crosses.add(row.status)
            elif row.status == "not_estimable":
                lacking.setdefault(row.note, {})[row.checkpoint] = None
        # Curves are drawn from tables, which have no status of their own.
        statuses = ("void", "invalid", "insensitive")
        void = {status: dict[str, None]() for status in statuses}
        for row in (*report.results, *report.contrasts):
            if (row.audit, row.group) == (self.audit, "pooled") and row.status in void:
                void[row.status][entry_of(row.checkpoint)] = None
        return {
            "rows": rows,
            "levels": [f"{100 * level:g}%" for level in sorted(levels)],
            "over": sorted(over, key=OVER_KINDS.index),
            "crosses": sorted(crosses),
            "lacking": lacking,
            "seeds": any(entry_of(name) != name for name in palette(report)),
            "apart": False,
            "shared": is_shared(report),
            "void": {status: names for status, names in void.items() if names},
        }

    def _alt(self, shows: str) -> str:
        """What it shows, and its figures where these are not too many."""
        told, count = [], 0
        for panel in self.panels:
            figures = [
                f"{one.look.name} {one.words or plain(one.points[-1][1], self.digits)}"
                for one in panel.curves
                if one.told and one.points
            ]
            titled = panel.title and (len(self.panels) > 1 or not panel.forest)
            title = panel.title.replace("\n", "") + ": " if titled else ""
            told += [title + ", ".join(figures)] if figures else []
            count += len(figures)
        return f"{shows}: {'; '.join(told)}." if 0 < count <= MOST_TOLD else f"{shows}."
