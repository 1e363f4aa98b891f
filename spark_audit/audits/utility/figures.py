"""Figures of accuracy: rows, contrasts, the matrix of a series, and its finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from spark_audit.audits.base import Audit, Context
from spark_audit.audits.utility.answers import Series
from spark_audit.results import Contrast, Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats import accuracy, accuracy_intervals
from spark_audit.stats.bootstrap import sign_flip
from spark_audit.stats.estimate import Estimate, side_of
from spark_audit.stats.intervals import rate_estimate
from spark_audit.stats.power import with_mde

COMPARED = ("last", "avg", "bwt")
"""Metrics that two series are compared by."""

ASKED_OTHERWISE = (
    "the two differ in their tasks, in the order of tasks, or in the scorer"
)

BIASED = (
    "uses the best of several noisy accuracies, so it is above 0 even if nothing is "
    "forgotten"
)

SMALLEST_DIFFERENCE = 1e-12
"""Shares are quotients: what differs by less does not differ."""

Drawer: TypeAlias = Callable[..., np.ndarray]
"""Resampled sums of one series' answers, or of two."""


def accuracy_finding(series: Series, rows: Sequence[Row]) -> Finding:
    """Return how good a series is after its last stage, and what was forgotten.

    Parameters
    ----------
    rows
        Figures of the series.
    """
    pooled = {row.metric: row for row in rows if row.group == "pooled"}
    last = pooled["last"]
    bwt = pooled["bwt"]
    if last.value is None:
        return Finding.on(
            last, "not_tested", "utility.missing", facts={"reason": last.note}
        )

    # The last accuracy, against always giving the most common response.
    against_null = "unknown"
    if last.null is not None:
        of_side = {None: "unknown", -1: "worse", 0: "not_shown", 1: "known"}
        against_null = of_side[side_of(last, last.null)]

    # Accuracy of earlier tasks since they were learned.
    transfer = "missing"
    if bwt.value is not None:
        of_side = {None: "no_interval", 0: "not_detected", -1: "forgotten", 1: "gained"}
        transfer = of_side[side_of(bwt)]

    further = []
    if last.null is not None:
        further.append("utility.common_response")
    if against_null in ("worse", "not_shown"):
        further.append(f"utility.null_{against_null}")
    further.append(f"utility.transfer_{transfer}")

    n_tasks = len(series.tasks)
    facts: dict[str, Fact] = {
        "accuracy": last,
        "tasks": n_tasks,
        "against_null": against_null,
        "transfer": bwt,
        "transfer_is": transfer,
    }
    says = "utility.accuracy" if n_tasks > 1 else "utility.accuracy_of_one_task"
    return Finding.on(last, "moved", says, facts=facts, further=further)


def series_rows(
    name: str, series: Series, draws: Drawer, *, audit: type[Audit], paper: bool
) -> Iterator[Row]:
    """Yield the metrics over all tasks, then the accuracy of each task and stage.

    Parameters
    ----------
    audit
        Whose figures they are.
    paper
        Whether percentile intervals decide.
    """
    # The same resamples for all metrics, so that they are comparable.
    answers = series.answers()
    totals = draws(answers)  # resampled sums by cluster
    chances = series.tasks["chance"].to_numpy(np.float64)  # (tasks,)
    for metric in accuracy.ACCURACY_METRICS:
        null: float | None = 0.0 if metric == "bwt" else None
        reason = series.reason(metric)
        if reason is not None:
            estimate = Estimate.missing(reason)
        else:
            estimate = with_mde(
                accuracy_intervals.accuracy_estimate(answers, metric, drawn=totals)
            )
            if metric in accuracy.LEVEL_METRICS:
                weights = accuracy.task_weights(metric, len(chances))  # (tasks,)
                null = float(weights @ chances)
            if metric == "forgetting" and estimate.value is not None:
                estimate = estimate.noting(BIASED)
        yield audit.row(estimate.decided(paper=paper), name, metric, null=null)

    # The matrix R: accuracy after each stage on each task.
    rates = accuracy_intervals.matrix_of(totals, answers.shape)
    for t, stage in enumerate(series.stages):
        for i, task in enumerate(series.tasks.index):
            chance: float | None = None
            reason = series.tasks["reason"].iloc[i]
            if reason:
                estimate = Estimate.missing(f"{task} {reason}")
            else:
                estimate = rate_estimate(
                    answers.correct[:, t, i],
                    answers.trials[:, i],
                    replicates=rates[:, t, i],
                )
                estimate = with_mde(estimate).decided(paper=paper)
                chance = float(chances[i])
            yield audit.row(
                estimate,
                name,
                "accuracy",
                str(stage),
                group=f"task:{task}",
                null=chance,
            )


def series_contrasts(
    names: tuple[str, str],
    series_by_name: Mapping[str, Series],
    draws: Drawer,
    context: Context,
) -> Iterator[Contrast]:
    """Yield Last, Avg and BWT minus the baseline's, over the questions of both.

    Parameters
    ----------
    names
        A series and its baseline.
    """
    checkpoint, baseline = names
    first = series_by_name[checkpoint]
    second = series_by_name[baseline]
    # Only questions that both answered, so that differences are paired.
    shared = set(first.rows["example"]) & set(second.rows["example"])
    sides = first.answers(shared), second.answers(shared)
    is_asked_alike = first.tasks[["scorer"]].equals(second.tasks[["scorer"]])

    for metric in COMPARED:
        reason = first.reason(metric) or second.reason(metric)
        if not is_asked_alike:
            reason = ASKED_OTHERWISE
        if reason is not None:
            estimate = Estimate.missing(reason)
        else:
            estimate = accuracy_intervals.accuracy_difference(
                *sides, metric, drawn=draws(*sides)
            )

        p: float | None = None
        if estimate.value is not None:
            differences = _differences(sides[0], sides[1], metric)
            if np.count_nonzero(differences) > 1:
                p = sign_flip(differences, seed=context.seed)
        decided = with_mde(estimate, null=0.0).decided(paper=context.paper)
        yield Contrast.of_estimate(
            decided,
            audit="utility",
            checkpoint=checkpoint,
            baseline=baseline,
            metric=metric,
            null=0.0,
            p=p,
        )


def _differences(
    first: accuracy_intervals.Answers, second: accuracy_intervals.Answers, metric: str
) -> np.ndarray:
    """Return what each cluster adds to a difference of two series.

    Returns
    -------
    Shape ``(clusters,)``; what is no difference is 0 exactly.
    """
    # What a cluster adds to the metric; signs of its difference are flipped.
    shares = accuracy_intervals.cluster_shares(first, metric)
    shares_of_baseline = accuracy_intervals.cluster_shares(second, metric)
    differences = shares - shares_of_baseline
    return np.where(np.abs(differences) < SMALLEST_DIFFERENCE, 0.0, differences)


def matrix_records(name: str, series: Series) -> Iterator[dict[str, Any]]:
    """Yield the matrix R: a record for each stage, a column for each task.

    Yields
    ------
    ``checkpoint``, ``stage``, the task that the stage trained on as ``after`` (if it is
    known), and the accuracy on each task; None: it has no question.
    """
    tasks = list(series.tasks.index)
    has_question = (series.tasks["reason"] == "").tolist()
    for t, accuracies in enumerate(series.answers().matrix()):
        record: dict[str, Any] = {"checkpoint": name, "stage": series.stages[t]}
        if len(series.stages) == len(tasks):
            record["after"] = tasks[t]
        for i, task in enumerate(tasks):
            record[task] = float(accuracies[i]) if has_question[i] else None
        yield record
