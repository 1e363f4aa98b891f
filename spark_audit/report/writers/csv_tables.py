"""tables/*.csv: the rows of the report, tidy, one figure a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from spark_audit.files import write_text
from spark_audit.manifest.schema import Manifest
from spark_audit.report.writers import RETIRED, WRITERS
from spark_audit.results import Contrast, Guard, Report, Row


def earlier(report: Report) -> list[str]:
    """Files of a report that does not name its files."""
    names = ("results", "contrasts", "guards", *report.tables, *RETIRED)
    return [f"tables/{name}.csv" for name in names]


@WRITERS.register(earlier=earlier)
def write(
    report: Report,
    folder: Path,
    *,
    manifest: Manifest | None = None,
    show_text: bool = False,
) -> list[Path]:
    """Write results, contrasts, guards and the report's further tables as CSV."""
    models: dict[str, type[BaseModel]] = {
        "results": Row,
        "contrasts": Contrast,
        "guards": Guard,
    }
    records: dict[str, list[dict[str, Any]]] = {
        name: [one.model_dump() for one in getattr(report, name)] for name in models
    }
    # Losses of a step are those of a few rows, and no DP-SGD covers them.
    records |= {k: v for k, v in report.tables.items() if k != "run_losses"}
    headers = {name: list(model.model_fields) for name, model in models.items()}
    written = []
    for name, lines in records.items():
        header = headers.get(name) or list(dict.fromkeys(k for r in lines for k in r))
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
