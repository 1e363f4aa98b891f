"""Figures of accuracy: rows, contrasts, the matrix of a series, and its finding.

All are shares of questions that were answered rightly, or differences of these. The
metrics over all tasks are those of :mod:`spark_audit.stats.accuracy`: Last (accuracy
after the last stage), Avg (mean over stages, on the tasks learned until then), BWT (by
how much the accuracy of earlier tasks changed since they were learned; below 0 is
forgetting), forgetting, and learning accuracy (on each task right after its stage). R
is the matrix of accuracies, ``(stages, tasks)``.

A new metric over all tasks is computed in ``stats/accuracy.py`` and declared in
``audit.py``, with its name in ``sentences/en/metrics.toml`` and a line in
``docs/metrics.md``. If two series are compared by it, it goes into :data:`COMPARED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from spark_audit.audits.base import Audit, Context
from spark_audit.audits.utility.answers import Series
from spark_audit.results import Contrast, Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.results.report_checks import column_of_task
from spark_audit.stats import accuracy, accuracy_intervals
from spark_audit.stats.estimate import Estimate, side_of
from spark_audit.stats.intervals import rate_estimate
from spark_audit.stats.power import with_mde
from spark_audit.stats.sign_flips import sign_flip

COMPARED = ("last", "avg", "bwt")
"""Metrics by which a series is compared with its baseline."""

ASKED_OTHERWISE = (
    "the two differ in their tasks, in the order of tasks, or in the scorer"
)

BIASED = (
    "uses the best of several noisy accuracies, so it is above 0 even if nothing is "
    "forgotten"
)

SMALLEST_DIFFERENCE = 1e-12
"""Quotients that differ by less than this are equal up to rounding."""

AGAINST_COMMON_RESPONSE = {None: "unknown", -1: "worse", 0: "not_shown", 1: "known"}
"""Side of the interval of an accuracy -> how it is against always giving the most
common response: the fact ``against_null``. None: no interval."""

TRANSFER_BY_SIDE = {
    None: "no_interval",
    -1: "forgotten",
    0: "not_detected",
    1: "gained",
}
"""Side of the interval of BWT -> what became of tasks that were learned before: the
fact ``transfer_is``, and the end of the key of its sentence. None: no interval."""

Drawer: TypeAlias = Callable[..., np.ndarray]
"""Takes the answers of one series or of two, and returns their sums over clusters in
each resample, shape ``(replicates, sums of the first and of the second)``."""


def accuracy_finding(series: Series, rows: Sequence[Row]) -> Finding:
    """Return the finding on the last accuracy of a series, and on forgetting.

    It only describes, so its claim is ``moved`` or ``not_tested``.

    Parameters
    ----------
    rows
        Figures of the series, from :func:`series_rows`.
    """
    row_by_metric = {row.metric: row for row in rows if row.group == "pooled"}
    last = row_by_metric["last"]
    bwt = row_by_metric["bwt"]
    if last.value is None:
        return Finding.on(
            last, "not_tested", "utility.missing", facts={"reason": last.note}
        )

    # The last accuracy, against always giving the most common response.
    against_null = "unknown"
    if last.no_effect is not None:
        against_null = AGAINST_COMMON_RESPONSE[side_of(last, last.no_effect)]

    # BWT: how the accuracy of earlier tasks changed since they were learned.
    transfer = "missing"
    if bwt.value is not None:
        transfer = TRANSFER_BY_SIDE[side_of(bwt)]

    # Keys of the sentences that follow the accuracy.
    further = []
    if last.no_effect is not None:
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
    name
        Name of the series, which stands in the column ``checkpoint``.
    draws
        Gives the resamples of the intervals.
    audit
        Whose figures they are.
    paper
        Whether percentile intervals decide.
    """
    # The same resamples for all metrics, so that they are comparable.
    answers = series.answers()
    totals = draws(answers)  # (replicates, sums), see accuracy_intervals.Answers
    chances = series.tasks["chance"].to_numpy(np.float64)  # (tasks,)

    for metric in accuracy.ACCURACY_METRICS:
        # Without an effect BWT is 0; forgetting has no such value (see BIASED).
        null: float | None = 0.0 if metric == "bwt" else None
        reason = series.reason_missing(metric)
        if reason is not None:
            estimate = Estimate.missing(reason)
        else:
            estimate = with_mde(
                accuracy_intervals.accuracy_estimate(answers, metric, drawn=totals)
            )
            if metric in accuracy.LEVEL_METRICS:
                # Chance of the metric: its weighted mean over the tasks.
                weights = accuracy.task_weights(metric, len(chances))  # (tasks,)
                null = float(weights @ chances)
            if metric == "forgetting" and estimate.value is not None:
                estimate = estimate.noting(BIASED)
        yield audit.row(
            estimate.with_deciding_interval(paper=paper), name, metric, no_effect=null
        )

    yield from _matrix_rows(name, series, answers, totals, audit=audit, paper=paper)


def _matrix_rows(
    name: str,
    series: Series,
    answers: accuracy_intervals.Answers,
    totals: np.ndarray,
    *,
    audit: type[Audit],
    paper: bool,
) -> Iterator[Row]:
    """Yield the matrix R: the accuracy after each stage on each task.

    Parameters
    ----------
    totals
        Sums of the answers in each resample, shape ``(replicates, sums)``.
    """
    chances = series.tasks["chance"].to_numpy(np.float64)  # (tasks,)
    accuracies = accuracy_intervals.matrix_of(
        totals, answers.shape
    )  # (replicates, stages, tasks)
    reasons = series.tasks["reason"].to_numpy()  # (tasks,), empty: it has questions

    # t and i number stages and tasks from 0.
    for t, stage in enumerate(series.stages):
        for i, task in enumerate(series.tasks.index):
            chance: float | None = None
            reason = reasons[i]
            if reason:
                estimate = Estimate.missing(f"{task} {reason}")
            else:
                estimate = rate_estimate(
                    answers.correct[:, t, i],  # (clusters,)
                    answers.trials[:, i],  # (clusters,)
                    replicates=accuracies[:, t, i],  # (replicates,)
                )
                estimate = with_mde(estimate).with_deciding_interval(paper=paper)
                chance = float(chances[i])
            yield audit.row(
                estimate,
                name,
                "accuracy",
                str(stage),
                group=f"task:{task}",
                no_effect=chance,
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
        A series, and the series that is its baseline.
    series_by_name
        All series of the report.
    draws
        Gives the resamples of the intervals.
    """
    name, baseline_name = names
    series = series_by_name[name]
    baseline = series_by_name[baseline_name]

    # Only questions that both answered, so that differences are paired.
    shared_ids = set(series.questions["example"]) & set(baseline.questions["example"])
    answers = series.answers(shared_ids)
    baseline_answers = baseline.answers(shared_ids)
    # The index of `tasks` has their names in order: `equals` compares it, too.
    is_asked_alike = series.tasks[["scorer"]].equals(baseline.tasks[["scorer"]])

    for metric in COMPARED:
        reason = series.reason_missing(metric) or baseline.reason_missing(metric)
        if not is_asked_alike:
            reason = ASKED_OTHERWISE
        if reason is not None:
            estimate = Estimate.missing(reason)
        else:
            estimate = accuracy_intervals.accuracy_difference(
                answers,
                baseline_answers,
                metric,
                drawn=draws(answers, baseline_answers),
            )

        # A sign-flip test needs several clusters that differ.
        p: float | None = None
        if estimate.value is not None:
            differences = _differences(answers, baseline_answers, metric)
            if np.count_nonzero(differences) > 1:
                p = sign_flip(differences, seed=context.seed)
        decided = with_mde(estimate, null=0.0).with_deciding_interval(
            paper=context.paper
        )
        yield Contrast.of_estimate(
            decided,
            audit="utility",
            checkpoint=name,
            baseline=baseline_name,
            metric=metric,
            no_effect=0.0,
            p=p,
        )


def _differences(
    answers: accuracy_intervals.Answers,
    baseline_answers: accuracy_intervals.Answers,
    metric: str,
) -> np.ndarray:
    """Return what each cluster adds to the metric of a series minus its baseline's.

    The sign-flip test turns the signs of these.

    Returns
    -------
    Shape ``(clusters,)``; exactly 0 where both series answered alike.
    """
    shares = accuracy_intervals.cluster_shares(answers, metric)  # (clusters,)
    baseline_shares = accuracy_intervals.cluster_shares(baseline_answers, metric)
    differences = shares - baseline_shares
    return np.where(np.abs(differences) < SMALLEST_DIFFERENCE, 0.0, differences)


def matrix_records(name: str, series: Series) -> Iterator[dict[str, Any]]:
    """Yield the matrix R: a record for each stage, a column for each task.

    They are the table ``accuracy_matrix`` of the report.

    Yields
    ------
    ``checkpoint`` (the series), ``stage``, the task that the stage trained on as
    ``after`` (only if there is one stage for each task), and the accuracy on each task;
    None: it has no question.
    """
    tasks = list(series.tasks.index)
    has_question = (series.tasks["reason"] == "").tolist()
    is_stage_per_task = len(series.stages) == len(tasks)

    accuracies = series.answers().matrix()  # (stages, tasks)
    for t, stage in enumerate(series.stages):
        record: dict[str, Any] = {"checkpoint": name, "stage": stage}
        if is_stage_per_task:
            record["after"] = tasks[t]

        for i, task in enumerate(tasks):
            column = column_of_task(task)
            record[column] = None
            if has_question[i]:
                record[column] = float(accuracies[t, i])
        yield record
