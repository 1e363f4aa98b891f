"""A figure as its file declares it: panels, their legend, and what is told of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from spark_audit.names import entry_of
from spark_audit.report.figures.drawing import HOLLOW, Drawing
from spark_audit.report.figures.entries import names_of
from spark_audit.report.figures.panel import (
    FONT,
    Curve,
    Look,
    Panel,
    inches,
    lines_of,
    plain,
    wrapped,
)
from spark_audit.results import Report
from spark_audit.sentences import optional, render

WIDTH = 3.0
"""Inches: on a page a screen of 390 px, letters as the page's."""
ENTRY_WIDTH = 17
"""Letters of a line of a name in the legend: two columns fit side by side."""
TITLE, LETTERS = 0.19, 0.15
"""Inches of a title's line, and of a line of other text."""
MOST_TOLD = 40
"""Values up to which the alt text tells all; of more, each panel's ends."""
OVER = ("sources", "seeds", "both")
SIDE = 38
"""Letters of a line of a label of all panels."""


def grid_of(count: int, *, most: int) -> tuple[int, int]:
    """Rows and columns of small multiples."""
    # No row with a single panel where two rows can be even.
    rows = math.ceil(count / most)
    return rows, math.ceil(count / rows)


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
    names
        Looks that are named in the legend, and below them ``keys``, by their labels.
    tells
        The point of a curve whose height the alt text tells, with ``digits`` decimals.
    dodge
        Width over which the checkpoints' points stand side by side.
    grid
        The axis with grid lines, or "both".
    apart
        Whether each seed has a curve where others are shown by their mean.
    """

    audit: str
    panels: Sequence[Panel]
    facts: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[Look] = ()
    keys: Mapping[str, Look] = field(default_factory=dict)
    digits: int = 3
    tells: int = -1
    most: int = 2
    dodge: float = 0.0
    grid: str = "both"
    apart: bool = False

    @property
    def curves(self) -> Iterator[Curve]:
        """Of all panels."""
        yield from (curve for panel in self.panels for curve in panel.curves)

    def drawing(self, name: str, report: Report) -> Drawing:
        """Lay it out, draw it, and say what it shows."""
        facts = {**self.facts, "name": name, **self._facts(report)}
        owned = {look.name: look for look in self.names}
        entries = {**owned, **self.keys}
        if facts["levels"]:
            entries[render("figure.interval", **facts)] = Look(width=1.6)
        if facts["hollow"]:
            hollow = Look(marker="o", dashes="none", hollow=True)
            entries[render("figure.hollow", **facts)] = hollow
        shows = self._alt(render(f"figure.{name}.shows", **facts))
        return Drawing(
            name=name,
            audit=self.audit,
            title=render(f"figure.{name}.title", **facts),
            caption=render("figure.caption", **facts),
            alt=f"{shows} {render('figure.void', **facts)}".rstrip(),
            figure=self._drawn(name, entries),
        )

    def _drawn(self, name: str, entries: Mapping[str, Look]) -> Figure:
        label, side = (optional(f"figure.{name}.{part}") for part in ("label", "side"))
        labels = [wrapped(label, width=ENTRY_WIDTH, lines=3) for label in entries]
        columns = max(1, min(int((WIDTH - 0.2) / (inches(labels) + 0.5)), 4))
        if columns == 1:
            labels = [wrapped(label, width=2 * ENTRY_WIDTH) for label in entries]
        legend = 0.03 + 0.16 * lines_of(labels)
        legend = (
            0.42
            + 0.18 * lines_of([wrapped(label, width=SIDE)])
            + legend * math.ceil(len(labels) / columns)
        )
        down, across = grid_of(len(self.panels), most=self.most)
        rows = [self.panels[k * across : (k + 1) * across] for k in range(down)]
        titles = TITLE * lines_of(panel.title for panel in self.panels)
        talls = [max(panel.tall for panel in row) + titles for row in rows]
        figure = Figure(figsize=(WIDTH, sum(talls) + legend))
        figure.set_layout_engine(
            "constrained", w_pad=0.06, h_pad=0.05, wspace=0.04, hspace=0.04
        )
        words = any(panel.labels for panel in self.panels)
        grid = figure.subplots(
            *(down, across),
            squeeze=False,
            sharey=not words,
            gridspec_kw={"height_ratios": talls},
        )
        for place, axes in enumerate(grid.flat):
            if place >= len(self.panels):
                axes.remove()
                continue
            panel = self.panels[place]
            panel.paint(axes, grid=self.grid, dodge=self.dodge)
            # The same axis is labelled below the lowest panel alone.
            if place + across < len(self.panels) and not panel.x.label:
                axes.tick_params(axis="x", labelbottom=False)
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
                handlelength=2.0,
                columnspacing=1.0,
                labelspacing=0.45 if columns > 1 else 0.8,
                title=wrapped(label, width=SIDE) or None,
                title_fontsize=FONT,
                alignment="center",
            )
            both = zip(drawn.legend_handles, drawn.get_texts(), strict=True)
            for look, parts in zip(self.names, both, strict=False):
                look.owns(*(part for part in parts if part is not None))
        return figure

    def _facts(self, report: Report) -> dict[str, Any]:
        """What a caption says of intervals, hollow marks, missing figures and seeds."""
        rows = [row for curve in self.curves for row in curve.rows]
        bounded = [r for r in rows if r.value is not None and r.low is not None]
        lacking: dict[str, dict[str, None]] = {}
        for row in rows:
            if row.status == "not_estimable":
                lacking.setdefault(row.note, {})[row.checkpoint] = None
        # Curves are drawn from tables, which have no status of their own.
        void: dict[str, dict[str, None]] = {"invalid": {}, "insensitive": {}}
        for row in (*report.results, *report.contrasts):
            if (row.audit, row.group) == (self.audit, "pooled") and row.status in void:
                void[row.status][entry_of(row.checkpoint)] = None
        owned = any(curve.look.name for curve in self.curves)
        return {
            "rows": rows,
            "levels": [f"{100 * x:g}%" for x in sorted({r.level for r in bounded})],
            "over": [o for o in OVER if any(r.over == o for r in bounded)],
            "bare": any(r.value is not None and r.low is None for r in rows),
            "hollow": sorted({r.status for r in rows} & set(HOLLOW)),
            "lacking": lacking,
            "leaves": any(panel.leaves for panel in self.panels),
            "seeds": owned and any(k != v for k, v in names_of(report).items()),
            "apart": self.apart,
            "void": {status: names for status, names in void.items() if names},
        }

    def _alt(self, shows: str) -> str:
        panels: list[tuple[str, list[tuple[float, str, str]]]] = []
        for panel in self.panels:
            told = []
            for curve in panel.curves:
                label = curve.label or curve.look.name
                if label and curve.told and curve.points:
                    x, y, _, _ = curve.points[self.tells]
                    words = curve.words or plain(y, self.digits)
                    told.append((x if curve.words else y, label, words))
            title = panel.title if len(self.panels) > 1 or not panel.labels else ""
            # A forest's titles break between words, others within.
            title = title.replace("\n", " " if panel.labels else "")
            panels += [(title, told)] if told else []
        many = sum(len(told) for _, told in panels) > MOST_TOLD
        parts = []
        for title, told in panels:
            text = ", ".join(f"{label} {words}" for _, label, words in told)
            if many and len(told) > 2:
                ends = [pick(told, key=lambda one: one[0]) for pick in (min, max)]
                low, high = (f"{words} ({label})" for _, label, words in ends)
                text = f"from {low} to {high}"
            parts.append(f"{title}: {text}" if title else text)
        return f"{shows}: {'; '.join(parts)}." if parts else f"{shows}."
