"""Series of checkpoints and their answers: accuracies, contrasts, findings, guards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context, guard
from spark_audit.audits.metric import Metric
from spark_audit.names import CheckpointName, series_of
from spark_audit.results import (
    AuditResult,
    Contrast,
    Estimate,
    Finding,
    Guard,
    Row,
    side_of,
)
from spark_audit.results.evidence import Evidence
from spark_audit.stats.accuracy import (
    LEVELS,
    Answers,
    accuracy_difference,
    accuracy_estimate,
    cluster_shares,
    matrix_of,
    reason_against,
    task_weights,
)
from spark_audit.stats.bootstrap import (
    Weights,
    draw_in_strata,
    sign_flip,
    weighted_sums,
)
from spark_audit.stats.intervals import rate_estimate
from spark_audit.stats.power import with_mde

COMPARED = ("last", "avg", "bwt")
BIASED = (
    "uses the best of several noisy accuracies, so it is above 0 even if nothing is "
    "forgotten"
)


def conclude(
    evidence: Evidence, context: Context, metrics: Sequence[Metric]
) -> AuditResult:
    """Rows, contrasts and findings; names are those of series."""
    facts, units = evidence.facts, evidence.units
    order = ",".join(facts["order"])
    common: dict[str, Any] = {
        "guards": _label_guards(facts),
        "settings": {"order": order, "scorer": facts["scorer"]},
    }
    if not (evidence.values["correct"] >= 0).any():
        reasons = dict(zip(units["task"], units["reason"], strict=True))
        tasks = [f"{task} {reason}" for task, reason in reasons.items()]
        unknown = Finding.not_tested("utility", "utility.nothing", tasks=tasks)
        return AuditResult(findings=[unknown], **common)
    every = dict(all_series(evidence))
    draws = _Draws(context)
    rows: list[Row] = []
    contrasts: list[Contrast] = []
    matrices: list[dict[str, Any]] = []
    for name, series in every.items():
        rows += _rows(name, series, draws, metrics)
        matrices += _matrix_records(name, series)
    for name, series in every.items():
        if (other := context.baselines.get(name)) in every:
            contrasts += _contrasts((name, other), series, every[other], draws)
    return AuditResult(
        rows=rows,
        contrasts=contrasts,
        findings=[
            *(finding(name, series, rows) for name, series in every.items()),
            *(contrast_finding(row) for row in contrasts if row.metric == "last"),
        ],
        tables={"accuracy_matrix": matrices},
        guards=[*common["guards"], *_empty_guards(evidence)],
        settings=common["settings"],
    )


@dataclass(frozen=True, eq=False)
class Series:
    """One series' answers.

    ``tasks`` has a row per task with ``chance``, ``scorer`` and ``reason`` (why nothing
    was asked), ``rows`` one per question that all stages answered: its task's place and
    its cluster's ``code``, numbered alike for all series. ``correct`` has the shape
    ``(rows, stages)``.
    """

    stages: list[int]
    tasks: pd.DataFrame
    rows: pd.DataFrame
    correct: np.ndarray
    n_clusters: int

    def answers(self, keep: Collection[str] | None = None) -> Answers:
        """Sums by cluster, over some of the examples."""
        chosen = np.ones(len(self.rows), dtype=bool)
        if keep is not None:
            chosen = self.rows["example"].isin(keep).to_numpy()
        return Answers.of_rows(
            self.correct[chosen],
            self.tasks.index.get_indexer(pd.Index(self.rows["task"][chosen])),
            self.rows["code"].to_numpy()[chosen],
            n_tasks=len(self.tasks),
            n_clusters=self.n_clusters,
        )

    @property
    def unasked(self) -> list[str]:
        """Tasks without a question, with the reason."""
        reasons = self.tasks["reason"][self.tasks["reason"] != ""]
        return [f"{task} {reason}" for task, reason in reasons.items()]

    def reason(self, metric: str) -> str | None:
        """Why a figure over tasks and stages has no value."""
        if self.unasked:
            return "; ".join(self.unasked)
        if metric != "last" and self.stages != list(range(1, len(self.stages) + 1)):
            if len(self.stages) > 1:
                listed = ", ".join(map(str, self.stages))
                return f"only the stages {listed} were scored"
        shape = {"stages": len(self.stages), "tasks": len(self.tasks)}
        return reason_against(metric, **shape)


def all_series(evidence: Evidence) -> Iterator[tuple[str, Series]]:
    """Every series with the examples that all of its stages answered."""
    units, correct = evidence.units, evidence.values["correct"]
    asked = correct >= 0
    clusters = units["cluster"].where(np.any(asked, axis=0))
    codes, labels = pd.factorize(clusters, sort=True)
    members: dict[str, dict[int, int]] = {}
    for i, checkpoint in enumerate(evidence.checkpoints):
        series = series_of(checkpoint)
        # A single checkpoint is the first stage of a series of its own.
        staged = series != checkpoint and CheckpointName.parse(checkpoint).stage
        members.setdefault(series, {}).setdefault(staged or 1, i)
    for series, stages in members.items():
        at = [stages[stage] for stage in sorted(stages)]
        if asked[at].any():
            held = np.flatnonzero(asked[at].all(axis=0))
            whole = units[~np.isnan(correct[next(iter(stages.values()))])]
            tasks = whole.drop_duplicates("task").sort_values("place").set_index("task")
            rows = units.assign(code=codes).iloc[held]
            answers = correct[at][:, held].T
            yield series, Series(sorted(stages), tasks, rows, answers, len(labels))


def finding(name: str, series: Series, rows: Sequence[Row]) -> Finding:
    """How good a series' answers are after its last stage, and what was forgotten."""
    by_metric = {
        row.metric: row
        for row in rows
        if row.checkpoint == name and row.group == "pooled"
    }
    last, bwt = by_metric["last"], by_metric["bwt"]
    if last.value is None:
        facts: dict[str, Any] = {"reason": last.note}
        return Finding.on(last, "not_tested", "utility.missing", facts=facts)
    side = None if last.null is None else side_of(last, last.null)
    against = {None: "unknown", -1: "worse", 0: "not_shown", 1: "known"}
    facts = {
        "accuracy": last,
        "tasks": len(series.tasks),
        "against_null": against[side],
        "transfer": bwt,
        "transfer_is": _transfer(bwt),
    }
    return Finding.on(last, "moved", "utility.accuracy", facts=facts)


def _transfer(row: Row) -> str:
    if row.value is None:
        return "missing"
    ways = {None: "no_interval", 0: "not_detected", -1: "forgotten", 1: "gained"}
    return ways[side_of(row)]


def contrast_finding(row: Contrast) -> Finding:
    """How the final accuracy differs from the baseline's."""
    says = f"utility.change_{row.direction(up='higher', down='lower')}"
    return Finding.on(row, "moved", says, facts={"change": row})


class _Draws:
    """Resampled sums, over the same questions in the same resamples for all series."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._weights: dict[bytes, Weights] = {}

    def __call__(self, *sides: Answers) -> np.ndarray:
        strata = sides[0].strata()
        key = strata.tobytes()
        if key not in self._weights:
            self._weights[key] = draw_in_strata(
                strata, replicates=self.context.replicates, seed=self.context.seed
            )
        sums = np.concatenate([side.sums for side in sides], axis=1)
        return weighted_sums(self._weights[key], sums)


def _rows(
    name: str, series: Series, draws: _Draws, metrics: Sequence[Metric]
) -> Iterator[Row]:
    answers, paper = series.answers(), draws.context.paper
    drawn = draws(answers)
    row = partial(Row.of_estimate, audit="utility", checkpoint=name)
    for metric in (each.name for each in metrics if "" in each.variants):
        null: float | None = 0.0 if metric == "bwt" else None
        if (reason := series.reason(metric)) is not None:
            yield row(Estimate.missing(reason), metric=metric, null=null)
            continue
        estimate = with_mde(accuracy_estimate(answers, metric, drawn=drawn))
        if metric in LEVELS:
            chances = series.tasks["chance"].to_numpy(np.float64)
            null = float(task_weights(metric, len(series.tasks)) @ chances)
        if metric == "forgetting" and estimate.value is not None:
            estimate = estimate.noting(BIASED)
        yield row(estimate.decided(paper=paper), metric=metric, null=null)
    rates = matrix_of(drawn, answers.shape)
    for t, stage in enumerate(series.stages):
        for i, (task, asked) in enumerate(series.tasks.iterrows()):
            columns = {"metric": "accuracy", "of": str(stage), "group": f"task:{task}"}
            if asked["reason"]:
                lost = Estimate.missing(f"{task} {asked['reason']}")
                yield row(lost, null=None, **columns)
                continue
            counts = answers.correct[:, t, i], answers.trials[:, i]
            rate = with_mde(rate_estimate(*counts, replicates=rates[:, t, i]))
            chance = float(asked["chance"])
            yield row(rate.decided(paper=paper), null=chance, **columns)


def _contrasts(
    names: tuple[str, str], ours: Series, theirs: Series, draws: _Draws
) -> Iterator[Contrast]:
    """Last, Avg and BWT minus the baseline's, over the questions that both answered."""
    columns: dict[str, Any] = dict(zip(("checkpoint", "baseline"), names, strict=True))
    shared = set(ours.rows["example"]) & set(theirs.rows["example"])
    same = ours.tasks[["scorer"]].equals(theirs.tasks[["scorer"]])
    sides = ours.answers(shared), theirs.answers(shared)
    for metric in COMPARED:
        reason = ours.reason(metric) or theirs.reason(metric)
        if not same:
            reason = (
                "the two differ in their tasks, in the order of tasks, or in the scorer"
            )
        if reason is None:
            estimate = accuracy_difference(*sides, metric, drawn=draws(*sides))
        else:
            estimate = Estimate.missing(reason)
        known = estimate.value is not None
        p = _p(*sides, metric, draws.context.seed) if known else None
        shown = with_mde(estimate, null=0.0).decided(paper=draws.context.paper)
        figure = {"audit": "utility", "metric": metric, "null": 0.0, "p": p}
        yield Contrast.of_estimate(shown, **figure, **columns)


def _p(ours: Answers, theirs: Answers, metric: str, seed: int) -> float | None:
    """Sign-flip test over sources; none where fewer than two of them differ."""
    apart = cluster_shares(ours, metric) - cluster_shares(theirs, metric)
    # Shares are quotients: what is no difference must not count as one.
    apart[np.abs(apart) < 1e-12] = 0.0
    return float(sign_flip(apart, seed=seed)) if np.count_nonzero(apart) > 1 else None


def _matrix_records(name: str, series: Series) -> Iterator[dict[str, Any]]:
    """The matrix R: a record a stage, a field a task."""
    matrix = series.answers().matrix()
    tasks, asked = series.tasks.index, (series.tasks["reason"] == "").to_numpy()
    for t, stage in enumerate(series.stages):
        record: dict[str, Any] = {"checkpoint": name, "stage": stage}
        if len(series.stages) == len(tasks):
            record["after"] = tasks[t]
        shares = [
            float(share) if known else None
            for share, known in zip(matrix[t], asked, strict=True)
        ]
        yield record | dict(zip(tasks, shares, strict=True))


def _label_guards(facts: Mapping[str, Any]) -> list[Guard]:
    """What the scorer cannot tell apart, rows not asked, an order not given."""
    found = []
    for name, says, told in (
        ("distinct labels", "distinct_labels", {"tasks": facts["clash"]}),
        ("responses", "responses", {"rows": facts["blank"]}),
        ("order of tasks", "order", {"tasks": facts["order"] * facts["assumed"]}),
    ):
        if any(told.values()):
            found.append(guard(name, says, told))
    return found


def _empty_guards(evidence: Evidence) -> list[Guard]:
    """Checkpoints (stages of a series) that mostly answered nothing."""
    made = []
    for i, name in enumerate(evidence.checkpoints):
        asked = evidence.values["correct"][i] >= 0
        empty, answers = int(evidence.values["empty"][i][asked].sum()), int(asked.sum())
        if 2 * empty > answers:
            counts = {"empty": empty, "answers": answers}
            made.append(
                guard("empty answers", "empty_answers", counts, checkpoint=name)
            )
    return made
