"""Which figures a report has, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.errors import InputError, choose
from spark_audit.results import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from spark_audit.report.figures.styling import styled

FIGURE_NEEDS = {
    "memory": "",
    "selectivity": "matched",
    "stages": "stages_states",
    "series": "series_stages",
    "exposure": "canary_by_dose",
    "roc": "mia_roc",
    "accuracy": "utility",
}
"""Figures in the order of reading, and the audit or table that each shows: what the
report does not have is not drawn."""
FILES_OF_FIGURES = {"series": "stages", "accuracy": "stages"}
"""Files that draw figures of another name than theirs."""


@dataclass(frozen=True)
class Drawing:
    """A figure with what must stand beside it.

    ``audit`` is an audit's name, ``manifest`` or ``training``; ``alt`` says in a
    sentence what the figure shows, for who cannot see it.
    """

    name: str
    audit: str
    title: str
    caption: str
    alt: str
    figure: Figure


Drawn: TypeAlias = Callable[[], Sequence[Drawing]]
"""Gives all drawings of a report, drawn when they are first asked for."""


def drawings(report: Report, *, only: Collection[str] = FIGURE_NEEDS) -> list[Drawing]:
    """The figures that a report has data for, in the order of reading.

    Parameters
    ----------
    only
        Names of the figures wanted.
    """
    drawn = []
    there = {"", *report.tables, *(row.audit for row in report.results)}
    with styled():
        for name, shown in FIGURE_NEEDS.items():
            if name not in only or shown not in there:
                continue
            draw = resolve_name(
                f"spark_audit.report.figures.{FILES_OF_FIGURES.get(name, name)}:{name}"
            )
            if (picture := draw(report)) is not None:
                drawing = picture.drawing(name, report)
                # Once is enough: the layout is the same in every format.
                drawing.figure.draw_without_rendering()
                drawing.figure.set_layout_engine("none")
                drawn.append(drawing)
    return drawn


def plot(report: Report, name: str) -> Axes:
    """Draw a figure; see :meth:`spark_audit.results.report.Report.plot`."""
    if name not in FIGURE_NEEDS:
        raise InputError(
            f"unknown figure {name!r}", fix=choose(name, list(FIGURE_NEEDS))
        )
    drawn = drawings(report, only=[name])
    if not drawn:
        raise InputError(f"the report holds nothing for the figure {name}")
    return drawn[0].figure.axes[0]
