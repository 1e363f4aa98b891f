"""tables/*.csv: the rows of the report, tidy, one figure a line.

Columns have names that no SQL dialect reserves; a part of the rows ("type:SSN") stands
in two of them. Contrasts of single tasks, most of all lines, are in
``tables/contrasts_by_task.parquet``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit.files import write_atomically, write_text
from spark_audit.report.cells import Rendering
from spark_audit.results import Contrast, Guard, Report, Row

Record = dict[str, Any]

RENAMED = {
    "of": "variant",
    "null": "null_value",
    "level": "interval_level",
    "interval": "interval_method",
    "over": "interval_over",
    "rank": "token_rank",
    "rows": "scored_rows",
    "change": "change_value",
}
"""Columns whose names in ``report.json`` are words of SQL."""
PARTED = {"group": ("subset_kind", "subset")}
"""A column of two: of what kind a part of the rows is, and which."""
ANNOTATION = "/annotation"
"""Of a variant of canaries: each context apart. Without contexts the figures are those
of the variant itself, and would stand here twice."""


def write(report: Report, folder: Path, how: Rendering) -> list[Path]:
    """Write results, contrasts, guards and the report's further tables as CSV."""
    place = folder / "tables"
    contrasts = list(_once(report.contrasts))
    by_task = [row for row in contrasts if row.grouping[0] == "task"]
    models: dict[str, tuple[type[Row] | type[Guard], Iterable[Row | Guard]]] = {
        "results": (Row, _once(report.results)),
        "contrasts": (Contrast, (r for r in contrasts if r.grouping[0] != "task")),
        "guards": (Guard, report.guards),
    }
    written = []
    for name, (model, rows) in models.items():
        columns = [own for c in model.model_fields for own in _columns(c)]
        path = place / f"{name}.csv"
        write_text(path, csv_text(columns, [_named(row.model_dump()) for row in rows]))
        written.append(path)
    for name, records in report.tables.items():
        long = _long(records) if name == "accuracy_matrix" else map(_named, records)
        lines = list(long)
        columns = list(dict.fromkeys(column for line in lines for column in line))
        path = place / f"{name}.csv"
        write_text(path, csv_text(columns, lines))
        written.append(path)
    if by_task:
        path = place / "contrasts_by_task.parquet"
        records = [_named(row.model_dump()) for row in by_task]
        table = pa.Table.from_pylist(records)
        # What is missing everywhere is a number here.
        kinds = [k if k != pa.null() else pa.float64() for k in table.schema.types]
        table = table.cast(pa.schema(zip(table.column_names, kinds, strict=True)))
        write_atomically(path, lambda file: pq.write_table(table, file))
        written.append(path)
    return written


def _once(rows: Sequence[Any]) -> Iterator[Any]:
    """The rows without those of annotations that say what another one does."""

    def figures(row: Row, of: str) -> tuple[Any, ...]:
        return tuple((row.model_dump() | {"of": of, "note": ""}).values())

    known = {figures(row, row.of) for row in rows if row.audit == "canary"}
    for row in rows:
        plain = row.of.removesuffix(ANNOTATION)
        if plain == row.of or figures(row, plain) not in known:
            yield row


def _columns(name: str) -> tuple[str, ...]:
    return PARTED.get(name) or (RENAMED.get(name, name),)


def _named(record: Record) -> Record:
    """The record by the columns' names here."""
    found: Record = {}
    for name, value in record.items():
        kind, _, own = str(value).partition(":")
        parts = (kind, own) if name in PARTED else (value,)
        found |= zip(_columns(name), parts, strict=True)
    return found


def _long(records: Iterable[Record]) -> Iterator[Record]:
    """A line for the accuracy of each task after each stage."""
    places = ("checkpoint", "stage", "after")
    for record in records:
        own = {name: record.get(name, "") for name in places}
        for task, accuracy in record.items():
            if task not in places:
                yield own | {"task": task, "accuracy": accuracy}


def csv_text(columns: Sequence[str], records: Sequence[Record]) -> str:
    """Lines below a head, of which no cell is a formula to a spreadsheet."""
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
