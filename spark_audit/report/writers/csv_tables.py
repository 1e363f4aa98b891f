"""tables/*.csv: the rows of the report, tidy, one figure a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spark_audit.files import write_text
from spark_audit.manifest.schema import Manifest
from spark_audit.report.writers import WRITERS
from spark_audit.results import Contrast, Guard, Report, Row


@WRITERS.register()
def write(
    report: Report,
    folder: Path,
    *,
    manifest: Manifest | None = None,
    show_text: bool = False,
) -> list[Path]:
    """Write results, contrasts, guards and the report's further tables as CSV."""
    tables: dict[str, tuple[list[str], list[dict[str, Any]]]] = {
        "results": (list(Row.model_fields), [r.model_dump() for r in report.results]),
        "contrasts": (
            list(Contrast.model_fields),
            [r.model_dump() for r in report.contrasts],
        ),
        "guards": (list(Guard.model_fields), [g.model_dump() for g in report.guards]),
    }
    for name, records in report.tables.items():
        if name == "run_losses":
            # Of a step they are those of a few rows, and no DP-SGD covers them.
            continue
        columns = list(dict.fromkeys(key for record in records for key in record))
        tables[name] = (columns, records)
    written = []
    for name, (header, lines) in tables.items():
        path = folder / "tables" / f"{name}.csv"
        write_text(path, _csv(header, lines))
        written.append(path)
    return written


def _csv(columns: Sequence[str], records: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    for record in records:
        writer.writerow(_cell(record.get(name, "")) for name in columns)
    return text.getvalue()


FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a formula begins, in full width too."""


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: text may be somebody else's."""
    if isinstance(value, str) and value.lstrip().startswith(FORMULA):
        return f"'{value}"
    return value
