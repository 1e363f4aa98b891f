"""One figure of a report as matplotlib's axes, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_audit.errors import InputError
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.gallery import drawings
from spark_audit.results import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(report: Report, name: str) -> Axes:
    """Draw a figure; see :meth:`spark_audit.results.Report.plot`."""
    entry = FIGURES.get(name)
    drawn = drawings(report, only=[entry.name])
    if not drawn:
        raise InputError(f"the report holds nothing for the figure {entry.name}")
    return drawn[0].figure.axes[0]
