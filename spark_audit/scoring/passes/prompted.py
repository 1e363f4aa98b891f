"""The prompted pass: strings behind prompts that are not their own rows' beginnings.

As the plain pass reads them; only what is said of the string itself is kept.

One row a token of the string, as in the plain pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from spark_audit.scoring.passes import Task, plain
from spark_audit.scoring.table import LAYOUTS

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.items import Continuation


def run(
    loaded: Loaded, model: torch.nn.Module, items: Sequence[Continuation], task: Task
) -> None:
    """Score strings behind prompts and hand over the columns of their tokens."""

    def behind(item: Continuation, columns: dict[str, np.ndarray]) -> None:
        first = len(item.ids) - 1 - len(item.scored)
        task.emit(item, {name: columns[name][first:] for name in LAYOUTS["prompted"]})

    plain.run(loaded, model, items, replace(task, emit=behind))
