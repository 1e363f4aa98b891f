"""Train a base model on files that a model wrote, and audit what came through.

What does a model learn of persons whose rows it never reads, from a file that another
model wrote of them? The base is trained on the texts of each file by the short training
of ``--relearn`` (:func:`spark_audit.checkpoints.derived.relearned_weights`), in memory,
and all audits run on the result, in a report next to that of the files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_audit.audits.known import ALL_AUDITS
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.untrusted import HUB
from spark_audit.errors import InputError
from spark_audit.messages import say
from spark_audit.pipeline.generated_files import FileJob
from spark_audit.pipeline.job import Progress
from spark_audit.pipeline.opened import NamedOpen
from spark_audit.pipeline.request import Request, given_audits
from spark_audit.wrong_paths import no_such_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_audit.pipeline.run import Outcome

PASSES = 3
"""Times that each text is trained on, if the number of steps is not given."""

FOLDER_ENDING = "-through"
"""Ending of the folder of the second report."""


@dataclass(frozen=True, kw_only=True)
class Through:
    """How a base model is trained on files.

    Attributes
    ----------
    base
        The model before this training.
    steps
        Steps of 8 texts each; ``None``: as many as go :data:`PASSES` times over a file.
    lr
        Peak learning rate.
    device
        Where it is trained and scored.
    """

    base: str
    steps: int | None = None
    lr: float = 1e-3
    device: str = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise InputError(
                "is not a learning rate",
                where="--through-lr",
                fix="give a number above 0",
            )
        is_on_hub = self.base.startswith(HUB)
        if not is_on_hub and not Path(self.base).exists():
            raise no_such_path(Path(self.base), otherwise="give a base model")


def run_through(
    request: Request, through: Through, *, progress: Progress | None = None
) -> Outcome:
    """Train a base on each file of a request, and audit the models that result.

    Parameters
    ----------
    request
        A request for files that a model wrote; its report's folder is ``output``.

    Returns
    -------
    Outcome
        The second report, with a checkpoint of the name of each file.

    Raises
    ------
    SparkError
        If the base cannot be opened or trained, or does not fit the manifest.
    """
    from spark_audit.pipeline.run import run

    job = FileJob.of(request)
    opened = []
    for name, texts in job.texts.items():
        say(f"training {through.base} on the {len(texts):,} texts of {name}")
        model = trained_model(through, texts, seed=request.seed)
        opened.append(NamedOpen(name, model))

    folder = job.folder.with_name(f"{job.folder.name}{FOLDER_ENDING}")
    second = replace(
        request,
        audits=given_audits(ALL_AUDITS),
        checkpoints=(),
        opened=tuple(opened),
        base=through.base,
        output=folder,
        loading=Loading(device=through.device, tokenizer=through.base),
    )
    return run(second, progress=progress)


def trained_model(through: Through, texts: Sequence[str], *, seed: int) -> Any:
    """Return a base model that was trained on texts, in memory, of transformers.

    Parameters
    ----------
    seed
        Seed of the order of texts and of the adapter's start.
    """
    from spark_audit.checkpoints.derived import (
        ROWS_PER_STEP,
        Relearning,
        relearned_weights,
    )
    from spark_audit.checkpoints.open import open_checkpoint

    steps = through.steps
    if steps is None:
        steps = math.ceil(PASSES * len(texts) / ROWS_PER_STEP)
    training = Relearning(texts=tuple(texts), steps=steps, lr=through.lr, seed=seed)

    base = open_checkpoint(through.base, device=through.device)
    assert base.model is not None
    weights = relearned_weights(
        base.model, None, base.tokenizer, base.max_positions, training
    )
    for parameter, value in weights:
        parameter.data = value
    return base.model
