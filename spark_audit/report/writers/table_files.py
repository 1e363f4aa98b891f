"""tables/*.csv: the rows of the report, tidy, one figure a line; and named rows.

Columns have names that no SQL dialect reserves; a part of the rows ("type:SSN") stands
in two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from spark_audit.audits import Membership
from spark_audit.report.cells import (
    LARGE_NUMBER,
    MAX_SHOWN_VALUE,
    is_shared,
    shown,
)
from spark_audit.report.disclosure.rounding import step_of
from spark_audit.report.frames import report_frame
from spark_audit.report.named import NAMED_SHARE, evidence_of, named_rows
from spark_audit.report.void_rows import with_state_columns
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import Report, Row

RENAMED = {
    "of": "metric_of",
    "null": "no_effect",
    "null_low": "no_effect_low",
    "null_high": "no_effect_high",
    "level": "interval_level",
    "interval": "interval_method",
    "over": "interval_over",
    "rank": "token_rank",
    "right": "right_guesses",
    "rows": "scored_rows",
    "change": "change_value",
    "variant": "setting",
}
"""Columns whose names in ``report.json`` are words of SQL, and what is named alike."""


def write_csv(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """Results, contrasts, guards and the report's further tables as CSV."""
    lists = ("results", "contrasts", "guards")
    frames = {name: report_frame(report, name) for name in lists}
    if is_shared(report):
        for name, rows in (
            ("results", report.results),
            ("contrasts", report.contrasts),
        ):
            frames[name]["rounded"] = [_is_rounded(row) for row in rows]
            frames[name]["beyond"] = [beyond_bound(row) for row in rows]
    for name, records in report.tables.items():
        frames[name] = pd.DataFrame(records, dtype=object)
        if name == "accuracy_matrix":  # a line for each task after each stage
            places = ["checkpoint", "stage", "after"]
            tasks = [column for column in frames[name] if column not in places]
            # Of whole checkpoints there are no stages.
            wide = frames[name].reindex(columns=[*places, *tasks], fill_value="")
            long = wide.melt(places, var_name="task", value_name="accuracy")
            frames[name] = long.dropna(subset="accuracy")
    for name, frame in frames.items():
        marked = with_state_columns(frame, report, report.origins.get(name, ""))
        yield File(f"tables/{name}.csv", csv_text(_tidy(marked)))


def _is_rounded(row: Row) -> bool:
    """Whether the figures of a row are rounded to what its clusters allow."""
    has_step = row.unit == "tries" or step_of(row) is not None
    return row.value is not None and has_step


def beyond_bound(row: Row) -> str:
    """Return that the value is a bound, beyond which the figure lies; else nothing.

    >>> row = Row(audit="extract", checkpoint="a", metric="n50_median", value=1e12)
    >>> beyond_bound(row)
    'over 1e12'
    """
    if row.value is None or abs(row.value) < MAX_SHOWN_VALUE:
        return ""
    side = "over" if row.value > 0 else "under"
    return f"{side} {shown(row.value).lstrip('<> ')}"


def _short(value: object) -> object:
    """Return a large number as powers of ten, where these have all of its digits."""
    if not isinstance(value, float) or abs(value) < LARGE_NUMBER:
        return value
    return f"{value:g}" if float(f"{value:g}") == value else value


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """The table by the columns' names here, with a part of the rows in two."""
    frame = frame.rename(columns=RENAMED)
    if "group" in frame:
        at = [*frame].index("group")
        parts = [str(group).partition(":") for group in frame.pop("group")]
        frame.insert(at, "group_kind", [kind for kind, _, _ in parts])
        frame.insert(at + 1, "group_name", [own for _, _, own in parts])
    return frame


def csv_text(frame: pd.DataFrame) -> str:
    """Lines below a head, of which no cell is a formula to a spreadsheet."""
    header = pd.Series(frame.columns, dtype=object)
    # Not by `map`: it makes floats of counts beside a gap, so that 0 would read 0.0.
    cells = {
        column: pd.Series(
            [_short(value) for value in frame[column].astype(object)],
            index=frame.index,
            dtype=object,
        )
        for column in frame
    }
    frame = pd.DataFrame(cells, index=frame.index, columns=frame.columns)
    safe, head = (
        # Text may be somebody else's.
        one.replace(FORMULA, r"'\1", regex=True)
        for one in (frame, header)
    )
    return str(safe.to_csv(index=False, header=[*head], lineterminator="\n"))


FORMULA = r"^(\s*[-=+@\uff1d\uff0b\uff0d\uff20])"
"""How a formula begins, in full width too."""


def write_named(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """``named_rows.csv`` and ``named_sources.csv``, where they are asked for by name.

    They say of each row or group only whether it is named: how familiar a single one
    looks stays in ``scores/``. Nothing where the report has no audit of membership.
    """
    if not any(row.audit == Membership.name for row in report.results):
        return
    lists = named_rows(report, evidence_of(report, folder))
    for name, field, columns in (
        ("named_rows", "rows", ["row", "task"]),
        ("named_sources", "groups", ["group", "rows"]),
    ):
        parts = [
            getattr(one, field).assign(
                checkpoint=one.checkpoint, false_share=NAMED_SHARE
            )
            for one in lists
        ]
        table = pd.concat(parts) if parts else pd.DataFrame()
        if len(table):
            table = table.loc[table["named"], ["checkpoint", *columns, "false_share"]]
            table = table.rename(columns={"group": "source"})
        yield File(f"tables/{name}.csv", csv_text(table), private=True)
