"""What each trained weight matters to earlier tasks, and the penalty on its drift."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spark_train.loop import by_weight, flat_gradient
from spark_train.phases.task import response_loss
from spark_train.stream import Stream

Weights = Mapping[str, Tensor]


def fisher(stream: Stream, k: int, *, relative: bool = False) -> dict[str, Tensor]:
    """The diagonal of the empirical Fisher matrix at the weights as they are.

    ``F_j = mean over examples of (d log p(response | prompt) / d theta_j)^2``: one
    gradient an example, of the *sum* over its response's tokens, squared before the
    mean **[ours]**; observed responses (with ``loss.scope=full`` whole texts), no
    dropout.

    Parameters
    ----------
    k
        The task whose train rows count.
    relative
        Over its own mean, so that 1 is an average weight's; a matrix of 0 stays 0.

    Returns
    -------
    dict
        A tensor a trained weight, of its shape and dtype; the same in all processes.
    """
    student, processes = stream.student, stream.processes
    rows, scope = stream.rows[stream.tasks[k]], stream.settings.loss.scope
    total = torch.zeros_like(flat_gradient(student))
    with student.still(), torch.enable_grad():
        for row in processes.share(rows):
            sums = response_loss(student, [row], scope=scope, name="nll")
            torch.autograd.backward(sums["nll"])
            total += flat_gradient(student).square()
            student.model.zero_grad(set_to_none=True)
    total = processes.sum(total) / len(rows)
    if relative and total.any():
        total /= total.mean()
    return by_weight(student, total)


def drift(importance: Weights, at: Weights, weights: Weights) -> Tensor:
    """``sum_j F_j (theta_j - at_j)^2``: scalar, at least 0."""
    parts = [
        (value * (weights[name] - at[name]).square()).sum()
        for name, value in importance.items()
    ]
    return torch.stack(parts).sum()
