"""Read what a trainer of transformers, or of TRL, recorded beside its checkpoint.

``trainer_state.json`` has the number of steps, epochs and rows of a batch, and a
history of what was logged: a mean loss every some steps, and at the end the seconds of
the training. It has neither a method nor other settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_audit.checkpoints.recorded_numbers import is_count, is_number
from spark_audit.errors import InputError
from spark_audit.files import data_bytes, parse_json, read_regular
from spark_audit.results.training import Setting, TrainingFacts, TrainingPart

TRAINER_STATE_FILE = "trainer_state.json"
"""The record of a trainer, in the folder of its checkpoint."""

TRAINER = "transformers"
"""Name of the method of such a run, about which nothing else is known."""

SETTING_BY_FIELD = {"num_train_epochs": "epochs", "train_batch_size": "batch_size"}
"""Field of the record -> the setting of spark-train that means the same."""

DEFAULTS = {"epochs": 3, "batch_size": 8}
"""Defaults of transformers, which the record does not tell from settings."""

SHARE_OF_LAST_STEPS = 10
"""The loss at the end is the mean over the last of so many parts of the steps."""


def trainer_facts(folder: Path) -> TrainingFacts | None:
    """Return what a trainer recorded of the checkpoint in a folder; None: nothing.

    The file may be anybody's. Whatever is no such record counts as none.
    """
    path = folder / TRAINER_STATE_FILE
    try:
        data = read_regular(path, most=data_bytes())
        state = parse_json(data, place=str(path), finite=False)
    except (OSError, InputError):
        return None
    if not isinstance(state, dict):
        return None

    n_steps = state.get("global_step")
    history = state.get("log_history")
    if not is_count(n_steps) or not isinstance(history, list):
        return None

    settings: dict[str, Setting] = {}
    for field, setting in SETTING_BY_FIELD.items():
        if is_count(state.get(field)):
            settings[setting] = state[field]
    logged = [line for line in history if isinstance(line, dict)]
    return TrainingFacts(
        method=TRAINER,
        settings=settings,
        changed=[name for name in settings if settings[name] != DEFAULTS[name]],
        parts=[_learning(n_steps, logged, state)],
    )


def _learning(
    n_steps: int, logged: Sequence[Mapping[str, Any]], state: Mapping[str, Any]
) -> TrainingPart:
    """Return the steps of a training, its seconds and the mean of its last losses.

    Parameters
    ----------
    logged
        Lines of the history: of some, a loss is the mean over the steps since the line
        before.
    """
    seconds = {}
    for line in logged:
        if is_number(line.get("train_runtime")):
            seconds["task"] = float(line["train_runtime"])

    # Each loss counts as often as it has steps: from the last backwards.
    n_last = max(n_steps // SHARE_OF_LAST_STEPS, 1)
    with_loss = []
    for line in logged:
        if is_number(line.get("loss")) and is_count(line.get("step")):
            with_loss.append((line["step"], float(line["loss"])))
    losses = 0.0
    n_averaged = 0
    for index in range(len(with_loss) - 1, -1, -1):
        step, loss = with_loss[index]
        step_before = with_loss[index - 1][0] if index else 0
        n_of_line = max(step - step_before, 1)
        losses += n_of_line * loss
        n_averaged += n_of_line
        if n_averaged >= n_last:
            break

    batch_size = state.get("train_batch_size")
    return TrainingPart(
        part="task",
        steps=n_steps,
        seconds=seconds,
        loss=losses / n_averaged if n_averaged else None,
        last_steps=n_averaged,
        rows=_rows(n_averaged, n_steps, batch_size, state.get("epoch")),
    )


def _rows(n_averaged: int, n_steps: int, batch_size: object, epoch: object) -> int:
    """Return about how many different rows the last steps read; 0: not known.

    It is at most those of an epoch. Several devices read more.
    """
    if not is_count(batch_size):
        return 0
    if is_number(epoch) and epoch > 1:
        n_averaged = min(n_averaged, math.ceil(n_steps / epoch))
    return n_averaged * batch_size
