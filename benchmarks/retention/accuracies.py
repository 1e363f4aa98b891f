"""Accuracies of runs by stage and task, in a table that is kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from spark_audit.errors import InputError, first_line
from spark_audit.files import write_text
from spark_train.run_folder import Folder

COLUMNS = ("design", "system", "seed", "stage", "after", "task", "accuracy")
"""A line is the accuracy on a task after a stage. ``stage`` counts from 1, ``after`` is
the task that it learned (``all``: one stage learned all tasks)."""


_SEE_KEPT = "give the accuracy.csv of a study, as reports/claims/retention has one"


def run_lines(folder: Path, *, design: str, system: str, seed: int) -> pd.DataFrame:
    """Return the accuracies of a finished run, columns :data:`COLUMNS`."""
    record = Folder(folder).read()
    if record is None or record.status != "complete":
        raise InputError("holds no finished run", where=str(folder))

    lines = []
    is_one_stage = len(record.accuracy) == 1 < len(record.tasks)
    for stage, accuracies in enumerate(record.accuracy, start=1):
        after = "all" if is_one_stage else record.tasks[stage - 1]
        for task, accuracy in zip(record.tasks, accuracies, strict=True):
            if accuracy is not None:
                lines.append((design, system, seed, stage, after, task, accuracy))
    return pd.DataFrame(lines, columns=list(COLUMNS))


def write_accuracies(tables: Iterable[pd.DataFrame], path: Path) -> None:
    """Write the accuracies of all runs, rounded to four decimals."""
    table = pd.concat([pd.DataFrame(columns=list(COLUMNS)), *tables])
    write_text(path, table.to_csv(index=False, float_format="%.4f"))


def read_accuracies(path: Path) -> pd.DataFrame:
    """Return a kept table, columns :data:`COLUMNS`.

    Raises
    ------
    InputError
        If the file is missing or is no such table.
    """
    if not path.is_file():
        raise InputError("is missing", where=str(path))
    try:
        table = pd.read_csv(path, encoding="utf-8")
    except ValueError as error:
        # Errors of the parser and of the encoding are of this kind, too.
        raise InputError(
            f"is no table: {first_line(error)}", where=str(path), fix=_SEE_KEPT
        ) from None
    if tuple(table.columns) != COLUMNS:
        raise InputError(
            f"must have the columns {', '.join(COLUMNS)}",
            where=str(path),
            fix=_SEE_KEPT,
        )
    for column in ("seed", "stage", "accuracy"):
        if not pd.api.types.is_numeric_dtype(table[column]):
            raise InputError(
                f"has text in the column {column}", where=str(path), fix=_SEE_KEPT
            )
    return table


def matrix(table: pd.DataFrame, *, design: str, system: str, seed: int) -> np.ndarray:
    """Return a run's accuracies, shape ``(stages, tasks)``; NaN: not measured.

    Tasks are in the order in which they were learned.
    """
    is_run = (
        (table["design"] == design)
        & (table["system"] == system)
        & (table["seed"] == seed)
    )
    lines = table[is_run]
    tasks = list(dict.fromkeys(lines["task"]))
    by_stage = lines.pivot_table(index="stage", columns="task", values="accuracy")
    return by_stage[tasks].to_numpy()  # (stages, tasks)
