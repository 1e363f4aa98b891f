"""How much the likelihood of a task's responses depends on each trained weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spark_train.data import TrainRow
from spark_train.loop import flat_gradient
from spark_train.phases.fine_tuning import response_loss
from spark_train.stream import Stream


def fisher(stream: Stream, k: int, *, rows: int = 0) -> dict[str, Tensor]:
    """The diagonal of the empirical Fisher matrix at the weights as they are.

    ``F_j = mean over examples of (d log p(response | prompt) / d theta_j)^2``: one
    gradient an example, of the *sum* over its response's tokens, squared before the
    mean **[ours]**; observed responses (with ``loss.scope=full`` whole texts), no
    dropout.

    Parameters
    ----------
    k
        The task whose train rows count.
    rows
        How many of them, drawn without replacement; 0: all.

    Returns
    -------
    dict
        A tensor a trained weight, of its shape and dtype; the same in all processes.
    """
    student, processes = stream.student, stream.processes
    chosen: Sequence[TrainRow] = stream.rows[stream.tasks[k]]
    if 0 < rows < len(chosen):
        chosen = stream.drawn(k, chosen, rows, purpose="fisher")
    weights = student.trainable
    size = sum(weight.numel() for weight in weights.values())
    total = torch.zeros(size, dtype=torch.float64, device=student.device)
    scope = stream.settings.loss.scope
    with student.still(), torch.enable_grad():
        for row in processes.share(chosen):
            sums = response_loss(student, [row], scope=scope, name="nll")
            torch.autograd.backward(sums["nll"])
            total += flat_gradient(student).square()
            for weight in weights.values():
                weight.grad = None
    total = processes.sum(total) / len(chosen)
    parts = torch.split(total, [weight.numel() for weight in weights.values()])
    return {
        name: part.view_as(weight).to(weight.dtype)
        for part, (name, weight) in zip(parts, weights.items(), strict=True)
    }


def relative(importance: dict[str, Tensor]) -> dict[str, Tensor]:
    """Importances over their mean, so that 1 is an average weight's; 0 stay 0."""
    total = torch.stack([value.double().sum() for value in importance.values()]).sum()
    mean = float(total) / sum(value.numel() for value in importance.values())
    return {
        name: value / mean if mean > 0 else value for name, value in importance.items()
    }
