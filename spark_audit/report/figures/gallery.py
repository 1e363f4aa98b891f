"""All figures of a report, in the order of reading, and their files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.errors import InputError, choose
from spark_audit.files import write_atomically
from spark_audit.report.figures import (
    balance,
    exposure,
    roc,
    selectivity,
    stages,
    utility,
)
from spark_audit.report.figures.picture import Draw
from spark_audit.report.figures.svg import rendered
from spark_audit.report.figures.theme import (
    FORMATS,
    Drawing,
    _matplotlib,
    file_name,
    styled,
)
from spark_audit.results import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FIGURES: Mapping[str, Draw] = {
    "balance": balance.draw,
    "selectivity": selectivity.draw,
    "stages": stages.draw,
    "exposure": exposure.draw,
    "roc": roc.draw,
    "utility": utility.draw,
    "accuracy": stages.accuracy,
}
"""In the order of reading."""


def drawings(report: Report, *, only: Collection[str] | None = None) -> list[Drawing]:
    """All figures that a report has data for, in the order of reading.

    Parameters
    ----------
    only
        Names of the figures wanted; all, if none are given.
    """
    return list(each(report, only=only))


def each(report: Report, *, only: Collection[str] | None = None) -> Iterator[Drawing]:
    """The figures one by one, so that no more than one is kept in memory."""
    _matplotlib()
    for name, draw in FIGURES.items():
        if only is not None and name not in only:
            continue
        with styled():
            picture = draw(report)
            if picture is None:
                continue
            drawing = picture.drawing(name, report)
            # Once is enough: the layout is the same in every format.
            drawing.figure.draw_without_rendering()
            drawing.figure.set_layout_engine("none")
        yield drawing


def save(drawing: Drawing, folder: Path) -> list[Path]:
    """Write ``NAME.png``, ``NAME.svg`` and ``NAME.pdf``, the same bytes every time."""
    written = []
    for form in FORMATS:
        path = folder / file_name(drawing.name, form)
        data = rendered(drawing, form)
        write_atomically(path, methodcaller("write", data))
        written.append(path)
    return written


def plot(report: Report, name: str) -> Axes:
    """Draw a figure; see :meth:`spark_audit.results.Report.plot`."""
    if name not in FIGURES:
        raise InputError(f"unknown figure {name!r}", fix=choose(name, list(FIGURES)))
    drawn = drawings(report, only=[name])
    if not drawn:
        raise InputError(f"the report holds nothing for the figure {name}")
    return drawn[0].figure.axes[0]
