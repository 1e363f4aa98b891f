"""How well a checkpoint solves its tasks, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, product
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
    guard,
    scored,
)
from spark_audit.errors import InputError, one_of
from spark_audit.manifest.encodings import key_of, task_labels
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import ANY_NAME, CheckpointName, series_of
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.rows import grouped
from spark_audit.scoring.answers import normalised
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats import accuracy, accuracy_intervals
from spark_audit.stats.bootstrap import Weights, draw_in_strata, sign_flip
from spark_audit.stats.estimate import Estimate, side_of
from spark_audit.stats.intervals import rate_estimate
from spark_audit.stats.power import with_mde

NEWLINE = 1
"""The code of the column ``stop`` for an answer that a newline ended."""

UNORDERED = (
    "it is not known which task each stage was trained on: give --order with one task "
    "per stage"
)

NO_TEST_ROW = "has no test row without a canary"

NO_LABELS = "has no set of labels for the scorer `likelihood`"

SCORERS = ("normalised", "strict", "likelihood")

_share = partial(Metric, bounds=(0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class OfSeries(Audit):
    """An audit of all stages of a series, each trained on the next of some tasks."""

    of_series = True

    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None

    def __post_init__(self) -> None:
        named = listed(self.order)
        if self.order is not None and (not all(named) or len({*named}) < len(named)):
            wrong = "names a task twice, or has an empty name"
            raise InputError(wrong, where="--order", fix="write t1,t2,...")

    def places(self, tables: Tables, manifest: Manifest) -> dict[str, dict[str, int]]:
        """Each stage of a series of several -> task -> the stage that trained on it.

        No task has a place where the order is not given, or is not as long as the
        series.
        """
        tasks_in_order(manifest, self.order)
        places = {task: k for k, task in enumerate(listed(self.order), start=1)}
        parts = {
            name: CheckpointName.parse(name)
            for name, passes in tables.items()
            if Pass() in passes
        }
        staged = [n for n, one in parts.items() if one.stage and not one.derived]
        return {
            name: places if {parts[n].stage for n in own} == {*places.values()} else {}
            for own in grouped(staged, series_of).values()
            if len(own) > 1
            for name in own
        }


@dataclass(frozen=True, kw_only=True)
class Utility(OfSeries):
    """Task accuracy after every stage: Last, Avg, BWT, forgetting.

    The evidence is one row per checkpoint (a stage of a series) and test row, without
    text. The default order is that in which tasks first appear in the manifest; the
    command line reads the order from the runs of ``spark-train``.
    """

    name = "utility"
    metrics = (
        _share("last", learned=1, missing=("",), glance=("",), headline=("",)),
        _share("avg", missing=("",)),
        Metric("bwt", missing=("",)),
        Metric("forgetting", missing=("",)),
        _share("learning_accuracy", missing=("",)),
        _share("accuracy", rate=True, variants=(ANY_NAME,)),
    )
    unscored = "no answer of this checkpoint was scored"
    over = "over test rows"
    chance = True
    voided_by_setup = False
    table_rules = {"accuracy_matrix": "digits"}
    latex = (
        LatexColumn("BWT ↑", "bwt", counted="answers"),
        LatexColumn("Last ↑", "last", counted="answers"),
        LatexColumn("Avg ↑", "avg", counted="answers"),
    )
    latex_place = 1
    example = "utility --ckpt runs/mine --data data/test.jsonl"

    scorer: Annotated[str, f"how an answer is scored: {', '.join(SCORERS)}"] = (
        "normalised"
    )

    def __post_init__(self) -> None:
        one_of(self.scorer, "--scorer", SCORERS)
        super().__post_init__()

    @classmethod
    def is_of_nobody(cls, unit: str) -> bool:
        """Answers are counted, of tasks and not of people."""
        return True

    @classmethod
    def latex_columns(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Sequence[LatexColumn]:
        """Return a column per task with its last accuracy, then the others."""
        tasks = dict.fromkeys(
            row.grouping[1] for row in rows if row.metric == "accuracy"
        )
        of_tasks = [
            LatexColumn(task, "accuracy", "last", "answers", f"task:{task}")
            for task in tasks
            if task
        ]
        return [*of_tasks, *cls.latex]

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Test rows of the order's tasks without a canary that have a response."""
        ids = sorted(example.id for example in self._asked(manifest)[1])
        if not ids:
            return {}
        if self.scorer == "likelihood":
            return {Pass("candidates"): [key_of("labels", key) for key in ids]}
        return {Pass("generate"): ids}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """One unit per question; per task without one a unit with the ``reason``."""
        tasks, asked, reasons = self._asked(manifest)
        scorer, labels = self.scorer, task_labels(manifest)
        same = normalised if scorer == "normalised" else str.strip
        records: list[tuple[Any, ...]]
        records = [(x.id, x.task, x.cluster, same(x.answer), "") for x in asked]
        records += [("", task, "", None, reason) for task, reason in reasons.items()]
        columns = ["example", "task", "cluster", "chance", "reason"]
        units = pd.DataFrame.from_records(records, columns=columns)
        # By always giving the commonest response.
        said = units.groupby("task")["chance"].value_counts(normalize=True)
        chance = units["task"].map(said.groupby("task").max()).fillna(0.0)
        place = units["task"].map({task: i for i, task in enumerate(tasks)})
        units = units.assign(chance=chance, scorer=scorer, place=place)
        wanted = Pass("candidates" if scorer == "likelihood" else "generate")

        def likeliest(table: TokenTable, example: ManifestExample) -> str:
            nll = table.columns["nll_sum"][table.rows(key_of("labels", example.id))]
            return labels[example.task][int(nll.argmin())].strip()

        def measured() -> Measured:
            for name, table in scored(tables, wanted):
                correct, empty = np.full(len(units), -1.0), np.zeros(len(units))
                if scorer == "likelihood":
                    hits = [likeliest(table, x) == x.answer.strip() for x in asked]
                    correct[: len(asked)] = hits
                else:
                    at = [table.rows(x.id).start for x in asked]
                    names = (scorer, "n_tokens", "stop")
                    right, tokens, stop = (table.columns[k][at] for k in names)
                    correct[: len(asked)] = right > 0.5
                    # It stopped at once: no token, or a newline and nothing more.
                    nothing = (tokens == 0) | ((tokens == 1) & (stop == NEWLINE))
                    empty[: len(asked)] = nothing & (right <= 0.5)
                yield name, {"correct": correct, "empty": empty}

        # Labels that the scorer cannot tell apart, and rows that are not asked.
        known = {task: {*map(str.strip, labels.get(task, ()))} for task in tasks}
        clash = [k for k, own in known.items() if len({*map(same, own)}) < len(own)]
        rows = (row for row in manifest.examples if row.split == "test")
        blank = sum(row.task in tasks and not row.answer.strip() for row in rows)
        of_stages = len(set(map(series_of, tables))) < len(tables)
        assumed = self.order is None and of_stages and len(tasks) > 1
        facts = {"order": tasks, "assumed": assumed, "scorer": scorer}
        facts |= {"clash": clash, "blank": blank}
        return Evidence.of(units, measured(), facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Rows, contrasts and findings; names are those of series."""
        every = dict(all_series(evidence))

        @cache
        def weights(codes: tuple[int, ...]) -> Weights:
            """Return the resamples of clusters in these strata, drawn once."""
            return draw_in_strata(
                np.array(codes), replicates=context.replicates, seed=context.seed
            )

        def draws(*sides: accuracy_intervals.Answers) -> np.ndarray:
            """Sums in the same resamples of the same questions for all series."""
            sums = np.concatenate([side.sums for side in sides], axis=1)
            return weights(tuple(sides[0].strata())).totals(sums)

        rows, contrasts, findings = list[Row](), list[Contrast](), list[Finding]()
        for name, series in every.items():
            own = [*_rows(name, series, draws, paper=context.paper)]
            findings.append(finding(series, own))
            rows += own
        for names in context.baselines.items():
            if {*names} <= {*every}:
                contrasts += _contrasts(names, every, draws, context)
        for row in contrasts:
            if row.metric == "last":
                says = f"utility.change_{row.direction(up='higher', down='lower')}"
                findings.append(Finding.on(row, "moved", says, facts={"change": row}))
        if not every:
            units = evidence.units[["task", "reason"]].itertuples(index=False)
            tasks = list(dict.fromkeys(f"{task} {reason}" for task, reason in units))
            says = "utility.nothing" if tasks else "utility.nothing_scored"
            findings = [Finding.not_tested("utility", says, tasks=tasks)]
        matrices = [r for item in every.items() for r in _matrix_records(*item)]
        facts = evidence.facts
        guards = []
        if facts["clash"]:
            guards.append(
                guard("distinct labels", "distinct_labels", {"tasks": facts["clash"]})
            )
        if facts["blank"]:
            guards.append(guard("responses", "responses", {"rows": facts["blank"]}))
        if facts["assumed"]:
            guards.append(guard("order of tasks", "order", {"tasks": facts["order"]}))

        answered = evidence.values["correct"] >= 0
        empty = (evidence.values["empty"] > 0) & answered
        counts = pd.DataFrame(index=list(evidence.checkpoints))
        counts["empty"], counts["answers"] = empty.sum(axis=1), answered.sum(axis=1)
        # Checkpoints (stages of a series) that mostly answered nothing.
        mute: dict[Any, Any] = counts[
            2 * counts["empty"] > counts["answers"]
        ].T.to_dict()
        for checkpoint, facts_of_answers in mute.items():
            empty_guard = guard(
                "empty answers",
                "empty_answers",
                facts_of_answers,
                checkpoint=checkpoint,
            )
            guards.append(empty_guard)
        settings = {"order": ",".join(facts["order"]), "scorer": facts["scorer"]}
        tables = {"accuracy_matrix": matrices} if matrices else {}
        return AuditResult(rows, contrasts, guards, findings, tables, settings)

    def why_nothing(self, manifest: Manifest) -> str:
        """Why no task has a question."""
        reasons = self._asked(manifest)[2]
        return "; ".join(f"{task} {text}" for task, text in reasons.items())

    def _asked(
        self, manifest: Manifest
    ) -> tuple[list[str], list[ManifestExample], dict[str, str]]:
        """The tasks in order, the rows that are asked, and why a task has none."""
        tasks = tasks_in_order(manifest, self.order)
        labels = task_labels(manifest) if self.scorer == "likelihood" else None
        rows = [
            row
            for row in manifest.examples
            if row.split == "test"
            and row.canary_id is None
            and row.answer.strip()
            and row.response_token > 0
        ]
        by_task, reasons = grouped(rows, lambda row: row.task), dict[str, str]()
        for task in tasks:
            if labels is not None and not all(map(str.strip, labels.get(task, [""]))):
                reasons[task] = NO_LABELS
            elif task not in by_task:
                reasons[task] = NO_TEST_ROW
        asked = [by_task[task] for task in tasks if task not in reasons]
        return tasks, [*chain.from_iterable(asked)], reasons


def tasks_in_order(manifest: Manifest, order: str | None) -> list[str]:
    """The tasks as they were trained; default: as they first appear in the manifest.

    Tasks that a given order leaves out are not asked.

    Raises
    ------
    InputError
        If the order names a task that the manifest does not have.
    """
    known = list(dict.fromkeys(example.task for example in manifest.examples))
    if order is None:
        return known
    named = listed(order)
    for task in named:
        one_of(task, "--order", known)
    return named


def listed(order: str | None) -> list[str]:
    """The tasks of an order as it is given: names between commas."""
    return [] if order is None else [task.strip() for task in order.split(",")]


COMPARED = ("last", "avg", "bwt")

ASKED_OTHERWISE = (
    "the two differ in their tasks, in the order of tasks, or in the scorer"
)

BIASED = (
    "uses the best of several noisy accuracies, so it is above 0 even if nothing is "
    "forgotten"
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

    def answers(
        self, keep: Collection[str] | None = None
    ) -> accuracy_intervals.Answers:
        """Sums by cluster, over some of the examples."""
        every = self.rows["example"]
        kept = every.isin(every if keep is None else keep).to_numpy()
        rows = self.rows[kept]
        return accuracy_intervals.Answers.of_rows(
            self.correct[kept],
            self.tasks.index.get_indexer(pd.Index(rows["task"])),
            rows["code"].to_numpy(),
            n_tasks=len(self.tasks),
            n_clusters=self.n_clusters,
        )

    def reason(self, metric: str) -> str | None:
        """Why a figure over tasks and stages has no value."""
        unasked = self.tasks["reason"][self.tasks["reason"] != ""]
        if len(unasked):
            return "; ".join(f"{task} {reason}" for task, reason in unasked.items())
        stages = len(self.stages)
        gaps = self.stages != list(range(1, stages + 1))
        if metric != "last" and stages > 1 and gaps:
            return f"only the stages {', '.join(map(str, self.stages))} were scored"
        return accuracy.reason_against(metric, stages=stages, tasks=len(self.tasks))


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


def finding(series: Series, rows: Sequence[Row]) -> Finding:
    """How good a series' answers are after its last stage, and what was forgotten."""
    by_metric = {row.metric: row for row in rows if row.group == "pooled"}
    last, bwt = by_metric["last"], by_metric["bwt"]
    if last.value is None:
        facts: dict[str, Any] = {"reason": last.note}
        return Finding.on(last, "not_tested", "utility.missing", facts=facts)
    side = None if last.null is None else side_of(last, last.null)
    against = {None: "unknown", -1: "worse", 0: "not_shown", 1: "known"}
    ways = {None: "no_interval", 0: "not_detected", -1: "forgotten", 1: "gained"}
    facts = {
        "accuracy": last,
        "tasks": len(series.tasks),
        "against_null": against[side],
        "transfer": bwt,
        "transfer_is": "missing" if bwt.value is None else ways[side_of(bwt)],
    }
    further = []
    if last.null is not None:
        further.append("utility.common_response")
    if side in (-1, 0):
        further.append(f"utility.null_{against[side]}")
    further.append(f"utility.transfer_{facts['transfer_is']}")
    says = (
        "utility.accuracy" if len(series.tasks) > 1 else "utility.accuracy_of_one_task"
    )
    return Finding.on(last, "moved", says, facts=facts, further=further)


Drawer: TypeAlias = Callable[..., np.ndarray]
"""Resampled sums of one series' answers, or of two."""


def _rows(name: str, series: Series, draws: Drawer, *, paper: bool) -> Iterator[Row]:
    answers, tasks = series.answers(), series.tasks
    drawn, chances = draws(answers), tasks["chance"].to_numpy(np.float64)
    for metric in accuracy.ACCURACY_METRICS:
        null: float | None = 0.0 if metric == "bwt" else None
        if (reason := series.reason(metric)) is not None:
            estimate = Estimate.missing(reason)
        else:
            found = accuracy_intervals.accuracy_estimate(answers, metric, drawn=drawn)
            estimate = with_mde(found)
            if metric in accuracy.LEVEL_METRICS:
                null = float(accuracy.task_weights(metric, len(tasks)) @ chances)
            if metric == "forgetting" and estimate.value is not None:
                estimate = estimate.noting(BIASED)
        yield Utility.row(estimate.decided(paper=paper), name, metric, null=null)
    rates = accuracy_intervals.matrix_of(drawn, answers.shape)
    for (t, stage), (i, task) in product(
        enumerate(series.stages), enumerate(tasks.index)
    ):
        chance: float | None = None
        if reason := tasks["reason"].iloc[i]:
            estimate = Estimate.missing(f"{task} {reason}")
        else:
            counts = answers.correct[:, t, i], answers.trials[:, i]
            found = rate_estimate(*counts, replicates=rates[:, t, i])
            estimate = with_mde(found).decided(paper=paper)
            chance = float(chances[i])
        yield Utility.row(
            estimate, name, "accuracy", str(stage), group=f"task:{task}", null=chance
        )


def _contrasts(
    names: tuple[str, str], every: Mapping[str, Series], draws: Drawer, context: Context
) -> Iterator[Contrast]:
    """Last, Avg and BWT minus the baseline's, over the questions that both answered."""
    ours, theirs = (every[name] for name in names)
    shared = {*ours.rows["example"]} & {*theirs.rows["example"]}
    alike = ours.tasks[["scorer"]].equals(theirs.tasks[["scorer"]])
    sides = ours.answers(shared), theirs.answers(shared)
    checkpoint, baseline = names
    for metric in COMPARED:
        reason, p = ours.reason(metric) or theirs.reason(metric), None
        if not alike:
            reason = ASKED_OTHERWISE
        if reason is None:
            estimate = accuracy_intervals.accuracy_difference(
                *sides, metric, drawn=draws(*sides)
            )
        else:
            estimate = Estimate.missing(reason)
        if estimate.value is not None:
            one, other = (
                accuracy_intervals.cluster_shares(side, metric) for side in sides
            )
            # Shares are quotients: what is no difference must not count as one.
            apart = np.where(np.abs(one - other) < 1e-12, 0.0, one - other)
            if np.count_nonzero(apart) > 1:
                p = sign_flip(apart, seed=context.seed)
        shown = with_mde(estimate, null=0.0).decided(paper=context.paper)
        yield Contrast.of_estimate(
            shown,
            audit="utility",
            checkpoint=checkpoint,
            baseline=baseline,
            metric=metric,
            null=0.0,
            p=p,
        )


def _matrix_records(name: str, series: Series) -> Iterator[dict[str, Any]]:
    """The matrix R: a record a stage, a field a task."""
    tasks, asked = series.tasks.index, series.tasks["reason"] == ""
    for t, shares in enumerate(series.answers().matrix()):
        record: dict[str, Any] = {"checkpoint": name, "stage": series.stages[t]}
        if len(series.stages) == len(tasks):
            record["after"] = tasks[t]
        known = zip(tasks, shares.tolist(), asked, strict=True)
        yield record | {task: share if one else None for task, share, one in known}
