"""Figures of an accuracy matrix with intervals, and differences of two runs.

All figures but forgetting are linear in the tasks' accuracies, so a resample is again a
row of weights over clusters. Sources of different tasks are drawn independently:
jackknife and bootstrap are stratified by task, and a source that stands in several
tasks is one cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from spark_audit.stats import intervals
from spark_audit.stats.accuracy import (
    ACCURACY_METRICS,
    LEVEL_METRICS,
    reason_against,
    task_weights,
)
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Estimand


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
