"""tables/named_rows.csv and named_sources.csv: who is shown to have been trained on.

They say of each row or group only whether it is named: how familiar a single one looks
stays in ``scores/``. Written where they are asked for by name, for the data's owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from spark_audit.report.named import (
    AUDIT,
    SHARE,
    evidence_of,
    named_rows,
    numbered,
)
from spark_audit.report.table_cells import File, Rendering
from spark_audit.report.writers.csv_tables import csv_text
from spark_audit.results import Report


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """One line per checkpoint and named row, and per named group of rows.

    Nothing where the report has no audit of membership: it names nobody.
    """
    if not any(row.audit == AUDIT for row in report.results):
        return
    evidence = evidence_of(report, folder)
    lists = named_rows(report, evidence)
    units = evidence.units
    for name, field, columns, ids in (
        ("named_rows", "rows", ["row", "task"], units["example"]),
        ("named_sources", "groups", ["group", "rows"], units["cluster"]),
    ):
        parts = [
            getattr(one, field).assign(checkpoint=one.checkpoint, false_share=SHARE)
            for one in lists
        ]
        table = pd.concat(parts) if parts else pd.DataFrame()
        if len(table):
            table = table.loc[table["named"], ["checkpoint", *columns, "false_share"]]
            if report.manifest.ids_identify:
                table[columns[0]] = table[columns[0]].map(numbered(ids))
            table = table.rename(columns={"group": "source"})
        yield File(f"tables/{name}.csv", csv_text(table), private=True)
