"""Lists and tables of a report as data frames; ``docs/frames.md`` has their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from spark_audit.report.void_rows import (
    with_checkpoint_states,
    with_state_columns,
    with_states,
)
from spark_audit.results import CheckpointFacts, Report
from spark_audit.results.audit_result import REPORT_LISTS
from spark_audit.results.frames import (
    check_table_name,
    frame,
    frame_of_rows,
    frame_of_table,
)
from spark_audit.results.report_checks import ACCURACY_MATRIX

if TYPE_CHECKING:
    import pandas as pd

FRAME_LISTS: dict[str, type[BaseModel]] = {
    **REPORT_LISTS,
    "checkpoints": CheckpointFacts,
}
"""Lists of a report that have a frame, and the types of their records."""

CHECKPOINT_COLUMN = {"guards": "checkpoint", "checkpoints": "name"}
"""Lists that hold no figures -> their column of names of checkpoints."""

PLACE_DTYPES = {"checkpoint": "string", "stage": "Int64", "after": "string"}
"""Columns of the accuracy matrix that are no tasks, and their dtypes."""


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
    if of in report.tables and of not in FRAME_LISTS:
        table = frame_of_table(report.tables[of])
        if of == ACCURACY_MATRIX:
            table = long_accuracy_matrix(table)
        return with_state_columns(table, report, report.origins.get(of, ""))

    # A report that was made by hand, or by an older program, may lack the marks.
    records = frame(of, with_states(report), FRAME_LISTS)
    if of in CHECKPOINT_COLUMN:
        return with_checkpoint_states(records, report, CHECKPOINT_COLUMN[of])
    return records


def long_accuracy_matrix(matrix: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy matrix with a line for each task after each stage.

    Parameters
    ----------
    matrix
        The columns ``checkpoint``, ``stage`` and ``after``, and one for each task. Of
        whole checkpoints there are no stages.
    """
    if not len(matrix):
        # A table without records has no columns.
        matrix = frame_of_rows([], PLACE_DTYPES)
    if "after" not in matrix:
        matrix = matrix.assign(after="").astype({"after": "string"})
    task_columns = [column for column in matrix if column not in PLACE_DTYPES]

    # Tasks are numbered meanwhile, since one may have the name "accuracy".
    numbers = {task: number for number, task in enumerate(task_columns)}
    numbered = matrix.rename(columns=numbers)
    long = numbered.melt([*PLACE_DTYPES], [*numbers.values()], "task", "accuracy")
    long["task"] = [task_columns[number] for number in long["task"]]

    types = {"task": "string", "accuracy": "Float64"}
    measured = long.astype(types).dropna(subset="accuracy")
    return measured.reset_index(drop=True)
