"""tables/*.csv: the rows of the report, tidy, one figure a line.

Columns have names that no SQL dialect reserves; a part of the rows ("type:SSN") stands
in two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spark_audit.report.table_cells import File, Rendering
from spark_audit.results import Contrast, Guard, Report, Row

Record = dict[str, Any]

RENAMED = {
    "of": "metric_of",
    "null": "no_effect",
    "null_low": "no_effect_low",
    "null_high": "no_effect_high",
    "level": "interval_level",
    "interval": "interval_method",
    "over": "interval_over",
    "rank": "token_rank",
    "rows": "scored_rows",
    "change": "change_value",
    "variant": "setting",
}
"""Columns whose names in ``report.json`` are words of SQL, and what is named alike."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """Results, contrasts, guards and the report's further tables as CSV."""
    frames = {
        "results": _frame(Row, report.results),
        "contrasts": _frame(Contrast, report.contrasts),
        "guards": _frame(Guard, report.guards),
    }
    for name, records in report.tables.items():
        long = _long(records) if name == "accuracy_matrix" else records
        frames[name] = pd.DataFrame(long, dtype=object)
    for name, frame in frames.items():
        yield File(f"tables/{name}.csv", csv_text(_tidy(frame)))


def _frame(model: type[Row | Guard], rows: Sequence[Row | Guard]) -> pd.DataFrame:
    records = [row.model_dump() for row in rows]
    return pd.DataFrame(records, columns=[*model.model_fields], dtype=object)


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """The table by the columns' names here, with a part of the rows in two."""
    frame = frame.rename(columns=RENAMED)
    if "group" in frame:
        at = [*frame].index("group")
        parts = [str(group).partition(":") for group in frame.pop("group")]
        frame.insert(at, "group_kind", [kind for kind, _, _ in parts])
        frame.insert(at + 1, "group_name", [own for _, _, own in parts])
    return frame


def _long(records: Iterable[Record]) -> Iterator[Record]:
    """A line for the accuracy of each task after each stage."""
    places = ("checkpoint", "stage", "after")
    for record in records:
        own = {name: record.get(name, "") for name in places}
        for task, accuracy in record.items():
            if task not in places:
                yield own | {"task": task, "accuracy": accuracy}


def csv_text(frame: pd.DataFrame) -> str:
    """Lines below a head, of which no cell is a formula to a spreadsheet."""
    header = pd.Series(frame.columns, dtype=object)
    safe, head = (
        # Text may be somebody else's.
        one.replace(FORMULA, r"'\1", regex=True)
        for one in (frame.astype(object), header)
    )
    return str(safe.to_csv(index=False, header=[*head], lineterminator="\n"))


FORMULA = r"^(\s*[-=+@\uff1d\uff0b\uff0d\uff20])"
"""How a formula begins, in full width too."""
