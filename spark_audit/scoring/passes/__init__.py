"""Passes: one file each, how a model goes through items.

A pass is ``run(loaded, model, items, task)``, which hands over each item's columns as
soon as they are known. ``LAYOUTS`` and ``ITEMS`` of :mod:`spark_audit.scoring.table`
list what it gives, and what it goes through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_audit.scoring.table import Pass


@dataclass(frozen=True)
class Task:
    """What a pass is asked.

    Attributes
    ----------
    kind
        The pass with its settings.
    batch_size
        Items per batch, at most; ``None``: by tokens.
    emit
        Called once per item, with its columns.
    note
        Called with what a reader of the report must know.
    """

    kind: Pass
    batch_size: int | None
    emit: Callable[[Any, dict[str, np.ndarray]], None]
    note: Callable[[str], None]
