"""figures/*.png, *.svg and *.pdf: every figure that the report has data for."""

from __future__ import annotations

from pathlib import Path

from spark_audit.figures import FIGURES, FORMATS, Drawn, each, file_name, save
from spark_audit.manifest import Manifest
from spark_audit.reports import WRITERS
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
    """Write the figures; those of an earlier report that this one lacks go."""
    place = folder / "figures"
    pictures = each(report) if drawn is None else drawn()
    written = [path for drawing in pictures for path in save(drawing, place)]
    for name in FIGURES.names():
        for form in FORMATS:
            path = place / file_name(name, form)
            if path not in written:
                path.unlink(missing_ok=True)
    return written
