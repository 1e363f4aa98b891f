"""A stage of a run, as Python code gets it to look at: ``spark_train.stages``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class TrainedStage:
    """A stage of a run, with the model as it stands after it.

    Attributes
    ----------
    number
        Its place in the run, from 1.
    task
        The task that was learned last; ``all`` for a method that learns all at once.
    model
        The model in memory: the base with the adapter in training on it. All stages
        share it, so its weights are those of this stage only until the next one is
        asked for.
    tokenizer
        Its tokenizer.
    folder
        The stage's adapter on disk, after correction if the method has one.
    accuracy
        Task -> share of its test rows that the model answers right; ``None``: not
        measured, because the task comes later or has no test rows.
    """

    number: int
    task: str
    model: PreTrainedModel | PeftModel = field(repr=False)
    tokenizer: PreTrainedTokenizerFast = field(repr=False)
    folder: Path
    accuracy: Mapping[str, float | None]
