"""All figures of a report, in the order of reading, and their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from spark_audit.errors import InputError, choose
from spark_audit.report.figures.picture import Draw
from spark_audit.report.figures.theme import (
    Drawing,
    _matplotlib,
    styled,
)
from spark_audit.results import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FIGURES: Mapping[str, tuple[str, str]] = {
    "memory": ("memory_plot:draw", ""),
    "balance": ("balance_plot:draw", "balance"),
    "selectivity": ("selectivity_plot:draw", "matched"),
    "stages": ("stages_plot:draw", "stages_states"),
    "series": ("stages_plot:series", "series_stages"),
    "exposure": ("exposure_plot:draw", "canary_by_dose"),
    "roc": ("roc_plot:draw", "mia_roc"),
    "utility": ("utility_plot:draw", "utility"),
    "accuracy": ("stages_plot:accuracy", "utility"),
}
"""In the order of reading: file and function, and the audit or table that is shown. Of
what the report does not have, the file is not imported."""


def drawings(report: Report, *, only: Collection[str] = FIGURES) -> list[Drawing]:
    """The figures that a report has data for, in the order of reading.

    Parameters
    ----------
    only
        Names of the figures wanted.
    """
    _matplotlib()
    drawn = []
    there = {"", *report.tables, *(row.audit for row in report.results)}
    for name, (place, shown) in FIGURES.items():
        if name not in only or shown not in there:
            continue
        draw: Draw = resolve_name(f"spark_audit.report.figures.{place}")
        with styled():
            if (picture := draw(report)) is not None:
                drawing = picture.drawing(name, report)
                # Once is enough: the layout is the same in every format.
                drawing.figure.draw_without_rendering()
                drawing.figure.set_layout_engine("none")
                drawn.append(drawing)
    return drawn


def plot(report: Report, name: str) -> Axes:
    """Draw a figure; see :meth:`spark_audit.results.Report.plot`."""
    if name not in FIGURES:
        raise InputError(f"unknown figure {name!r}", fix=choose(name, list(FIGURES)))
    drawn = drawings(report, only=[name])
    if not drawn:
        raise InputError(f"the report holds nothing for the figure {name}")
    return drawn[0].figure.axes[0]
