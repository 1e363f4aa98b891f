"""What a user may give as a checkpoint, from Python: one rule for all functions.

========================================  ============================================
given                                     taken as
========================================  ============================================
a path, ``PATH@K``, ``hf:ORG/NAME``       opened from its files (``open.py``)
a :class:`Checkpoint`                     itself
a model of transformers or PEFT           its weights in memory, as they stand
                                          (``in_memory.py``)
========================================  ============================================

``as_checkpoint`` in ``open.py`` is the function that all others call.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Union

from spark_audit.arguments import wrong_value

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from spark_audit.checkpoints.checkpoint import Checkpoint

GivenCheckpoint: TypeAlias = Union[
    str, Path, "Checkpoint", "PreTrainedModel", "PeftModel"
]
"""What every function takes as a checkpoint."""

IN_MEMORY = "live"
"""The format of a model in memory; others are those of ``detect.py``."""

MEMORY_SOURCE = "weights in memory"
"""Where a model in memory comes from, in reports."""

NO_GIVEN_CHECKPOINT = "neither a path nor an open checkpoint nor a model"
"""What a value is that is no checkpoint, in errors."""

NOT_HASHED = "not hashed: a model in memory"
"""Placeholder for the hash of weights that are still being trained."""

DEFAULT_MODEL_NAME = "model"
"""Name of a model in memory that was not loaded from anywhere."""


def is_model(given: object) -> bool:
    """Return whether something is a model in memory; PyTorch is not imported for it."""
    # Whoever holds a model has imported PyTorch.
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.nn.Module)


def is_open(given: object) -> TypeGuard[Checkpoint]:
    """Return whether something is an open checkpoint, or has all parts of one."""
    return hasattr(given, "usable")


def check_open(given: object, argument: str) -> None:
    """Refuse what is neither an open checkpoint nor a model in memory.

    Parameters
    ----------
    argument
        How the caller names it.

    Raises
    ------
    ArgumentError
        Names the argument and its value.
    """
    if not is_model(given) and not is_open(given):
        raise wrong_value(argument, given, NO_GIVEN_CHECKPOINT)


def default_model_name(model: Any) -> str:
    """Return the name of a model in memory: the folder that it was loaded from."""
    source = getattr(getattr(model, "config", None), "_name_or_path", "")
    return Path(source).name or DEFAULT_MODEL_NAME
