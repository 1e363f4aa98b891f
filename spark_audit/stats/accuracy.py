"""Continual-learning accuracy: Last, Avg, BWT, forgetting.

A matrix has the shape ``(..., T, N)``: the accuracy, a share, on task n after stage t.
Stage t trains task t, so T and N are equal; only :func:`last` takes others. Intervals
stand in :mod:`~spark_audit.stats.accuracy_intervals`; the audit ``utility`` reads both.

A new figure is a function here and an entry of :data:`ACCURACY_METRICS`; of
:data:`LEVEL_METRICS` if it is itself an accuracy (:func:`task_weights` then needs its
weights); and :func:`reason_against` says on which shapes it has no value. The audit
lists it among its metrics, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Metric = Callable[[np.ndarray], np.ndarray]
"""A function from accuracies ``(..., T, N)`` to values ``(...)``."""


def last(matrix: np.ndarray) -> np.ndarray:
    """Return the mean accuracy over tasks after the last stage.

    ``matrix`` has the shape ``(..., T, N)``: accuracy after stage t on task n.

    Examples
    --------
    >>> last(np.array([[0.9, 0.0], [0.5, 0.7]])).item()
    0.6
    """
    return np.asarray(matrix[..., -1, :].mean(axis=-1))


def avg(matrix: np.ndarray) -> np.ndarray:
    """Return the mean over stages of the mean accuracy on the tasks learned until then.

    ``matrix`` has the shape ``(..., T, N)``: accuracy after stage t on task n.

    Examples
    --------
    >>> avg(np.array([[0.9, 0.0], [0.5, 0.7]])).item()
    0.75
    """
    means = []
    for stage in range(matrix.shape[-2]):
        learned = matrix[..., stage, : stage + 1]  # (..., stage + 1)
        means.append(learned.mean(axis=-1))

    return np.asarray(np.mean(means, axis=0))


def learning_accuracy(matrix: np.ndarray) -> np.ndarray:
    """Return the mean accuracy on each task right after it was learned: the diagonal.

    ``matrix`` has the shape ``(..., T, N)``: accuracy after stage t on task n.

    Examples
    --------
    >>> learning_accuracy(np.array([[0.9, 0.0], [0.5, 0.7]])).item()
    0.8
    """
    right_after = np.diagonal(matrix, axis1=-2, axis2=-1)  # (..., N)
    return np.asarray(right_after.mean(axis=-1))


def bwt(matrix: np.ndarray) -> np.ndarray:
    """Return backward transfer: the mean change on earlier tasks since learned.

    It is below 0 if earlier tasks were forgotten. ``matrix`` has the shape ``(..., T,
    N)``: accuracy after stage t on task n, with T = N.

    Examples
    --------
    >>> bwt(np.array([[0.9, 0.0], [0.5, 0.7]])).item()
    -0.4
    """
    # Leave out the last task, which no other followed.
    right_after = np.diagonal(matrix, axis1=-2, axis2=-1)[..., :-1]  # (..., N - 1)
    at_the_end = matrix[..., -1, :-1]
    return np.asarray((at_the_end - right_after).mean(axis=-1))


def forgetting(matrix: np.ndarray) -> np.ndarray:
    """Return the mean over earlier tasks of best accuracy before the end minus last.

    It is above 0 if earlier tasks were forgotten. ``matrix`` has the shape ``(..., T,
    N)``: accuracy after stage t on task n, with T = N.

    Chaudhry et al. (2018). Unknown accuracies (NaN) are no candidates. The best of
    several noisy values is biased upwards, so 0 is not the value by chance.

    Examples
    --------
    >>> forgetting(np.array([[0.9, 0.0], [0.5, 0.7]])).item()
    0.4
    """
    # Leave out the last task, and for the best accuracy the last stage.
    before_the_end = matrix[..., :-1, :-1]  # (..., T - 1, N - 1)
    candidates = np.where(np.isnan(before_the_end), -np.inf, before_the_end)
    best = candidates.max(axis=-2)  # (..., N - 1)

    at_the_end = matrix[..., -1, :-1]  # (..., N - 1)
    return np.asarray((best - at_the_end).mean(axis=-1))


ACCURACY_METRICS: Mapping[str, Metric] = {
    "last": last,
    "avg": avg,
    "bwt": bwt,
    "forgetting": forgetting,
    "learning_accuracy": learning_accuracy,
}
"""Name of a figure, as reports have it -> its function."""

LEVEL_METRICS = ("last", "avg", "learning_accuracy")
"""Figures that are accuracies themselves, from 0 to 1."""


def reason_against(metric: str, *, stages: int, tasks: int) -> str | None:
    """Return why a figure has no value on a matrix of this shape; ``None``: it has one.

    ``stages``, ``tasks``: numbers T and N.

    Examples
    --------
    >>> reason_against("bwt", stages=1, tasks=1)
    'a single task has no earlier one'
    """
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
    """Return the weight of each task's answers in one of :data:`LEVEL_METRICS`.

    Shape ``(tasks,)``; they sum to 1.

    Examples
    --------
    >>> task_weights("avg", 2).tolist(), task_weights("last", 2).tolist()
    ([0.75, 0.25], [0.5, 0.5])
    """
    if metric == "avg":
        # Stage t has the weight 1 / T, divided among its t tasks. A task belongs to its
        # own stage and all later ones.
        shares_of_stages = 1 / (tasks * np.arange(1, tasks + 1))
        return np.asarray(np.cumsum(shares_of_stages[::-1])[::-1])

    return np.full(tasks, 1 / tasks)
