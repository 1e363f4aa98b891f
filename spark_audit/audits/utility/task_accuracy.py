"""Task accuracy after every stage: Last, Avg, BWT, forgetting.

Greedy answers to the prompts of test rows, without canaries, compared with the rows'
responses. A series arrives as one checkpoint a stage, ``NAME@1``, ``NAME@2`` ...;
stage ``t`` was trained on the ``t``-th task of the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np

from spark_audit.audits.base import Audit, Context, Plan, Tables
from spark_audit.audits.metric import Metric
from spark_audit.audits.utility.series import (
    Series,
    all_series,
    answer_evidence,
    asked_rows,
    check_order,
    contrast_finding,
    finding,
    tasks_in_order,
)
from spark_audit.errors import InputError, choose
from spark_audit.manifest.items import labels_key, task_labels
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY, series_of
from spark_audit.results import AuditResult, Contrast, Estimate, Finding, Guard, Row
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.answers import normalised, stripped
from spark_audit.scoring.table import Pass
from spark_audit.stats.accuracy import (
    LEVELS,
    Answers,
    accuracy_difference,
    accuracy_estimate,
    cluster_shares,
    matrix_of,
    task_weights,
)
from spark_audit.stats.bootstrap import sign_flip, weighted_sums
from spark_audit.stats.intervals import rate_estimate
from spark_audit.stats.power import with_mde
from spark_audit.stats.weights import Weights, draw_in_strata
from spark_audit.terminal.flags import Flag

SCORERS = ("normalised", "strict", "likelihood")
_share = partial(Metric, bounds=(0.0, 1.0))
METRICS = (
    _share("last", learned=1, missing=("",), glance=("",), headline=("",)),
    _share("avg", missing=("",)),
    Metric("bwt", missing=("",)),
    Metric("forgetting", missing=("",)),
    _share("learning_accuracy", missing=("",)),
    _share("accuracy", rate=True, variants=(ANY,)),
)
COMPARED = ("last", "avg", "bwt")
BIASED = (
    "uses the best of several noisy accuracies, so it is above 0 even if nothing is "
    "forgotten"
)


@dataclass(frozen=True, kw_only=True)
class Utility(Audit):
    """Task accuracy after every stage: Last, Avg, BWT, forgetting.

    The evidence is one row per checkpoint (a stage of a series) and test row, without
    text. The default order is that in which tasks first appear in the manifest; the
    command line reads the order from the runs of ``spark-train``.
    """

    name = "utility"
    metrics = METRICS
    unscored = "no answer of this checkpoint was scored"
    over = "over test rows"
    chance = True
    of_series = True
    public = ("accuracy_matrix",)

    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None
    scorer: Annotated[str, Flag("how an answer is scored", choices=SCORERS)] = (
        "normalised"
    )

    def __post_init__(self) -> None:
        if self.scorer not in SCORERS:
            raise InputError(
                f"{self.scorer!r} is unknown",
                where="--scorer",
                fix=choose(self.scorer, SCORERS),
            )
        check_order(self.order)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Test rows of the order's tasks without a canary that have a response."""
        asked, _ = asked_rows(
            manifest, tasks_in_order(manifest, self.order), self.scorer
        )
        ids = sorted(example.id for example in asked)
        if not ids:
            return {}
        if self.scorer == "likelihood":
            return {Pass("candidates"): [labels_key(key) for key in ids]}
        return {Pass("generate"): ids}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        tasks = tasks_in_order(manifest, self.order)
        evidence = answer_evidence(tables, manifest, tasks, self.scorer)
        of_stages = len(set(map(series_of, tables))) < len(tables)
        facts = {
            "order": tasks,
            "assumed": self.order is None and of_stages and len(tasks) > 1,
            "scorer": self.scorer,
            **_label_facts(manifest, tasks, self.scorer),
        }
        return replace(evidence, facts=facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
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
            answers = series.answers()
            rows += _rows(name, series, answers, draws(answers), context)
            matrices += _matrix_records(name, series, answers)
        for name, series in every.items():
            other = context.baselines.get(name)
            if other in every:
                names = (name, str(other))
                contrasts += _contrasts(
                    names, series, every[str(other)], draws, context
                )
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

    def why_nothing(self, manifest: Manifest) -> str:
        """Why no task has a question."""
        reasons = asked_rows(
            manifest, tasks_in_order(manifest, self.order), self.scorer
        )[1]
        return "; ".join(f"{task} {text}" for task, text in reasons.items())


class _Draws:
    """Resampled sums, over the same questions in the same resamples for all series."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._weights: dict[bytes, Weights] = {}

    def __call__(self, *sides: Answers) -> np.ndarray:
        strata = sides[0].strata()
        key = strata.tobytes()
        if key not in self._weights:
            self._weights[key] = draw_in_strata(
                strata, replicates=self._context.replicates, seed=self._context.seed
            )
        sums = np.concatenate([side.sums for side in sides], axis=1)
        return weighted_sums(self._weights[key], sums)


def _rows(
    name: str, series: Series, answers: Answers, drawn: np.ndarray, context: Context
) -> list[Row]:
    columns: dict[str, Any] = {"audit": "utility", "checkpoint": name}
    rows = []
    for metric in (each.name for each in METRICS if "" in each.variants):
        reason = series.reason(metric)
        null: float | None = 0.0 if metric == "bwt" else None
        if reason is not None:
            estimate = Estimate.missing(reason)
        else:
            estimate = with_mde(accuracy_estimate(answers, metric, drawn=drawn))
        if reason is None and metric in LEVELS:
            null = float(task_weights(metric, len(series.tasks)) @ series.chance)
        if metric == "forgetting" and estimate.value is not None:
            estimate = estimate.noting(BIASED)
        rows.append(
            Row.of_estimate(
                estimate.decided(paper=context.paper),
                metric=metric,
                null=null,
                **columns,
            )
        )
    rates = matrix_of(drawn, answers.shape)
    for t, stage in enumerate(series.stages):
        for i, task in enumerate(series.tasks):
            chance: float | None = None
            if task in series.reasons:
                estimate = Estimate.missing(f"{task} {series.reasons[task]}")
            else:
                chance = float(series.chance[i])
                estimate = rate_estimate(
                    answers.correct[:, t, i],
                    answers.trials[:, i],
                    replicates=rates[:, t, i],
                )
                estimate = with_mde(estimate)
            rows.append(
                Row.of_estimate(
                    estimate.decided(paper=context.paper),
                    metric="accuracy",
                    of=str(stage),
                    group=f"task:{task}",
                    null=chance,
                    **columns,
                )
            )
    return rows


def _contrasts(
    names: tuple[str, str],
    ours: Series,
    theirs: Series,
    draws: _Draws,
    context: Context,
) -> list[Contrast]:
    """Last, Avg and BWT minus the baseline's, over the questions that both answered."""
    columns: dict[str, Any] = {
        "audit": "utility",
        "checkpoint": names[0],
        "baseline": names[1],
        "null": 0.0,
    }
    shared = sorted(set(ours.examples) & set(theirs.examples))
    same = (ours.tasks, ours.scorer) == (theirs.tasks, theirs.scorer)
    first, second = ours.answers(shared), theirs.answers(shared)
    rows = []
    for metric in COMPARED:
        reasons = [series.reason(metric) for series in (ours, theirs)]
        reason = next((text for text in reasons if text is not None), None)
        if not same:
            reason = (
                "the two differ in their tasks, in the order of tasks, or in the scorer"
            )
        if reason is not None:
            estimate, p = Estimate.missing(reason), None
        else:
            drawn = draws(first, second)
            estimate = accuracy_difference(first, second, metric, drawn=drawn)
            p = (
                _p(first, second, metric, context.seed)
                if estimate.value is not None
                else None
            )
        estimate = with_mde(estimate, null=0.0).decided(paper=context.paper)
        rows.append(Contrast.of_estimate(estimate, metric=metric, p=p, **columns))
    return rows


def _p(ours: Answers, theirs: Answers, metric: str, seed: int) -> float | None:
    """Sign-flip test over sources; none where fewer than two of them differ."""
    apart = cluster_shares(ours, metric) - cluster_shares(theirs, metric)
    # Shares are quotients: what is no difference must not count as one.
    apart[np.abs(apart) < 1e-12] = 0.0
    return float(sign_flip(apart, seed=seed)) if np.count_nonzero(apart) > 1 else None


def _matrix_records(
    name: str, series: Series, answers: Answers
) -> list[dict[str, Any]]:
    """The matrix R: a record a stage, a field a task."""
    matrix = answers.matrix()
    whole = len(series.stages) == len(series.tasks)
    records = []
    for t, stage in enumerate(series.stages):
        record: dict[str, Any] = {"checkpoint": name, "stage": stage}
        if whole:
            record["after"] = series.tasks[t]
        for i, task in enumerate(series.tasks):
            known = task not in series.reasons
            record[task] = float(matrix[t, i]) if known else None
        records.append(record)
    return records


# --- guards -----------------------------------------------------------------


def _label_facts(
    manifest: Manifest, tasks: Sequence[str], scorer: str
) -> dict[str, Any]:
    """Tasks with labels that the scorer cannot tell apart; rows that were not asked."""
    labels = task_labels(manifest)
    clash = [
        task
        for task in tasks
        if scorer == "normalised"
        and len({normalised(s) for s in labels.get(task, ())})
        < len({stripped(s) for s in labels.get(task, ())})
    ]
    blank = sum(
        example.split == "test"
        and example.task in tasks
        and not example.response.strip()
        for example in manifest.examples
    )
    return {"clash": clash, "blank": blank}


def _label_guards(facts: Mapping[str, Any]) -> list[Guard]:
    """What the scorer cannot tell apart, rows not asked, an order not given."""
    found = []
    for name, says, told in (
        ("distinct labels", "distinct_labels", {"tasks": facts["clash"]}),
        ("responses", "responses", {"rows": facts["blank"]}),
        ("order of tasks", "order", {"tasks": facts["order"] * facts["assumed"]}),
    ):
        if any(told.values()):
            says = f"guard.{says}"
            found.append(Guard(name=name, passed=None, says=says, facts=told))
    return found


def _empty_guards(evidence: Evidence) -> list[Guard]:
    """Checkpoints (stages of a series) that mostly answered nothing."""
    made = []
    for i, name in enumerate(evidence.checkpoints):
        asked = evidence.values["correct"][i] >= 0
        empty = int(evidence.values["empty"][i][asked].sum())
        if 2 * empty > asked.sum():
            made.append(
                Guard(
                    name="empty answers",
                    checkpoint=name,
                    passed=None,
                    says="guard.empty_answers",
                    facts={"empty": empty, "answers": int(asked.sum())},
                )
            )
    return made
