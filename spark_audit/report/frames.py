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

    A record of a checkpoint has its ``state`` and the setup guard that it is
    ``voided_by``.

    Parameters
    ----------
    of
        ``results``, ``contrasts``, ``guards``, ``findings``, ``checkpoints``, or the
        name of a further table.

    Raises
    ------
    InputError
        If there is none of that name; the message lists the names that there are.
    """
    records = frame(of, report, {**REPORT_LISTS, "checkpoints": CheckpointFacts})
    audit = report.origins.get(of, "")
    return with_state_columns(records, report, audit)
