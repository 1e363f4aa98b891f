"""How well a checkpoint solves its tasks, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias

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
from spark_audit.results import AuditResult, Contrast, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
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

COMPARED = ("last", "avg", "bwt")
"""Metrics that two series are compared by."""

ASKED_OTHERWISE = (
    "the two differ in their tasks, in the order of tasks, or in the scorer"
)

BIASED = (
    "uses the best of several noisy accuracies, so it is above 0 even if nothing is "
    "forgotten"
)

RANGE_OF_SHARE = (0.0, 1.0)
"""Range of an accuracy."""

SMALLEST_DIFFERENCE = 1e-12
"""Shares are quotients: what differs by less does not differ."""


class Question(NamedTuple):
    """A test row that is asked, or a task without one: columns of the evidence.

    Attributes
    ----------
    example
        Id of the row; empty: the task has no question.
    answer
        The right one, as the scorer compares it; None: no question.
    reason
        Why a task has no question.
    """

    example: str
    task: str
    cluster: str
    answer: str | None
    reason: str


class Asked(NamedTuple):
    """The tasks in order, the rows that are asked, and why a task has none."""

    tasks: list[str]
    rows: list[ManifestExample]
    reasons: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class OfSeries(Audit):
    """An audit of all stages of a series, each trained on the next of some tasks."""

    of_series = True

    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None

    def __post_init__(self) -> None:
        tasks = listed(self.order)
        if self.order is None:
            return
        if not all(tasks) or len(set(tasks)) < len(tasks):
            raise InputError(
                "names a task twice, or has an empty name",
                where="--order",
                fix="write t1,t2,...",
            )

    def places(self, tables: Tables, manifest: Manifest) -> dict[str, dict[str, int]]:
        """Map each stage to the stage that trained on each task, by task.

        No task has a place where the order is not given, or is not as long as the
        series. Series of a single stage are left out.
        """
        # Refuses an order of tasks that the manifest does not have.
        tasks_in_order(manifest, self.order)
        stage_of_task = {task: k for k, task in enumerate(listed(self.order), start=1)}

        stage_of: dict[str, int] = {}
        for name, passes in tables.items():
            if Pass() not in passes:
                continue
            parsed = CheckpointName.parse(name)
            if parsed.stage and not parsed.derived:
                stage_of[name] = parsed.stage

        places: dict[str, dict[str, int]] = {}
        for stages in grouped(stage_of, series_of).values():
            if len(stages) < 2:
                continue
            is_whole = {stage_of[name] for name in stages} == {*stage_of_task.values()}
            for name in stages:
                places[name] = stage_of_task if is_whole else {}
        return places


@dataclass(frozen=True, kw_only=True)
class Utility(OfSeries):
    """Task accuracy after every stage: Last, Avg, BWT, forgetting.

    The evidence is one row per checkpoint (a stage of a series) and test row, without
    text. The default order is that in which tasks first appear in the manifest; the
    command line reads the order from the runs of ``spark-train``.
    """

    name = "utility"
    metrics = (
        Metric(
            "last",
            bounds=RANGE_OF_SHARE,
            learned=1,
            missing=("",),
            glance=("",),
            headline=("",),
        ),
        Metric("avg", bounds=RANGE_OF_SHARE, missing=("",)),
        Metric("bwt", missing=("",)),
        Metric("forgetting", missing=("",)),
        Metric("learning_accuracy", bounds=RANGE_OF_SHARE, missing=("",)),
        Metric("accuracy", bounds=RANGE_OF_SHARE, rate=True, variants=(ANY_NAME,)),
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
        """Return True: answers are counted, of tasks and not of people."""
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
        """Return test rows of the order's tasks that have a response and no canary."""
        ids = sorted(row.id for row in self._asked(manifest).rows)
        if not ids:
            return {}
        if self.scorer == "likelihood":
            return {Pass("candidates"): [key_of("labels", key) for key in ids]}
        return {Pass("generate"): ids}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return one unit per question, and one per task without any.

        Facts of the evidence: the ``order`` of tasks, whether it is ``assumed``, the
        ``scorer``, tasks whose labels it cannot tell apart (``clash``), and how many
        test rows have no response (``blank``).
        """
        asked = self._asked(manifest)
        labels = task_labels(manifest)
        compare = normalised if self.scorer == "normalised" else str.strip
        is_by_likelihood = self.scorer == "likelihood"
        wanted = Pass("candidates" if is_by_likelihood else "generate")
        n_asked = len(asked.rows)

        def measured() -> Measured:
            n_units = len(asked.rows) + len(asked.reasons)
            for name, table in scored(tables, wanted):
                correct = np.full(n_units, -1.0)  # 1, 0, or -1: not asked
                empty = np.zeros(n_units)
                if is_by_likelihood:
                    correct[:n_asked] = _right_by_likelihood(table, asked.rows, labels)
                else:
                    answers = _answers(table, asked.rows, self.scorer)
                    correct[:n_asked] = answers.is_right
                    empty[:n_asked] = answers.is_empty
                yield name, {"correct": correct, "empty": empty}

        is_series = len({series_of(name) for name in tables}) < len(tables)
        facts = {
            "order": asked.tasks,
            "assumed": self.order is None and is_series and len(asked.tasks) > 1,
            "scorer": self.scorer,
            "clash": _tasks_with_like_labels(asked.tasks, labels, compare),
            "blank": _n_without_response(manifest, asked.tasks),
        }
        return Evidence.of(self._units(asked, compare), measured(), facts)

    def _units(self, asked: Asked, compare: Callable[[str], str]) -> pd.DataFrame:
        """Return the questions with their ``chance``, ``scorer`` and task's ``place``.

        ``chance`` is the share of the most common response of the task.
        """
        questions = [
            Question(row.id, row.task, row.cluster, compare(row.answer), "")
            for row in asked.rows
        ]
        questions += [
            Question("", task, "", None, reason)
            for task, reason in asked.reasons.items()
        ]
        units = pd.DataFrame(questions, columns=[*Question._fields])

        shares = units.groupby("task")["answer"].value_counts(normalize=True)
        chance_of_task = shares.groupby("task").max()
        place_of_task = {task: i for i, task in enumerate(asked.tasks)}
        chance = units["task"].map(chance_of_task).fillna(0.0)
        units = units.rename(columns={"answer": "chance"})
        return units.assign(
            chance=chance, scorer=self.scorer, place=units["task"].map(place_of_task)
        )

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows, contrasts and findings; names are those of series."""
        series_by_name = dict(all_series(evidence))

        @cache
        def weights(codes: tuple[int, ...]) -> Weights:
            """Return the resamples of clusters in these strata, drawn once."""
            return draw_in_strata(
                np.array(codes), replicates=context.replicates, seed=context.seed
            )

        def draws(*sides: accuracy_intervals.Answers) -> np.ndarray:
            """Return sums in the same resamples of questions for all series."""
            sums = np.concatenate([side.sums for side in sides], axis=1)
            return weights(tuple(sides[0].strata())).totals(sums)

        rows: list[Row] = []
        contrasts: list[Contrast] = []
        findings: list[Finding] = []
        matrices: list[dict[str, Any]] = []
        for name, series in series_by_name.items():
            rows_of_series = [*_rows(name, series, draws, paper=context.paper)]
            findings.append(finding(series, rows_of_series))
            rows += rows_of_series
            matrices += _matrix_records(name, series)

        for name, baseline in context.baselines.items():
            if name in series_by_name and baseline in series_by_name:
                contrasts += _contrasts(
                    (name, baseline), series_by_name, draws, context
                )
        for contrast in contrasts:
            if contrast.metric == "last":
                direction = contrast.direction(up="higher", down="lower")
                change_finding = Finding.on(
                    contrast,
                    "moved",
                    f"utility.change_{direction}",
                    facts={"change": contrast},
                )
                findings.append(change_finding)
        if not series_by_name:
            findings = [_nothing_finding(evidence.units)]

        settings = {
            "order": ",".join(evidence.facts["order"]),
            "scorer": evidence.facts["scorer"],
        }
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=[*_guards(evidence.facts), *_empty_answer_guards(evidence)],
            findings=findings,
            tables={"accuracy_matrix": matrices} if matrices else {},
            settings=settings,
        )

    def why_nothing(self, manifest: Manifest) -> str:
        """Return why no task has a question."""
        reasons = self._asked(manifest).reasons
        return "; ".join(f"{task} {text}" for task, text in reasons.items())

    def _asked(self, manifest: Manifest) -> Asked:
        """Return the rows that are asked: those of tasks in order, a task at a time."""
        tasks = tasks_in_order(manifest, self.order)
        rows_by_task: dict[str, list[ManifestExample]] = {}
        for row in manifest.examples:
            is_question = row.answer.strip() and row.response_token > 0
            if row.split == "test" and row.canary_id is None and is_question:
                rows_by_task.setdefault(row.task, []).append(row)

        labels: Mapping[str, Sequence[str]] | None = None
        if self.scorer == "likelihood":
            labels = task_labels(manifest)

        asked: list[ManifestExample] = []
        reasons: dict[str, str] = {}
        for task in tasks:
            # A label that is empty cannot be compared with others.
            has_labels = labels is None or all(
                label.strip() for label in labels.get(task, [""])
            )
            if not has_labels:
                reasons[task] = NO_LABELS
            elif task not in rows_by_task:
                reasons[task] = NO_TEST_ROW
            else:
                asked += rows_by_task[task]
        return Asked(tasks, asked, reasons)


class ScoredAnswers(NamedTuple):
    """Answers of a checkpoint, shape ``(questions,)`` each, bool."""

    is_right: np.ndarray
    is_empty: np.ndarray


def _answers(
    table: TokenTable, rows: Sequence[ManifestExample], scorer: str
) -> ScoredAnswers:
    """Return which generated answers are right, and which are wrong and empty."""
    places = [table.rows(row.id).start for row in rows]
    is_right = table.columns[scorer][places] > 0.5
    n_tokens = table.columns["n_tokens"][places]
    stop = table.columns["stop"][places]

    # It stopped at once: no token, or a newline and nothing more.
    has_stopped = (n_tokens == 0) | ((n_tokens == 1) & (stop == NEWLINE))
    return ScoredAnswers(is_right, has_stopped & ~is_right)


def _right_by_likelihood(
    table: TokenTable,
    rows: Sequence[ManifestExample],
    labels: Mapping[str, Sequence[str]],
) -> list[bool]:
    """Return whether the likeliest label of each row's task is its answer."""
    is_right = []
    for row in rows:
        nll = table.columns["nll_sum"][table.rows(key_of("labels", row.id))]
        likeliest = labels[row.task][int(nll.argmin())]
        is_right.append(likeliest.strip() == row.answer.strip())
    return is_right


def _tasks_with_like_labels(
    tasks: Sequence[str],
    labels: Mapping[str, Sequence[str]],
    compare: Callable[[str], str],
) -> list[str]:
    """Return the tasks with labels that the scorer cannot tell apart."""
    clashing = []
    for task in tasks:
        distinct = {label.strip() for label in labels.get(task, ())}
        compared = {compare(label) for label in distinct}
        if len(compared) < len(distinct):
            clashing.append(task)
    return clashing


def _n_without_response(manifest: Manifest, tasks: Sequence[str]) -> int:
    """Count the test rows of some tasks that have no response."""
    n = 0
    for row in manifest.examples:
        n += row.split == "test" and row.task in tasks and not row.answer.strip()
    return n


def _nothing_finding(units: pd.DataFrame) -> Finding:
    """Return that no series has an answer: why each task has none.

    Parameters
    ----------
    units
        Columns ``task`` and ``reason``.
    """
    pairs = units[["task", "reason"]].itertuples(index=False)
    tasks = list(dict.fromkeys(f"{task} {reason}" for task, reason in pairs))
    says = "utility.nothing" if tasks else "utility.nothing_scored"
    return Finding.not_tested("utility", says, tasks=tasks)


def _guards(facts: Mapping[str, Any]) -> Iterator[Guard]:
    """Yield warnings on labels, on rows without a response, and on the order."""
    if facts["clash"]:
        yield guard("distinct labels", "distinct_labels", {"tasks": facts["clash"]})
    if facts["blank"]:
        yield guard("responses", "responses", {"rows": facts["blank"]})
    if facts["assumed"]:
        yield guard("order of tasks", "order", {"tasks": facts["order"]})


def _empty_answer_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield a warning on each checkpoint that mostly answered nothing."""
    is_answered = evidence.values["correct"] >= 0  # (checkpoints, questions)
    is_empty = (evidence.values["empty"] > 0) & is_answered
    n_answers = is_answered.sum(axis=1).tolist()
    n_empty = is_empty.sum(axis=1).tolist()
    for name, empty, answers in zip(
        evidence.checkpoints, n_empty, n_answers, strict=True
    ):
        if 2 * empty > answers:
            yield guard(
                "empty answers",
                "empty_answers",
                {"empty": empty, "answers": answers},
                checkpoint=name,
            )


def tasks_in_order(manifest: Manifest, order: str | None) -> list[str]:
    """Return the tasks as they were trained; default: as they stand in the manifest.

    Tasks that a given order leaves out are not asked.

    Raises
    ------
    InputError
        If the order names a task that the manifest does not have.
    """
    tasks = list(dict.fromkeys(example.task for example in manifest.examples))
    if order is None:
        return tasks

    ordered = listed(order)
    for task in ordered:
        one_of(task, "--order", tasks)
    return ordered


def listed(order: str | None) -> list[str]:
    """Return the tasks of an order as it is given: names between commas."""
    if order is None:
        return []
    return [task.strip() for task in order.split(",")]


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
        """Return sums by cluster, over some of the examples; None: over all."""
        is_used = np.ones(len(self.rows), bool)
        if keep is not None:
            is_used = self.rows["example"].isin(keep).to_numpy()
        rows = self.rows[is_used]
        return accuracy_intervals.Answers.of_rows(
            self.correct[is_used],
            self.tasks.index.get_indexer(pd.Index(rows["task"])),
            rows["code"].to_numpy(),
            n_tasks=len(self.tasks),
            n_clusters=self.n_clusters,
        )

    def reason(self, metric: str) -> str | None:
        """Return why a figure over tasks and stages has no value; None: it has one."""
        unasked = self.tasks["reason"][self.tasks["reason"] != ""]
        if len(unasked):
            return "; ".join(f"{task} {reason}" for task, reason in unasked.items())

        n_stages = len(self.stages)
        has_gaps = self.stages != list(range(1, n_stages + 1))
        if metric != "last" and n_stages > 1 and has_gaps:
            stages = ", ".join(str(stage) for stage in self.stages)
            return f"only the stages {stages} were scored"
        return accuracy.reason_against(metric, stages=n_stages, tasks=len(self.tasks))


def all_series(evidence: Evidence) -> Iterator[tuple[str, Series]]:
    """Yield every series with the questions that all of its stages answered."""
    units = evidence.units
    correct = evidence.values["correct"]  # (checkpoints, questions)
    is_answered = correct >= 0

    # Clusters of questions that anybody answered, numbered alike for all series.
    clusters = units["cluster"].where(np.any(is_answered, axis=0))
    codes, labels = pd.factorize(clusters, sort=True)

    places: dict[str, dict[int, int]] = {}
    for i, checkpoint in enumerate(evidence.checkpoints):
        series = series_of(checkpoint)
        stage: int | None = None
        if series != checkpoint:
            stage = CheckpointName.parse(checkpoint).stage
        # A single checkpoint is the first stage of a series.
        places.setdefault(series, {}).setdefault(stage or 1, i)

    for series, place_of_stage in places.items():
        stages = sorted(place_of_stage)
        checkpoints = [place_of_stage[stage] for stage in stages]
        if not is_answered[checkpoints].any():
            continue

        answered_by_all = np.flatnonzero(is_answered[checkpoints].all(axis=0))
        first_place = next(iter(place_of_stage.values()))
        is_known = ~np.isnan(correct[first_place])
        tasks = units[is_known].drop_duplicates("task").sort_values("place")
        yield (
            series,
            Series(
                stages=stages,
                tasks=tasks.set_index("task"),
                rows=units.assign(code=codes).iloc[answered_by_all],
                correct=correct[checkpoints][:, answered_by_all].T,
                n_clusters=len(labels),
            ),
        )


def finding(series: Series, rows: Sequence[Row]) -> Finding:
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


Drawer: TypeAlias = Callable[..., np.ndarray]
"""Resampled sums of one series' answers, or of two."""


def _rows(name: str, series: Series, draws: Drawer, *, paper: bool) -> Iterator[Row]:
    """Yield the metrics over all tasks, then the accuracy of each task and stage.

    Parameters
    ----------
    paper
        Whether percentile intervals decide.
    """
    answers = series.answers()
    totals = draws(answers)  # resampled sums
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
        yield Utility.row(estimate.decided(paper=paper), name, metric, null=null)

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
            yield Utility.row(
                estimate,
                name,
                "accuracy",
                str(stage),
                group=f"task:{task}",
                null=chance,
            )


def _contrasts(
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
    shared = set(first.rows["example"]) & set(second.rows["example"])
    sides = first.answers(shared), second.answers(shared)
    is_asked_alike = first.tasks[["scorer"]].equals(second.tasks[["scorer"]])

    for metric in COMPARED:
        reason = first.reason(metric) or second.reason(metric)
        if not is_asked_alike:
            reason = ASKED_OTHERWISE
        estimate = Estimate.missing(reason or "")
        if reason is None:
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
    shares = accuracy_intervals.cluster_shares(first, metric)
    shares_of_baseline = accuracy_intervals.cluster_shares(second, metric)
    differences = shares - shares_of_baseline
    return np.where(np.abs(differences) < SMALLEST_DIFFERENCE, 0.0, differences)


def _matrix_records(name: str, series: Series) -> Iterator[dict[str, Any]]:
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
