"""All figures of a report, in the order of reading, and their files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from spark_audit.errors import InputError
from spark_audit.files import write_atomically
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import void_said
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
    for entry in sorted(FIGURES, key=lambda entry: (entry.order, entry.name)):
        name = entry.name.replace("-", "_")
        if only is not None and not {name, entry.name} & set(only):
            continue
        with styled():
            picture = entry.run(report)
            if picture is None:
                continue
            drawing = picture.drawing(name, report)
            void = void_said(report, drawing.audit)
            drawing = replace(
                drawing, caption=drawing.caption + void, alt=drawing.alt + void
            )
            # Once is enough: the layout is the same in every format.
            drawing.figure.draw_without_rendering()
            drawing.figure.set_layout_engine("none")
        yield drawing


def save(drawing: Drawing, folder: Path) -> list[Path]:
    """Write ``NAME.png``, ``NAME.svg`` and ``NAME.pdf``, the same bytes every time."""
    written = []
    for form in FORMATS:
        path = folder / file_name(drawing.name, form)
        write_atomically(path, partial(_put, data=rendered(drawing, form)))
        written.append(path)
    return written


def _put(file: IO[bytes], *, data: bytes) -> None:
    file.write(data)


def plot(report: Report, name: str) -> Axes:
    """Draw a figure; see :meth:`spark_audit.results.Report.plot`."""
    entry = FIGURES.get(name)
    drawn = drawings(report, only=[entry.name])
    if not drawn:
        raise InputError(f"the report holds nothing for the figure {entry.name}")
    return drawn[0].figure.axes[0]
