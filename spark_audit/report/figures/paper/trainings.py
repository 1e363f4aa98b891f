"""What the systems of a report were trained with, from its frame of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import pandas as pd

from spark_audit.names import entry_of, series_of

Training: TypeAlias = Mapping[str, Any]
"""A record of ``checkpoints[].training``: method, settings, seconds by part."""


def trainings_of(checkpoints: pd.DataFrame) -> dict[str, list[Training]]:
    """Return system -> what each of its seeds was trained with.

    Of the stages of a series the last one counts. Checkpoints of which nothing is known
    are left out.

    Parameters
    ----------
    checkpoints
        The frame ``checkpoints`` of a report.
    """
    if "training" not in checkpoints:
        return {}

    by_run: dict[str, Training] = {}
    for name, text in zip(checkpoints["name"], checkpoints["training"], strict=True):
        training = None if pd.isna(text) else json.loads(text or "null")
        if training is not None:
            # Later stages replace earlier ones.
            by_run[series_of(name)] = training

    by_system: dict[str, list[Training]] = {}
    for run, training in by_run.items():
        by_system.setdefault(entry_of(run), []).append(training)
    return by_system
