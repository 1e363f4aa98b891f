"""The accuracy on a task after a stage of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.in_memory import undisturbed
from spark_audit.scoring.items import Prompt
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass
from spark_train import processes
from spark_train.stage_keys import number_and_task

_ANSWER_PASS = Pass("generate")
"""The scoring pass that answers prompts."""


def accuracy(loaded: Checkpoint, prompts: Sequence[Prompt]) -> float:
    """Return the share of prompts that are answered right, by the scorer `normalised`.

    The measurement is the same as in ``spark-audit utility --data``: the same prompts,
    greedy answers and normalised exact match. Every module of the model keeps its mode,
    so that training can continue.

    Raises
    ------
    InputError
        If the model cannot read a prompt.
    CheckpointError
        If logits are NaN or infinite.
    """
    is_right: list[float] = []  # 1 or 0 for each prompt of this process
    own_prompts = processes.share(prompts)
    if own_prompts:
        with undisturbed(loaded.model):
            table = score(loaded, own_prompts, passes=[_ANSWER_PASS])[_ANSWER_PASS]
        is_right = table.columns["normalised"].tolist()
    return float(np.mean(processes.gathered(is_right)))


def accuracy_csv(
    matrix: Sequence[Sequence[float | None]],
    *,
    stages: Sequence[str],
    tasks: Sequence[str],
) -> str:
    """Return accuracies as CSV, with a line per stage and a column per task.

    Parameters
    ----------
    matrix
        ``matrix[t][i]``: on task ``i`` after stage ``t``; ``None``: not measured.
    stages
        Stages such as ``2-yelp``. A line is named after the task of its stage.
    """
    line_names = []
    for stage in stages:
        _, task = number_and_task(stage)
        line_names.append(task)
    table = pd.DataFrame(
        list(matrix), index=line_names, columns=list(tasks), dtype=float
    )  # (stages, tasks)
    csv: str = table.to_csv(index_label="after")
    return csv
