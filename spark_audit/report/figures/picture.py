"""What both kinds of figure share: looks, room for text, the legend, what is told.

A figure's file declares a :class:`Picture`, which is a forest or curves; the kind lays
it out, draws it, and makes its legend, its alt text and the end of its caption.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import seaborn
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextToPath

from spark_audit.names import entry_of
from spark_audit.report.figures.entries import names_of, palette
from spark_audit.report.figures.theme import (
    CHECKPOINT,
    HOLLOW,
    INK,
    LIGHT,
    MUTED,
    PAPER,
    Drawing,
)
from spark_audit.results import Report, Row, number
from spark_audit.sentences import optional, render

WIDTH = 6.5
"""Inches of a figure over both columns of a page."""
FONT = 8.0
ENTRY_WIDTH = 34
"""Letters of a name in a line of the legend: two columns fit side by side."""
TITLE = 0.19
"""Inches of a title's line."""
MOST_TOLD = 40
"""Values up to which the alt text tells all; of more, each panel's ends."""
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (4, 1, 1, 1)),
    (0, (7, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 1)),
)
OVER = ("sources", "seeds", "both")
MISSING = "not estimable"
SIDE = 42
"""Letters of a line of a label beside all panels."""


@dataclass(frozen=True)
class Look:
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

    def owns(self, *artists: Artist) -> None:
        """Mark artists as the checkpoint's."""
        for artist in artists:
            if self.name:
                artist.set_gid(CHECKPOINT + self.name)


AREA = Look(area=True, alpha=0.25)
BAND: dict[str, Any] = {"color": AREA.colour, "alpha": AREA.alpha, "linewidth": 0}
DASHED = Look(colour=INK, dashes="--", width=1.0)
DOTTED = Look(dashes=":", width=1.0)
ZERO = Look(colour=INK, width=0.9)


def looks(report: Report, **options: Any) -> dict[str, Look]:
    """Look of every checkpoint, with further fields; replicates have their entry's."""
    places: dict[tuple[int, str], int] = {}
    found = {}
    for name, (index, marker) in palette(report).items():
        place = places.setdefault((index, marker), len(places))
        look = Look(name, LIGHT[index], marker, DASHES[place % len(DASHES)])
        found[name] = replace(look, **options)
    return found


# ------------------------------------------------------------------ text, room


def wrapped(name: str, *, width: int = 30, lines: int = 2) -> str:
    """A long name in several lines, broken after its punctuation where there is any."""
    if len(name) <= width:
        return name
    parts = re.findall(rf"[^-_.+@/ ]{{0,{width - 1}}}[-_.+@/ ]|.{{1,{width}}}", name)
    found = [""]
    for part in parts:
        if found[-1] and len(found[-1] + part) > width:
            found[-1] = found[-1].rstrip()
            found.append("")
        found[-1] += part
    if len(found) > lines:
        # The end tells variants apart, so the middle is what is left out.
        found = [*found[: lines - 1], "…" + "".join(found)[-(width - 1) :]]
    return "\n".join(found)


def inches(texts: Iterable[str], *, size: float = FONT) -> float:
    """Width of the widest line of some texts as they will be drawn."""
    font = FontProperties(family="DejaVu Sans", size=size)
    lines = {line for text in texts for line in text.split("\n")}
    measure = TextToPath().get_text_width_height_descent
    return max((measure(line, font, False)[0] for line in lines), default=0.0) / 72.0


def lines_of(texts: Iterable[str]) -> int:
    """Lines of the longest of some texts."""
    return max((text.count("\n") + 1 for text in texts if text), default=0)


def plain(value: float, digits: int = 3) -> str:
    """A figure with a true minus."""
    return number(value, digits).replace("-", "\N{MINUS SIGN}")


def spanned(sizes: Iterable[int]) -> str:
    """A count, or the ends of several."""
    known = sorted(set(sizes))
    return "–".join(f"{size}" for size in dict.fromkeys((known[0], known[-1])))


def tidy(axes: Axes, *, grid: str) -> None:
    """No box, a faint grid along the named axis, labels that a page can turn."""
    seaborn.despine(ax=axes)
    axes.grid(True, axis=grid, linewidth=0.6, zorder=0)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.yaxis.label.set_rotation_mode("anchor")


def grid_of(count: int, *, most: int) -> tuple[int, int]:
    """Rows and columns of small multiples."""
    # No row with a single panel where two rows can be even.
    rows = math.ceil(count / most)
    return rows, math.ceil(count / rows)


# ------------------------------------------------------------------ a declaration

Told = tuple[str, float, str]
"""A label, the value it is sorted by, and the value in words."""


@dataclass(frozen=True, kw_only=True)
class Picture(ABC):
    """A figure as it is declared; its words are the sentences ``figure.NAME``.

    Of these ``title``, ``caption`` and ``shows``, how the alt text begins, are needed;
    ``remark`` follows what the caption says of intervals, ``label`` and ``side`` are of
    axes that all panels share.

    Parameters
    ----------
    audit
        An audit's name, ``manifest`` or ``training``.
    facts
        Of the sentences.
    names
        Looks that are named in the legend, and below them ``keys``, by their labels.
    width
        Inches.
    digits
        Decimals of the values in the alt text.
    apart
        Whether each seed has a curve where others are shown by their mean.
    """

    audit: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[Look] = ()
    keys: Mapping[str, Look] = field(default_factory=dict)
    width: float = WIDTH
    digits: int = 3
    apart: bool = False

    @property
    @abstractmethod
    def height(self) -> float:
        """Inches, less the legend."""

    @abstractmethod
    def paint(self, figure: Figure) -> None:
        """Draw all panels."""

    @abstractmethod
    def shown(self) -> Iterator[tuple[Look, Row | None]]:
        """All marks or curves: whose they are, and the rows they show."""

    @abstractmethod
    def told(self) -> Iterator[tuple[str, list[Told]]]:
        """Title of each panel, and what the alt text tells of it."""

    def leaves(self) -> bool:
        """Whether an interval leaves an axis."""
        return False

    def drawing(self, name: str, report: Report) -> Drawing:
        """Lay it out, draw it, and say what it shows."""
        facts = {**self.facts, "name": name, **self._facts(report)}
        label, side = (optional(f"figure.{name}.{part}") for part in ("label", "side"))
        owned = {look.name: look for look in self.names}
        entries = {**owned, **self.keys}
        if facts["levels"]:
            entries[render("figure.interval", **facts)] = Look(width=1.6)
        if facts["hollow"]:
            hollow = Look(marker="o", dashes="none", hollow=True)
            entries[render("figure.hollow", **facts)] = hollow
        labels = [wrapped(label, width=ENTRY_WIDTH) for label in entries]
        columns = max(1, min(int((self.width - 0.3) / (inches(labels) + 0.65)), 4))
        down = math.ceil(len(labels) / columns)
        legend = 0.12 + (0.03 + 0.16 * lines_of(labels)) * down if labels else 0.0
        legend += 0.2 if label else 0.0
        figure = Figure(figsize=(self.width, self.height + legend))
        figure.set_layout_engine(
            "constrained", w_pad=0.06, h_pad=0.05, wspace=0.04, hspace=0.04
        )
        self.paint(figure)
        if side:
            figure.supylabel(wrapped(side, width=SIDE), fontsize=FONT)
        if labels:
            # A label of the figure itself would stand in the legend's place.
            drawn = figure.legend(
                [look.sample for look in entries.values()],
                labels,
                loc="outside lower center",
                ncols=min(columns, len(labels)),
                frameon=False,
                handlelength=2.6,
                columnspacing=1.6,
                labelspacing=0.45 if columns > 1 else 0.8,
                title=label or None,
                title_fontsize=FONT,
                alignment="center",
            )
            both = zip(drawn.legend_handles, drawn.get_texts(), strict=True)
            for look, parts in zip(self.names, both, strict=False):
                look.owns(*(part for part in parts if part is not None))
        return Drawing(
            name=name,
            audit=self.audit,
            title=render(f"figure.{name}.title", **facts),
            caption=render("figure.caption", **facts),
            alt=f"{self._alt(render(f'figure.{name}.shows', **facts))} "
            f"{render('figure.void', **facts)}".rstrip(),
            figure=figure,
        )

    def _facts(self, report: Report) -> dict[str, Any]:
        """What a caption says of intervals, hollow marks, missing figures and seeds."""
        rows = [row for _, row in self.shown() if row]
        bounded = [r for r in rows if r.value is not None and r.low is not None]
        lacking: dict[str, dict[str, None]] = {}
        for row in rows:
            if row.status == "not_estimable":
                lacking.setdefault(row.note, {})[row.checkpoint] = None
        pooled = [
            r for r in (*report.results, *report.contrasts) if r.group == "pooled"
        ]
        # Curves are drawn from tables, which have no status of their own.
        void = {
            status: dict.fromkeys(
                entry_of(row.checkpoint)
                for row in pooled
                if (row.audit, row.status) == (self.audit, status)
            )
            for status in ("invalid", "insensitive")
        }
        owned = any(look.name for look, _ in self.shown())
        return {
            "rows": rows,
            "levels": [f"{100 * x:g}%" for x in sorted({r.level for r in bounded})],
            "over": [o for o in OVER if any(r.over == o for r in bounded)],
            "bare": any(r.value is not None and r.low is None for r in rows),
            "hollow": sorted({r.status for r in rows} & set(HOLLOW)),
            "lacking": lacking,
            "leaves": self.leaves(),
            "seeds": owned and any(k != v for k, v in names_of(report).items()),
            "apart": self.apart,
            "void": {status: names for status, names in void.items() if names},
        }

    def _alt(self, shows: str) -> str:
        panels = [(title, values) for title, values in self.told() if values]
        many = sum(len(values) for _, values in panels) > MOST_TOLD
        parts = []
        for title, values in panels:
            text = ", ".join(f"{label} {words}" for label, _, words in values)
            if many and len(values) > 2:
                ends = [pick(values, key=lambda v: v[1]) for pick in (min, max)]
                low, high = (f"{words} ({label})" for label, _, words in ends)
                text = f"from {low} to {high}"
            parts.append(f"{title}: {text}" if title else text)
        return f"{shows}: {'; '.join(parts)}." if parts else f"{shows}."


Draw: TypeAlias = Callable[[Report], Picture | None]
"""Declares the figure of a report that has data for it."""
