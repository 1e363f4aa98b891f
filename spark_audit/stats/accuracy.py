"""Continual-learning accuracy: Last, Avg, BWT, forgetting, with clustered intervals.

``R[t, i]`` is the accuracy on task ``i`` after stage ``t``. All figures but forgetting
are linear in the tasks' accuracies, so a resample is again a row of weights over
clusters. Sources of different tasks are drawn independently: jackknife and bootstrap
are stratified by task, and a source that stands in several tasks is one cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from spark_audit.stats import intervals
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Estimand

Metric = Callable[[np.ndarray], np.ndarray]
"""Accuracies ``(..., T, N)`` to values ``(...)``."""


# --- figures of a matrix --------------------------------------------------------------


def last(matrix: np.ndarray) -> np.ndarray:
    """Mean accuracy over tasks after the last stage."""
    return np.asarray(matrix[..., -1, :].mean(axis=-1))


def avg(matrix: np.ndarray) -> np.ndarray:
    """Mean over stages of the mean accuracy on the tasks learned until then."""
    stages = range(matrix.shape[-2])
    means = [matrix[..., t, : t + 1].mean(axis=-1) for t in stages]
    return np.asarray(np.mean(means, axis=0))


def learning_accuracy(matrix: np.ndarray) -> np.ndarray:
    """Mean accuracy on each task right after it was learned: the diagonal."""
    return np.asarray(np.diagonal(matrix, axis1=-2, axis2=-1).mean(axis=-1))


def bwt(matrix: np.ndarray) -> np.ndarray:
    """Backward transfer: mean change on earlier tasks since they were learned."""
    learned = np.diagonal(matrix, axis1=-2, axis2=-1)[..., :-1]
    return np.asarray((matrix[..., -1, :-1] - learned).mean(axis=-1))


def forgetting(matrix: np.ndarray) -> np.ndarray:
    """Mean over earlier tasks of the best accuracy before the end minus the last one.

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


# --- with intervals -------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """Right answers of one series by cluster.

    Attributes
    ----------
    correct
        Shape ``(C, T, N)``: right answers of a cluster after a stage on a task.
    trials
        Shape ``(C, N)``: questions, the same after every stage.
    """

    correct: np.ndarray
    trials: np.ndarray

    @classmethod
    def of_rows(
        cls,
        correct: np.ndarray,
        tasks: np.ndarray,
        clusters: np.ndarray,
        *,
        n_tasks: int,
        n_clusters: int,
    ) -> Answers:
        """From one row a question.

        Parameters
        ----------
        correct
            Shape ``(n, T)``: 1 where the answer after a stage was right, else 0.
        tasks, clusters
            Shape ``(n,)``: codes.
        """
        right = np.zeros((n_clusters, n_tasks, correct.shape[1]))
        np.add.at(right, (clusters, tasks), correct)
        trials = np.zeros((n_clusters, n_tasks))
        np.add.at(trials, (clusters, tasks), 1.0)
        return cls(right.transpose(0, 2, 1), trials)

    @property
    def shape(self) -> tuple[int, int]:
        """Stages and tasks."""
        return self.correct.shape[1], self.correct.shape[2]

    @property
    def sums(self) -> np.ndarray:
        """Shape ``(C, T * N + N)``: what is summed over clusters."""
        return np.concatenate(
            [self.correct.reshape(len(self.trials), -1), self.trials], axis=1
        )

    def figure(self, metric: str) -> Estimand:
        """One of :data:`ACCURACY_METRICS` as a function of :attr:`sums`."""
        return Estimand(
            self.sums,
            lambda totals: ACCURACY_METRICS[metric](matrix_of(totals, self.shape)),
            round(float(self.trials.sum())),
        )

    def matrix(self) -> np.ndarray:
        """Shape ``(T, N)``: accuracies; NaN for a task without a question."""
        return matrix_of(self.sums.sum(axis=0), self.shape)

    def strata(self) -> np.ndarray:
        """Shape ``(C,)``: each cluster's task (of several the one with most rows).

        A task with one cluster of its own joins the largest task, as it says nothing
        of its spread.
        """
        found = self.trials.argmax(axis=1)
        counts = np.bincount(found, minlength=self.trials.shape[1])
        return np.where(counts[found] == 1, counts.argmax(), found)


def accuracy_estimate(
    answers: Answers, metric: str, *, drawn: np.ndarray | None = None
) -> Estimate:
    """One of :data:`ACCURACY_METRICS` with intervals over clusters.

    Jackknife-t, stratified by task; an accuracy with few events or without spread gets
    the Korn-Graubard interval at its effective number of questions.

    Parameters
    ----------
    drawn
        Shape ``(B, T * N + N)``, ``answers.sums`` in resamples that
        :func:`~spark_audit.stats.bootstrap.draw_in_strata` gives: also give the
        percentile interval.
    """
    estimate = _estimate([answers], metric, drawn)
    if estimate.value is None or metric not in LEVEL_METRICS:
        return estimate
    weights = task_weights(metric, answers.shape[1]) ** 2
    # Independent questions that tell as much.
    if estimate.se is None or not 0 < estimate.value < 1:
        n = float(1 / np.sum(weights / (answers.trials > 0).sum(axis=0)))
    else:
        n = float(1 / np.sum(weights / answers.trials.sum(axis=0)))
        n = intervals.effective_trials(estimate, n)
    return intervals.rate_limits(estimate, estimate.value * estimate.n, estimate.n, n)


def accuracy_difference(
    ours: Answers, theirs: Answers, metric: str, *, drawn: np.ndarray | None = None
) -> Estimate:
    """A figure of one series minus that of another over the same questions.

    Parameters are those of :func:`accuracy_estimate`; rows of ``ours`` and ``theirs``
    are the same clusters, and ``drawn`` has the sums of both, one after the other.
    """
    if not np.array_equal(ours.trials, theirs.trials):
        raise ValueError("both sides must answer the same questions")
    return _estimate([ours, theirs], metric, drawn)


def cluster_shares(answers: Answers, metric: str) -> np.ndarray:
    """What each cluster adds to a figure that is linear in right answers.

    Shape ``(C,)``; the sum is the figure. For paired tests: differences of two series'
    shares can be flipped cluster by cluster.
    """
    if metric == "forgetting":
        raise ValueError("forgetting is not linear in right answers")
    per_question = answers.correct / answers.trials.sum(axis=0)
    # The figure of each cluster's own additions to R: linear, so they add up.
    return np.asarray(ACCURACY_METRICS[metric](per_question))


def _estimate(
    sides: Sequence[Answers], metric: str, drawn: np.ndarray | None
) -> Estimate:
    trials = sides[0].trials
    n, clusters = round(float(trials.sum())), int(trials.any(axis=1).sum())
    shapes = (side.shape for side in sides)
    reasons = [reason_against(metric, stages=s, tasks=n) for s, n in shapes]
    if not trials.sum(axis=0).all():
        reasons.append("a task has no question")
    if reason := next(filter(None, reasons), None):
        return Estimate.missing(reason, n=n, clusters=clusters)
    sums, statistic, *_ = reduce(Estimand.minus, (one.figure(metric) for one in sides))
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates = None if drawn is None else statistic(drawn)
    strata = sides[0].strata()
    return intervals.estimate_of(
        sums, statistic, n=n, replicates=replicates, strata=strata
    )


def matrix_of(totals: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Accuracies ``(..., T, N)`` of totals ``(..., T * N + N)``."""
    stages, tasks = shape
    right = totals[..., : stages * tasks].reshape(*totals.shape[:-1], stages, tasks)
    trials = totals[..., None, stages * tasks :]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(right / trials)
