"""What a checkpoint was trained with, as shared files show it.

Losses at the end of a run are means over the rows of its last steps. They are rounded
and withheld as the means of any other rows are. The seed is left out: the noise of
DP-SGD follows from it. Settings and seconds are of the run alone.
"""

from __future__ import annotations

from spark_audit.report.disclosure.paths import shareable, shareable_settings
from spark_audit.report.disclosure.rounding import (
    MIN_STEP_TIMES_CLUSTERS,
    rounded,
    step_above,
    with_digits,
)
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.results.training import TrainingFacts, TrainingPart

SEED = "seed"
"""Setting that is not shared."""


def shown_training(training: TrainingFacts) -> TrainingFacts:
    """Return what a checkpoint was trained with in the form of shared files."""
    changed = training.changed
    if changed is not None:
        changed = [name for name in changed if name != SEED]
    return training.model_copy(
        update={
            "tasks": [shareable(task) for task in training.tasks],
            "settings": shareable_settings(training.settings),
            "changed": changed,
            "parts": [_shown_part(part) for part in training.parts],
        }
    )


def _shown_part(part: TrainingPart) -> TrainingPart:
    """Return a part of a training with rounded losses, or none over too few rows."""
    seconds = {work: with_digits(value) for work, value in part.seconds.items()}
    if part.rows < MIN_CLUSTERS_TO_PUBLISH:
        return part.model_copy(update={"seconds": seconds, "loss": None, "terms": {}})

    step = step_above(MIN_STEP_TIMES_CLUSTERS / part.rows)
    loss = part.loss
    if loss is not None:
        loss = rounded(loss, step)
    terms = {name: rounded(mean, step) for name, mean in part.terms.items()}
    return part.model_copy(update={"seconds": seconds, "loss": loss, "terms": terms})
