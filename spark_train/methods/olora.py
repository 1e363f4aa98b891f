"""O-LoRA: one adapter per task, kept orthogonal to the frozen earlier ones.

Wang et al. 2023: while task ``k`` is learned, the adapters of the tasks before stay
switched on and frozen, and ``lambda_1 sum |A_old A_new^T|`` keeps the new one's rows
out of their directions. A stage's folder holds all of its adapters as one, of their
ranks together, which stock PEFT loads. (The authors' folders keep the rank of one task
in their configuration; ``spark-audit`` reads those, too.)
"""

from __future__ import annotations

from dataclasses import replace

import torch

from spark_audit.provenance import seed_for
from spark_train.loop import Phase, Sums
from spark_train.losses.weights import overlap
from spark_train.methods.method import Method
from spark_train.model.lora import old_and_new, set_aside
from spark_train.phases.task import learning
from spark_train.stream import Stream


def olora(stream: Stream) -> list[Phase]:
    """One phase a task, each with an adapter of its own."""
    return [_phase(stream, k) for k in range(len(stream.tasks))]


def _phase(stream: Stream, k: int) -> Phase:
    student, settings = stream.student, stream.settings.olora

    def start() -> None:
        if k:
            set_aside(student.model, seed=seed_for(stream.settings.seed, "lora", k))

    def penalty() -> Sums:
        terms: Sums = {}
        if k:
            terms["orthogonal"] = settings.lambda_1 * overlap(
                old_and_new(student.model)
            )
        if settings.lambda_2:
            sizes = [torch.linalg.vector_norm(w) for w in student.trainable.values()]
            terms["norms"] = settings.lambda_2 * torch.stack(sizes).sum()
        return terms

    return replace(learning(stream, k), start=start, penalty=penalty)


METHOD = Method(
    "olora",
    olora,
    reads=("olora",),
    no_epsilon="",
    summary=__doc__,
)
