"""What a checkpoint was trained with: settings, seconds, steps and losses of its run.

Docstrings of classes and fields here are part of the report's JSON schema.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from spark_audit.results.rows import Count, Finite, Number, Strict, Text

Setting: TypeAlias = bool | Count | Finite | Text
"""Value of a setting of a training method."""

SETTINGS_WITHOUT_EFFECT = ("save_every", "micro_tokens", "eval_rows")
"""Settings on which nothing that a run learns depends."""


class TrainingPart(Strict):
    """Learning or correction in a run, over all tasks up to the checkpoint."""

    part: Text
    """`task` (learning), `priv` (correction after a task) or `answers` (of test rows
    after a stage)."""
    steps: Count = 0
    """Optimizer steps."""
    seconds: dict[Text, Finite] = {}
    """Kind of work -> seconds, of the run's clock."""
    loss: Number = None
    """Mean loss of the last steps, nats; null: not known."""
    terms: dict[Text, Finite] = {}
    """Term of the loss -> its mean over the positions of the last steps, nats."""
    last_steps: Count = 0
    """Steps that the losses are means of: the last tenth of the last task's, at least
    ten of them."""
    rows: Count = 0
    """About how many different rows these steps read; 0: not known."""


class TrainingFacts(Strict):
    """What a checkpoint was trained with, from the record of its run."""

    method: Text
    """Training method."""
    privacy: Text = ""
    """Privacy option of the run, as `dpsgd`; empty: none."""
    tasks: list[Text] = []
    """Tasks that it had learned, in the order of learning."""
    settings: dict[Text, Setting] = {}
    """Settings that the method reads, by name."""
    changed: list[Text] | None = None
    """Settings that differ from their defaults; null: the record does not say."""
    clock: Literal["wall", "processor"] = "wall"
    """Clock of the seconds."""
    parts: list[TrainingPart] = []
    """Learning, correction and answers."""

    def part(self, name: str) -> TrainingPart:
        """Return a part by its name; without steps and seconds if there is none."""
        for training_part in self.parts:
            if training_part.part == name:
                return training_part
        return TrainingPart(part=name)
