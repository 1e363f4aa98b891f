"""report.json: the truth that every other format is rendered from."""

from __future__ import annotations

from pathlib import Path

from spark_audit.files import write_text
from spark_audit.report.cells import Rendering
from spark_audit.results import Report


def write(report: Report, folder: Path, how: Rendering) -> list[Path]:
    """Write ``report.json`` (schema: ``schemas/report.json`` of the package)."""
    path = folder / "report.json"
    # Its figures are not rounded, and its findings not withheld.
    write_text(path, report.model_dump_json(indent=1) + "\n", mode=0o600)
    return [path]
