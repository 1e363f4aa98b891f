"""Lists and tables of a report as data frames; ``docs/frames.md`` has their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from spark_audit.report.prepared import PreparedReport
from spark_audit.report.void_rows import with_checkpoint_states, with_state_columns
from spark_audit.results import CheckpointFacts, Report
from spark_audit.results.audit_result import REPORT_LISTS
from spark_audit.results.frames import (
    check_table_name,
    frame,
    frame_of_further_table,
)

if TYPE_CHECKING:
    import pandas as pd

FRAME_LISTS: dict[str, type[BaseModel]] = {
    **REPORT_LISTS,
    "checkpoints": CheckpointFacts,
}
"""Lists of a report that have a frame, and the types of their records."""

CHECKPOINT_COLUMN = {"guards": "checkpoint", "checkpoints": "name"}
"""Lists that hold no figures -> their column of names of checkpoints."""


def report_frame(report: Report, of: str = "results") -> pd.DataFrame:
    """Return one of a report's lists, or a further table, with one record per line.

    Records on a checkpoint have the columns ``state`` and ``voided_by`` (a setup
    guard), and figures have ``status``, which is never ``ok`` of what is void.

    Parameters
    ----------
    of
        ``results``, ``contrasts``, ``guards``, ``findings``, ``checkpoints``, or the
        name of a further table.

    Raises
    ------
    InputError
        If there is no such list or table; the message lists the known names.
    ArgumentError
        If the name is no text.
    """
    check_table_name(of)
    return prepared_frame(PreparedReport(report), of)


def prepared_frame(prepared: PreparedReport, of: str) -> pd.DataFrame:
    """Return the frame of :func:`report_frame`; several frames share the states."""
    report = prepared.report
    if of in report.tables and of not in FRAME_LISTS:
        table = frame_of_further_table(report.tables, of)
        return with_state_columns(table, prepared.marks, report.origins.get(of, ""))

    # A report that was made by hand, or by an older program, may lack the marks.
    records = frame(of, prepared.marked, FRAME_LISTS)
    if of in CHECKPOINT_COLUMN:
        return with_checkpoint_states(records, prepared.marks, CHECKPOINT_COLUMN[of])
    return records
