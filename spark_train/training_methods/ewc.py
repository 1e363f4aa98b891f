"""EWC: a penalty on the drift of weights that earlier tasks need.

Kirkpatrick et al. 2017, one penalty a task, added up **[ours]**: while task ``k`` is
learned, ``L = L_task + lambda / 2 sum_{i<k} sum_j F_ij (theta_j - theta_ij)^2``, with
``F_i`` the diagonal of the empirical Fisher matrix of task ``i`` at its end
(:func:`fisher`), over the adapter's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from spark_train.fine_tuning import response_loss
from spark_train.loop import Phase, Sums, flat_gradient, tensors_by_weight
from spark_train.method import Method, task_by_task
from spark_train.processes import share, summed_over_processes
from spark_train.stream import Stream
from spark_train.task_phase import learning_phase

Weights = Mapping[str, Tensor]
"""Name of a trained weight -> a tensor of its shape."""


def fisher(stream: Stream, k: int, *, relative: bool = False) -> dict[str, Tensor]:
    """Return the diagonal of the empirical Fisher matrix at the current weights.

    ``F_j = mean over examples of (d log p(response | prompt) / d theta_j)^2``. There is
    one gradient for each example: of the *sum* over its response's tokens, squared
    before the mean **[ours]**. Responses are the observed ones (with
    ``loss.scope=full`` whole texts), and there is no dropout.

    Parameters
    ----------
    k
        The task whose train rows count.
    relative
        Divide by the mean, so that 1 is an average weight's; a matrix of 0 stays 0.

    Returns
    -------
    dict
        A tensor for each trained weight, of its shape and dtype; the same in all
        processes.
    """
    student = stream.student
    rows = stream.rows[stream.tasks[k]]
    scope = stream.settings.loss.scope

    total = torch.zeros_like(flat_gradient(student))  # (P,)
    for row in share(rows):
        sums = response_loss(student, [row], scope=scope, name="nll")
        torch.autograd.backward(sums["nll"])
        total += flat_gradient(student).square()
        student.model.zero_grad(set_to_none=True)
    total = summed_over_processes(total) / len(rows)

    if relative and total.any():
        total /= total.mean()
    return tensors_by_weight(student, total)


def drift(importance: Weights, before: Weights, weights: Weights) -> Tensor:
    """Return ``sum_j F_j (theta_j - before_j)^2``: scalar, at least 0.

    Parameters
    ----------
    importance
        F: how much each number counts, at least 0.
    before
        The weights from which drift is counted.
    weights
        The weights in training; the gradient of the result reaches only them.
    """
    sums_by_weight = [
        (value * (weights[name] - before[name]).square()).sum()
        for name, value in importance.items()
    ]
    return torch.stack(sums_by_weight).sum()


@task_by_task
def ewc(stream: Stream, k: int) -> list[Phase]:
    """Elastic weight consolidation: weights that earlier tasks need are held in place.

    One phase a task; at its end the task's penalty joins those before.
    """
    student = stream.student
    settings = stream.settings.ewc
    # Groups "fisher 0", "weights 0" and so on, a pair for each earlier task: group ->
    # weight's name -> tensor.
    held: dict[str, dict[str, Tensor]] = {}

    def start() -> None:
        # Also read from the file where the run was not interrupted, so that a resumed
        # run and any other do the same.
        if k:
            held.update(stream.read_carried(k - 1))

    def penalty() -> Sums:
        drifts = [
            drift(held[f"fisher {i}"], held[f"weights {i}"], student.trainable)
            for i in range(k)
        ]
        return {"ewc": 0.5 * settings.lambda_ * torch.stack(drifts).sum()}

    def end() -> None:
        # After the last task, nothing needs it.
        if k + 1 < len(stream.tasks):
            held[f"fisher {k}"] = fisher(stream, k)
            held[f"weights {k}"] = dict(student.trainable)
            stream.save_carried(k, held)

    phase = learning_phase(stream, k)
    return [replace(phase, start=start, penalty=penalty if k else None, end=end)]


EWC = Method(
    "ewc",
    ewc,
    reads=("ewc",),
    no_epsilon="the Fisher matrix is computed from rows without noise",
)
