"""All figures of a report, in the order of reading, and their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from spark_audit.errors import InputError, choose
from spark_audit.report.figures import (
    balance,
    exposure,
    memory,
    roc,
    selectivity,
    stages,
    utility,
)
from spark_audit.report.figures.picture import Draw
from spark_audit.report.figures.theme import (
    Drawing,
    _matplotlib,
    styled,
)
from spark_audit.results import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FIGURES: Mapping[str, Draw] = {
    "memory": memory.draw,
    "balance": balance.draw,
    "selectivity": selectivity.draw,
    "stages": stages.draw,
    "exposure": exposure.draw,
    "roc": roc.draw,
    "utility": utility.draw,
    "accuracy": stages.accuracy,
}
"""In the order of reading."""


def drawings(report: Report, *, only: Collection[str] = FIGURES) -> list[Drawing]:
    """The figures that a report has data for, in the order of reading.

    Parameters
    ----------
    only
        Names of the figures wanted.
    """
    _matplotlib()
    drawn = []
    for name, draw in FIGURES.items():
        with styled():
            picture = draw(report) if name in only else None
            if picture is not None:
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
