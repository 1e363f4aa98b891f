"""What each trained weight matters to earlier tasks, and the penalty on its drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spark_train.data import TrainRow
from spark_train.loop import flat_gradient
from spark_train.phases.task import response_loss
from spark_train.stream import Stream

Weights = Mapping[str, Tensor]


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
    total = torch.zeros(student.size, dtype=torch.float64, device=student.device)
    scope = stream.settings.loss.scope
    with student.still(), torch.enable_grad():
        for row in processes.share(chosen):
            sums = response_loss(student, [row], scope=scope, name="nll")
            torch.autograd.backward(sums["nll"])
            total += flat_gradient(student).square()
            student.model.zero_grad(set_to_none=True)
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


@dataclass(frozen=True)
class Quadratic:
    """A sum of quadratics ``sum_k sum_j F_kj (theta_j - theta_kj)^2``, kept as one.

    EWC (Kirkpatrick et al. 2017) adds up one penalty a task. A sum of quadratics is a
    quadratic: per weight ``S (theta - c)^2`` with ``S = sum_k F_k`` and ``c`` the mean
    of the ``theta_k`` weighted with ``F_k``, plus a constant. So memory does not grow
    with the tasks, and nothing cancels as it would in
    ``S theta^2 - 2 M theta + const``.

    Attributes
    ----------
    curvature, centre
        ``S`` and ``c``, a tensor a weight.
    constant
        What of the sum no weight can change, a tensor a weight.
    """

    curvature: Weights
    centre: Weights
    constant: Weights

    @classmethod
    def of(cls, curvature: Weights, at: Weights) -> Quadratic:
        """``sum_j F_j (theta_j - at_j)^2``."""
        constant = {name: torch.zeros_like(value) for name, value in curvature.items()}
        return cls(curvature, at, constant)

    def plus(self, curvature: Weights, at: Weights) -> Quadratic:
        """The sum with one quadratic more."""
        names = list(curvature)
        old, centre = self.curvature, self.centre
        total = {n: old[n] + curvature[n] for n in names}
        gap = {n: at[n] - centre[n] for n in names}
        # Where both are 0, so that no task asks for anything, any centre will do.
        share = {
            n: torch.where(total[n] > 0, curvature[n] / total[n], 1.0) for n in names
        }
        return Quadratic(
            total,
            {n: centre[n] + share[n] * gap[n] for n in names},
            {n: self.constant[n] + old[n] * share[n] * gap[n].square() for n in names},
        )

    def value(self, weights: Weights) -> Tensor:
        """The sum at some weights: scalar; at least 0."""
        parts = [
            (curvature * (weights[name] - self.centre[name]).square()).sum()
            + self.constant[name].sum()
            for name, curvature in self.curvature.items()
        ]
        return torch.stack(parts).sum()
