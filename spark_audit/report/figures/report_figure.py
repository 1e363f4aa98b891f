"""A figure of a report that a notebook shows as a picture."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.report.figures.styling import styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIXELS_PER_INCH = 108
"""Size in a notebook: that of a page, where letters of 8 points are 12 pixels high."""

PIXEL_RATIO = 2
"""Pixels of the picture for one of the notebook, since most screens show two."""


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report; a notebook shows it as a picture.

    Attributes
    ----------
    name, title
        Name in ``report.plots``, and what it shows.
    alt
        What it shows, for readers who cannot see it.
    figure
        The figure of matplotlib, to change or save it.
    """

    name: str
    title: str
    alt: str = field(repr=False)
    figure: Figure = field(repr=False)

    @property
    def axes(self) -> list[Axes]:
        """The panels, in the order of reading."""
        return self.figure.axes

    def save(self, path: str | Path) -> None:
        """Write it to a file, in the format of the name's ending."""
        with styled():
            self.figure.savefig(path, dpi=PIXEL_RATIO * PIXELS_PER_INCH)

    def _repr_png_(self) -> tuple[bytes, dict[str, object]]:
        """Return the picture, with its size in the notebook and a text beside it."""
        file = io.BytesIO()
        with styled():
            self.figure.savefig(file, format="png", dpi=PIXEL_RATIO * PIXELS_PER_INCH)

        width, height = self.figure.get_size_inches()
        metadata: dict[str, object] = {
            "width": round(width * PIXELS_PER_INCH),
            "height": round(height * PIXELS_PER_INCH),
            "alt": f"{self.title}. {self.alt}",
        }
        return file.getvalue(), metadata
