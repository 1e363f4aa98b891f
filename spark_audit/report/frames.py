"""Lists and tables of a report as data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_audit.report.void_rows import with_state_columns
from spark_audit.results import CheckpointFacts, Report
from spark_audit.results.audit_result import REPORT_LISTS, frame

if TYPE_CHECKING:
    import pandas as pd


def report_frame(report: Report, of: str = "results") -> pd.DataFrame:
    """Return one of a report's lists, or a further table, with one record per line.

    Records on a checkpoint have the columns ``state`` and ``voided_by`` (a setup
    guard).

    Parameters
    ----------
    of
        ``results``, ``contrasts``, ``guards``, ``findings``, ``checkpoints``, or the
        name of a further table.

    Raises
    ------
    InputError
        If there is no such list or table; the message lists the known names.
    """
    records = frame(of, report, {**REPORT_LISTS, "checkpoints": CheckpointFacts})
    audit = report.origins.get(of, "")
    return with_state_columns(records, report, audit)
