"""A figure as its file declares it: panels, their legend, and what is told of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from spark_audit.names import entry_of
from spark_audit.report.figures.drawing import Drawing
from spark_audit.report.figures.entries import palette
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
from spark_audit.report.table_cells import VOID
from spark_audit.results import Report
from spark_audit.sentences import optional, render

WIDTH = 3.0
"""Inches: on a page a screen of 390 px, letters as the page's."""
ENTRY_WIDTH = 17
"""Letters of a line of a name in the legend: two columns fit side by side."""
TITLE, LETTERS = 0.19, 0.15
"""Inches of a title's line, and of a line of other text."""
MOST_TOLD = 40
"""Values up to which the alt text tells all: more are read in the tables."""
OVER = ("sources", "seeds", "both")
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
    names
        Looks that are named in the legend, and below them ``keys``, by their labels.
    digits
        Decimals of the heights that the alt text tells.
    dodge
        Width over which the checkpoints' points stand side by side.
    """

    audit: str
    panels: Sequence[Panel]
    facts: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[Look] = ()
    keys: Mapping[str, Look] = field(default_factory=dict)
    digits: int = 3
    most: int = 2
    dodge: float = 0.0

    @property
    def curves(self) -> Iterator[Curve]:
        """Of all panels."""
        yield from (curve for panel in self.panels for curve in panel.curves)

    def drawing(self, name: str, report: Report) -> Drawing:
        """Lay it out, draw it, and say what it shows."""
        facts = {"name": name, **self._facts(report), **self.facts}
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
        label, side = (
            wrapped(optional(f"figure.{name}.{part}"), width=SIDE)
            for part in ("label", "side")
        )
        labels = [wrapped(label, width=ENTRY_WIDTH, lines=3) for label in entries]
        columns = max(1, min(int((WIDTH - 0.2) / (inches(labels) + 0.5)), 4))
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
            panel.paint(axes, dodge=self.dodge)
            # The same axis is labelled below the lowest panel alone.
            if place + across < len(self.panels) and not panel.x.label:
                axes.tick_params(axis="x", labelbottom=False)
        if side:
            figure.supylabel(side, fontsize=FONT)
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
                title=label or None,
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
            "hollow": sorted({r.status for r in rows} & set(VOID)),
            "lacking": lacking,
            "seeds": owned and any(entry_of(name) != name for name in palette(report)),
            "apart": False,
            "void": {status: names for status, names in void.items() if names},
        }

    def _alt(self, shows: str) -> str:
        """What it shows, and its figures where these are not too many."""
        told: list[str] = []
        count = 0
        for panel in self.panels:
            curves = [curve for curve in panel.curves if curve.told and curve.points]
            figures = [
                f"{one.look.name} {one.words or plain(one.points[-1][1], self.digits)}"
                for one in curves
            ]
            title = panel.title.replace("\n", "")
            if title and (len(self.panels) > 1 or not panel.labels):
                figures = [f"{title}: {', '.join(figures)}"]
            told += [", ".join(figures)] if curves else []
            count += len(curves)
        return f"{shows}: {'; '.join(told)}." if 0 < count <= MOST_TOLD else f"{shows}."
