"""Figures of an accuracy matrix with intervals, and differences of two runs.

All figures but forgetting are linear in the tasks' accuracies, so a resample is again a
row of weights over clusters. Sources of different tasks are drawn independently, so
jackknife and bootstrap are stratified by task. A source in several tasks is one
cluster.

In shapes, ``C`` are clusters, ``T`` stages, ``N`` tasks and ``B`` resamples. The
figures themselves are those of :data:`~spark_audit.stats.accuracy.ACCURACY_METRICS`;
one that is added there has intervals without a change here.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    ``C`` clusters, ``T`` stages, ``N`` tasks.

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
        """Return the answers by cluster, from one row per question.

        Parameters
        ----------
        correct
            Shape ``(n, T)``: 1 where the answer after a stage was right, else 0.
        tasks, clusters
            Shape ``(n,)``: codes from 0, below ``n_tasks`` and ``n_clusters``.
        """
        n_stages = correct.shape[1]
        right = np.zeros((n_clusters, n_tasks, n_stages))  # as np.add.at indexes it
        np.add.at(right, (clusters, tasks), correct)

        trials = np.zeros((n_clusters, n_tasks))
        np.add.at(trials, (clusters, tasks), 1.0)
        return cls(correct=right.transpose(0, 2, 1), trials=trials)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of stages, number of tasks."""
        _, n_stages, n_tasks = self.correct.shape
        return n_stages, n_tasks

    @property
    def sums(self) -> np.ndarray:
        """Shape ``(C, T * N + N)``: right answers, then questions."""
        right = self.correct.reshape(len(self.trials), -1)  # (C, T * N)
        return np.concatenate([right, self.trials], axis=1)

    def figure(self, metric: str) -> Estimand:
        """Return one of :data:`ACCURACY_METRICS` as a function of :attr:`sums`."""

        def figure_of(totals: np.ndarray) -> np.ndarray:
            """Return figures ``(...)`` of totals ``(..., T * N + N)``."""
            return ACCURACY_METRICS[metric](matrix_of(totals, self.shape))

        return Estimand(
            sums=self.sums,
            statistic=figure_of,
            n=round(float(self.trials.sum())),
        )

    def matrix(self) -> np.ndarray:
        """Return accuracies, shape ``(T, N)``; NaN for a task without a question."""
        return matrix_of(self.sums.sum(axis=0), self.shape)

    def strata(self) -> np.ndarray:
        """Return the task with most questions of each cluster, shape ``(C,)``.

        A task with a single cluster joins the largest task, since its spread is
        unknown.
        """
        main_task = self.trials.argmax(axis=1)  # (C,)
        n_clusters = np.bincount(main_task, minlength=self.trials.shape[1])  # (N,)

        is_alone = n_clusters[main_task] == 1
        largest_task = n_clusters.argmax()
        return np.where(is_alone, largest_task, main_task)


def accuracy_estimate(
    answers: Answers,
    metric: str,
    *,
    drawn: np.ndarray | None = None,
) -> Estimate:
    """Return one of :data:`ACCURACY_METRICS` with intervals over clusters.

    Jackknife-t, stratified by task; an accuracy with few events or without spread gets
    the Korn-Graubard interval at its effective number of questions.

    Parameters
    ----------
    answers
        Right answers by cluster.
    metric
        Name of the figure.
    drawn
        Shape ``(B, T * N + N)``, ``answers.sums`` in resamples that
        :func:`~spark_audit.stats.bootstrap.draw_in_strata` gives; they add the
        percentile interval.

    Examples
    --------
    One task, one stage, and six sources of which four answer rightly:

    >>> right = np.array([[1.0], [1.0], [1.0], [1.0], [0.0], [0.0]])
    >>> task = np.zeros(6, int)
    >>> answers = Answers.of_rows(right, task, np.arange(6), n_tasks=1, n_clusters=6)
    >>> estimate = accuracy_estimate(answers, "last")
    >>> round(estimate.value, 4), estimate.interval, estimate.clusters
    (0.6667, 'korn-graubard', 6)
    """
    reason = _reason_against(metric, answers)
    if reason is not None:
        return _missing(answers, reason)

    estimate = _jackknife(answers, answers.figure(metric), drawn)
    if estimate.value is None or metric not in LEVEL_METRICS:
        return estimate

    return intervals.rate_limits(
        estimate,
        events=estimate.value * estimate.n,
        trials=estimate.n,
        effective=_effective_questions(answers, metric, estimate),
    )


def _effective_questions(answers: Answers, metric: str, estimate: Estimate) -> float:
    """Return the number of independent questions that an accuracy is worth.

    ``estimate``: one of :data:`LEVEL_METRICS`, from the jackknife. As a weighted mean
    over tasks it has the variance ``p (1 - p) S`` with ``S = sum_i (w_i^2 / n_i)``:
    that of ``1 / S`` questions.
    """
    _, n_tasks = answers.shape
    squared_weights = task_weights(metric, n_tasks) ** 2  # (N,)

    # Without a spread, or if all or no answers are right, each cluster counts as one
    # question.
    assert estimate.value is not None
    if estimate.se is None or not 0 < estimate.value < 1:
        n_clusters = (answers.trials > 0).sum(axis=0)  # (N,)
        return float(1 / np.sum(squared_weights / n_clusters))

    n_questions = answers.trials.sum(axis=0)  # (N,)
    n_weighted = float(1 / np.sum(squared_weights / n_questions))
    return intervals.effective_trials(estimate, n_weighted)


def accuracy_difference(
    first: Answers,
    second: Answers,
    metric: str,
    *,
    drawn: np.ndarray | None = None,
) -> Estimate:
    """Return a figure of one series minus that of another over the same questions.

    Parameters
    ----------
    first, second
        Answers whose rows are the same clusters; the second figure is subtracted.
    metric
        Name of the figure.
    drawn
        As for :func:`accuracy_estimate`, but the sums of both, one after the other:
        shape ``(B, 2 (T * N + N))``.

    Examples
    --------
    One series answers three of four questions rightly, the other one of these:

    >>> task = np.zeros(4, int)
    >>> source = np.arange(4)
    >>> right = np.array([[1.0], [1.0], [1.0], [0.0]])
    >>> first = Answers.of_rows(right, task, source, n_tasks=1, n_clusters=4)
    >>> right = np.array([[1.0], [0.0], [0.0], [0.0]])
    >>> second = Answers.of_rows(right, task, source, n_tasks=1, n_clusters=4)
    >>> difference = accuracy_difference(first, second, "last")
    >>> difference.value, round(difference.se, 4)
    (0.5, 0.2887)
    """
    if not np.array_equal(first.trials, second.trials):
        raise ValueError("both sides must answer the same questions")

    reason = _reason_against(metric, first, second)
    if reason is not None:
        return _missing(first, reason)

    difference = first.figure(metric).minus(second.figure(metric))
    return _jackknife(first, difference, drawn)


def cluster_shares(answers: Answers, metric: str) -> np.ndarray:
    """Return the contribution of each cluster to a figure linear in right answers.

    The shape is ``(C,)`` and the sum is the figure. Paired tests flip the differences
    of two series' contributions cluster by cluster
    (:mod:`~spark_audit.stats.sign_flips`).

    Examples
    --------
    >>> right = np.array([[1.0], [1.0], [0.0], [0.0]])
    >>> codes = np.array([0, 0, 1, 1])
    >>> answers = Answers.of_rows(right, codes * 0, codes, n_tasks=1, n_clusters=2)
    >>> cluster_shares(answers, "last").tolist()
    [0.5, 0.0]
    """
    if metric == "forgetting":
        raise ValueError("forgetting is not linear in right answers")

    # The figure is linear, so apply it to each cluster's contribution to the matrix.
    contributions = answers.correct / answers.trials.sum(axis=0)  # (C, T, N)
    return np.asarray(ACCURACY_METRICS[metric](contributions))


def _reason_against(metric: str, *series: Answers) -> str | None:
    """Return why a figure of series on the same questions has no value, if any reason.

    The first reason counts: the number of stages and tasks, then empty tasks.
    """
    for answers in series:
        n_stages, n_tasks = answers.shape
        reason = reason_against(metric, stages=n_stages, tasks=n_tasks)
        if reason is not None:
            return reason

    n_questions = series[0].trials.sum(axis=0)  # (N,)
    if not n_questions.all():
        return "a task has no question"
    return None


def _missing(answers: Answers, reason: str) -> Estimate:
    """Return an estimate that cannot be given, with the reason."""
    n_clusters = int(answers.trials.any(axis=1).sum())
    n_questions = round(float(answers.trials.sum()))
    return Estimate.missing(reason, n=n_questions, clusters=n_clusters)


def _jackknife(
    answers: Answers,
    figure: Estimand,
    drawn: np.ndarray | None,
) -> Estimate:
    """Return a figure with its interval, stratified by the tasks of the answers.

    ``drawn``: the figure's sums in each resample, shape ``(B, J)``; ``None``: no
    percentile interval.
    """
    replicates = None
    if drawn is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            replicates = figure.statistic(drawn)  # (B,)

    return intervals.estimate_of(
        figure.sums,
        figure.statistic,
        n=round(float(answers.trials.sum())),
        replicates=replicates,
        strata=answers.strata(),
    )


def matrix_of(totals: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return accuracies ``(..., T, N)`` of totals ``(..., T * N + N)``.

    Parameters
    ----------
    totals
        Right answers after each stage on each task, then questions of each task.
    shape
        Stages T and tasks N.

    Examples
    --------
    One stage; 1 of 2 and 3 of 4 questions are answered rightly:

    >>> matrix_of(np.array([1.0, 3.0, 2.0, 4.0]), (1, 2)).tolist()
    [[0.5, 0.75]]
    """
    n_stages, n_tasks = shape
    right = totals[..., : n_stages * n_tasks]
    right = right.reshape(*totals.shape[:-1], n_stages, n_tasks)
    trials = totals[..., None, n_stages * n_tasks :]  # (..., 1, N)

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(right / trials)
