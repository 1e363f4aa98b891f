"""figures/*.png, *.svg and *.pdf: every figure that the report has data for."""

from __future__ import annotations

from pathlib import Path

from spark_audit.manifest.schema import Manifest
from spark_audit.report.figures.gallery import each, save
from spark_audit.report.figures.theme import Drawn
from spark_audit.report.writers import WRITERS
from spark_audit.results import Report


@WRITERS.register()
def write(
    report: Report,
    folder: Path,
    *,
    manifest: Manifest | None = None,
    show_text: bool = False,
    drawn: Drawn | None = None,
) -> list[Path]:
    """Write the figures."""
    place = folder / "figures"
    pictures = each(report) if drawn is None else drawn()
    return [path for drawing in pictures for path in save(drawing, place)]
