"""The accuracy matrix of a run: R[t][i] = accuracy on task i after stage t.

Measured while training exactly as ``spark-audit utility --data`` measures it
afterwards: the same prompts, greedy answers, normalised exact match.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spark_audit.checkpoints.from_module import undisturbed
from spark_audit.checkpoints.loaded import Loaded
from spark_audit.data.encoding import encode
from spark_audit.data.examples import Example, read_bytes
from spark_audit.errors import InputError
from spark_audit.files import write_text
from spark_audit.manifest.items import PromptRow, first_response_token, row_prompts
from spark_audit.scoring.items import Prompt
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass

_ANSWERS = Pass("generate")
_AFTER = "after"


def answer_prompts(
    examples: Sequence[Example], tokenizer: Any, *, max_positions: int | None
) -> dict[str, list[Prompt]]:
    """The prompts of the test rows, by task, as the utility audit asks them.

    Rows with a canary, without a response or with nothing before it are not asked.

    Parameters
    ----------
    examples
        Rows of all tasks, of both splits: an answer may be four tokens longer than
        the longest response that any row of its task has.
    max_positions
        The model's context; ``None``: no limit.

    Returns
    -------
    dict
        Every task in the order of its first row; a task with no row to ask has an
        empty list, and its accuracy cannot be measured.

    Raises
    ------
    InputError
        If an id occurs twice, the tokenizer gives no offsets, or a prompt does not
        fit the context with its answer.
    """
    rows: dict[str, PromptRow] = {}
    asked: dict[str, list[str]] = {}
    encodings = encode(tokenizer, [example.text for example in examples])
    for example, encoding in zip(examples, encodings, strict=True):
        if example.id in rows:
            raise InputError(
                "the id occurs twice",
                where=f"example {example.id!r}",
                fix="give every row a unique id",
            )
        row = PromptRow(
            key=example.id,
            task=example.task,
            encoding=encoding,
            response_token=first_response_token(encoding, len(example.prompt)),
            response=example.response,
        )
        rows[row.key] = row
        keys = asked.setdefault(row.task, [])
        if (
            example.split == "test"
            and example.canary is None
            and row.response.strip()
            and row.response_token > 0
        ):
            keys.append(row.key)
    known = list(rows.values())
    return {
        task: row_prompts(known, keys, limit=max_positions)
        for task, keys in asked.items()
    }


def accuracy(loaded: Loaded, prompts: Sequence[Prompt]) -> float:
    """Share of prompts that are answered right, as the scorer `normalised` counts.

    The model is left as it was found: every module in its own mode, so that training
    can go on.

    Parameters
    ----------
    loaded
        The checkpoint, or a model in training.
    prompts
        One task's, of :func:`answer_prompts`.

    Returns
    -------
    float
        From 0 to 1.

    Raises
    ------
    InputError
        If there is no prompt, or one that the model cannot read.
    CheckpointError
        If logits are NaN or infinite.
    """
    if not prompts:
        raise InputError(
            "there is no prompt to answer",
            where="accuracy",
            fix="give the task test rows, or do not measure it",
        )
    with undisturbed(loaded.model):
        table = score(loaded, prompts, passes=[_ANSWERS])[_ANSWERS]
    return float(table.columns["normalised"].mean())


def write_matrix(
    path: Path,
    order: Sequence[str],
    matrix: Sequence[Sequence[float | None]],
    *,
    after: Sequence[str] | None = None,
) -> None:
    """Write the accuracy matrix as CSV, whole or not at all.

    The header is ``after,<task1>,<task2>,...``; one row a stage. What was not
    measured is an empty cell: a task that is learned later, or has no test row.

    Parameters
    ----------
    order
        Tasks in the order of training: the columns.
    matrix
        ``matrix[t][i]`` is the accuracy on task ``i`` after stage ``t``, from 0 to 1,
        or ``None``. There may be fewer stages than tasks, and a stage may end after
        its last measured task.
    after
        What each stage was trained on; by default the task of its place in ``order``.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([_AFTER, *order])
    for label, values in zip(order if after is None else after, matrix, strict=False):
        cells = ["" if value is None else repr(float(value)) for value in values]
        rows.writerow([label, *cells, *[""] * (len(order) - len(values))])
    write_text(path, text.getvalue())


def read_matrix(path: Path) -> tuple[list[str], list[list[float | None]]]:
    """Read what :func:`write_matrix` wrote.

    Returns
    -------
    tuple
        Tasks, and the matrix: one row a stage, one value a task, ``None`` where nothing
        was measured.

    Raises
    ------
    InputError
        If the file is no accuracy matrix.
    OutputError
        If it cannot be read.
    """
    raw = read_bytes(path)
    try:
        (first, *order), *lines = csv.reader(io.StringIO(raw.decode()))
        matrix = [[float(cell) if cell else None for cell in row[1:]] for row in lines]
        if first != _AFTER or any(len(row) != len(order) for row in matrix):
            raise ValueError("its header is another, or a row is of another length")
    except (ValueError, csv.Error) as error:
        raise InputError("is no accuracy matrix", where=str(path)) from error
    return order, matrix
