"""O-LoRA: low-rank subspaces of the tasks stand at right angles to one another.

Wang et al. 2023: while task ``k`` is learned, the adapters of the tasks before stay
switched on and frozen. The penalty ``lambda_1 sum |A_old A_new^T|`` keeps the rows of
the new adapter's ``lora_A`` at right angles to theirs. A stage's folder holds all of
its adapters as one, with the sum of their ranks, which stock PEFT loads. (The authors'
folders keep the rank of one task in their configuration; ``spark-audit`` reads those,
too.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from spark_audit.provenance import seed_for
from spark_train.loop import Phase, Sums
from spark_train.lora import old_and_new, set_aside
from spark_train.method import Method, task_by_task
from spark_train.stream import Stream
from spark_train.task_phase import learning_phase


@task_by_task
def olora(stream: Stream, k: int) -> list[Phase]:
    """O-LoRA: one adapter per task, kept orthogonal to the frozen earlier ones."""
    student = stream.student
    settings = stream.settings.olora

    def start() -> None:
        # What was trained so far is frozen, and a fresh adapter is put beside it.
        set_aside(student.model, seed=seed_for(stream.settings.seed, "lora", k))

    def penalty() -> Sums:
        return {"orthogonal": settings.lambda_1 * overlap(old_and_new(student.model))}

    phase = learning_phase(stream, k)
    return [replace(phase, start=start, penalty=penalty) if k else phase]


def overlap(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return O-LoRA's orthogonality loss: the sum of ``|A_old A_new^T|`` over entries.

    Parameters
    ----------
    pairs
        Per layer ``A_old`` of shape ``(R, n)``, all earlier tasks' rows, and ``A_new``
        of shape ``(r, n)``.

    Returns
    -------
    Tensor
        Scalar; 0 where every new row stands at right angles on every old one.

    Notes
    -----
    Wang et al. 2023, Eq. 7, and ``orthogonal_loss`` in their code: a sum over layers
    and entries, not a mean.
    """
    sums_by_layer = [(old @ new.T).abs().sum() for old, new in pairs]
    return torch.stack(sums_by_layer).sum()


OLORA = Method("olora", olora, reads=("olora",), no_epsilon="")
