"""Gradient episodic memory: no gradient points against an earlier task's memory.

Lopez-Paz & Ranzato 2017. Before each step the gradients of all stored rows, task by
task, are computed anew at the current weights. Where the step's own gradient ``g``
points against one of them, it is replaced by ``g + G'v``
(:mod:`spark_train.losses.projection`), and clipped afterwards.

Which rows are stored is drawn from the seed **[ours]**; the paper keeps a task's last
ones. The step is AdamW's, as of all methods here **[ours]**: what is projected is the
gradient, and not what AdamW makes of it and of those before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from spark_train.loop import (
    Phase,
    Step,
    Term,
    accumulate,
    flat_gradient,
    set_gradient,
)
from spark_train.losses.projection import dual
from spark_train.methods.method import Method
from spark_train.phases.fine_tuning import covered
from spark_train.phases.task import TASK, learning
from spark_train.stream import Stream

NO_EPSILON = "the stored rows' gradients are neither clipped nor noised"


def gem(stream: Stream) -> list[Phase]:
    """One phase a task, with a constraint for each task before it."""
    return [_phase(stream, k) for k in range(len(stream.tasks))]


def memory(stream: Stream, k: int) -> Step:
    """The rows stored of task ``k``, the same ones for all later tasks."""
    rows = stream.rows[stream.tasks[k]]
    size = min(stream.settings.gem.memory, len(rows))
    chosen = stream.drawn(k, rows, size, purpose="memory")
    count = covered(chosen, stream.settings.loss.scope)
    return Step({TASK: chosen}, {TASK: Term(count)})


def _phase(stream: Stream, k: int) -> Phase:
    student, processes = stream.student, stream.processes
    phase = learning(stream, k)
    stored = [memory(stream, earlier) for earlier in range(k)]

    def gradients(step: int) -> Mapping[str, float]:
        if not stored:
            return {}
        own = flat_gradient(student)
        others = [_gradient_of(batch, phase=phase, stream=stream) for batch in stored]
        table = torch.stack([*others, own])
        products = table @ table.T
        against = int((products[-1, :-1] < 0).sum())
        if not against or not products.isfinite().all():
            return {"violated": against}  # the loop stops where one is not finite
        v = torch.zeros(k, dtype=torch.float64)
        if processes.first:
            solved = dual(products.cpu().numpy(), margin=stream.settings.gem.margin)
            v = torch.from_numpy(solved)
        # One process solves it for all: they must not part by a rounding.
        v = processes.sum(v.to(student.device))
        set_gradient(student, own + v @ table[:-1])
        return {"violated": against}

    return replace(phase, gradients=gradients)


def _gradient_of(batch: Step, *, phase: Phase, stream: Stream) -> Tensor:
    """The gradient of a batch that is not the step's, whose own stays: ``(P,)``."""
    student = stream.student
    weights = list(student.trainable.values())
    own = [weight.grad for weight in weights]
    try:
        for weight in weights:
            weight.grad = None
        accumulate(student, phase.loss, batch, processes=stream.processes)
        return flat_gradient(student)
    finally:
        for weight, gradient in zip(weights, own, strict=True):
            weight.grad = gradient


METHOD = Method(
    "gem",
    gem,
    reads=("gem",),
    no_epsilon=NO_EPSILON,
    summary=__doc__,
)
