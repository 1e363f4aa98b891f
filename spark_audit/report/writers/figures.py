"""figures/*.png, *.svg and *.pdf: every figure that the report has data for."""

from __future__ import annotations

from pathlib import Path

from spark_audit.report.cells import Rendering
from spark_audit.results import Report


def write(report: Report, folder: Path, how: Rendering) -> list[Path]:
    """Write the figures."""
    from spark_audit.report.figures.gallery import each, save

    place = folder / "figures"
    pictures = each(report) if how.drawn is None else how.drawn()
    return [path for drawing in pictures for path in save(drawing, place)]
