"""tables/named_rows.csv and named_sources.csv: who is shown to have been trained on.

They say of each row or group only whether it is named: how familiar a single one looks
stays in ``scores/``. Written where they are asked for by name, for the data's owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from spark_audit.report.cells import File, Rendering
from spark_audit.report.named import (
    AUDIT,
    SHARE,
    evidence_of,
    named_rows,
)
from spark_audit.report.writers.csv_tables import csv_text
from spark_audit.results import Report
from spark_audit.sentences import render


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """One line per checkpoint and named row, and per named group of rows.

    Nothing where the report has no audit of membership: it names nobody.
    """
    if not any(row.audit == AUDIT for row in report.results):
        return
    evidence = evidence_of(report, folder)
    rows, groups = [], []
    for one in named_rows(report, evidence):
        rows.append(one.rows.loc[one.rows["named"], ["row", "task"]])
        own = one.groups.loc[one.groups["named"], ["group", "rows"]]
        groups.append(own.rename(columns={"group": "source"}))
        for table in (rows[-1], groups[-1]):
            table.insert(0, "checkpoint", one.checkpoint)
            table["false_share"] = SHARE
    parts = {"named_rows": rows, "named_sources": groups}
    for name, found in parts.items():
        table = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
        if report.manifest.ids_identify and len(table):
            first = table.columns[1]
            known = evidence.units["example" if first == "row" else "cluster"]
            numbers = {key: i for i, key in enumerate(known.unique(), start=1)}
            words = {k: render("dossier.row", number=i) for k, i in numbers.items()}
            table[first] = table[first].map(words)
        yield File(f"tables/{name}.csv", csv_text(table), private=True)
