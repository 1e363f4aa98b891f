"""Continual-learning accuracy: Last, Avg, BWT, forgetting.

``R[t, i]`` is the accuracy on task ``i`` after stage ``t``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Metric = Callable[[np.ndarray], np.ndarray]
"""Accuracies ``(..., T, N)`` to values ``(...)``."""


def last(matrix: np.ndarray) -> np.ndarray:
    """Return the mean accuracy over tasks after the last stage.

    ``matrix`` has the shape ``(..., T, N)``: accuracy after stage t on task n.
    """
    return np.asarray(matrix[..., -1, :].mean(axis=-1))


def avg(matrix: np.ndarray) -> np.ndarray:
    """Return the mean over stages of the mean accuracy on the tasks learned until then.

    ``matrix`` has the shape ``(..., T, N)``: accuracy after stage t on task n.
    """
    stages = range(matrix.shape[-2])
    means = [matrix[..., t, : t + 1].mean(axis=-1) for t in stages]
    return np.asarray(np.mean(means, axis=0))


def learning_accuracy(matrix: np.ndarray) -> np.ndarray:
    """Return the mean accuracy on each task right after it was learned: the diagonal.

    ``matrix`` has the shape ``(..., T, N)``: accuracy after stage t on task n.
    """
    return np.asarray(np.diagonal(matrix, axis1=-2, axis2=-1).mean(axis=-1))


def bwt(matrix: np.ndarray) -> np.ndarray:
    """Return backward transfer: the mean change on earlier tasks since learned.

    ``matrix`` has the shape ``(..., T, N)``: accuracy after stage t on task n.
    """
    learned = np.diagonal(matrix, axis1=-2, axis2=-1)[..., :-1]
    return np.asarray((matrix[..., -1, :-1] - learned).mean(axis=-1))


def forgetting(matrix: np.ndarray) -> np.ndarray:
    """Return the mean over earlier tasks of best accuracy before the end minus last.

    ``matrix`` has the shape ``(..., T, N)``: accuracy after stage t on task n.

    Chaudhry et al. (2018). Accuracies that are not known (NaN) are no candidates. The
    best of several noisy values is biased upwards, so that 0 is not its chance value.
    """
    before = matrix[..., :-1, :-1]
    best = np.where(np.isnan(before), -np.inf, before).max(axis=-2)
    return np.asarray((best - matrix[..., -1, :-1]).mean(axis=-1))


ACCURACY_METRICS: Mapping[str, Metric] = {
    "last": last,
    "avg": avg,
    "bwt": bwt,
    "forgetting": forgetting,
    "learning_accuracy": learning_accuracy,
}

LEVEL_METRICS = ("last", "avg", "learning_accuracy")
"""Figures that are accuracies themselves, from 0 to 1."""


def reason_against(metric: str, *, stages: int, tasks: int) -> str | None:
    """Why a figure has no value on a matrix of this shape; ``None`` if it has one."""
    if metric == "last":
        return None
    if stages == 1 and tasks > 1:
        return "there is one stage only: it needs the checkpoint after every task"
    if stages != tasks:
        return f"stages and tasks differ in number: {stages} and {tasks}"
    if tasks < 2 and metric in ("bwt", "forgetting"):
        return "a single task has no earlier one"
    return None


def task_weights(metric: str, tasks: int) -> np.ndarray:
    """How much each task's answers weigh in one of :data:`LEVEL_METRICS`: sums to 1."""
    if metric == "avg":
        shares = 1 / (tasks * np.arange(1, tasks + 1))
        return np.asarray(np.cumsum(shares[::-1])[::-1])
    return np.full(tasks, 1 / tasks)
