"""Task accuracy after every stage: Last, Avg, BWT, forgetting.

Greedy answers to the prompts of test rows, without canaries, compared with the rows'
responses. A series arrives as one checkpoint a stage, ``NAME@1``, ``NAME@2`` ...;
stage ``t`` was trained on the ``t``-th task of the order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, guard
from spark_audit.errors import InputError, choose
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.manifest.sequences import labels_key, task_labels
from spark_audit.names import ANY, CheckpointName, series_of
from spark_audit.results import (
    AuditResult,
    Contrast,
    Estimate,
    Finding,
    Guard,
    Row,
    side_of,
)
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.items import normalised
from spark_audit.scoring.table import Pass, TokenTable
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
from spark_audit.stats.bootstrap import draw_in_strata, sign_flip, weighted_sums
from spark_audit.stats.intervals import rate_estimate
from spark_audit.stats.power import with_mde

NEWLINE = 1
"""The code of the column ``stop`` for an answer that a newline ended."""
UNORDERED = (
    "it is not known which task each stage was trained on: give --order with one task "
    "per stage"
)
NO_ROWS = "has no test row without a canary"
NO_LABELS = "has no set of labels for the scorer `likelihood`"
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
    scorer: Annotated[str, f"how an answer is scored: {', '.join(SCORERS)}"] = (
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
        """One unit per question; per task without one a unit with the ``reason``."""
        tasks, scorer = tasks_in_order(manifest, self.order), self.scorer
        asked, reasons = asked_rows(manifest, tasks, scorer)
        place = {task: i for i, task in enumerate(tasks)}
        chance, labels = _chance(asked, scorer), task_labels(manifest)
        wanted = Pass("candidates" if scorer == "likelihood" else "generate")
        units = pd.DataFrame.from_records(
            [
                *((x.id, x.task, x.cluster, chance[x.task], "") for x in asked),
                *(("", task, "", 0.0, reason) for task, reason in reasons.items()),
            ],
            columns=["example", "task", "cluster", "chance", "reason"],
        )
        units = units.assign(scorer=scorer, place=units["task"].map(place))

        def measured() -> Measured:
            for name, passes in tables.items():
                if (table := passes.get(wanted)) is None:
                    continue
                correct, empty = np.full(len(units), -1.0), np.zeros(len(units))
                for i, example in enumerate(asked):
                    if scorer == "likelihood":
                        correct[i] = _likeliest(table, example, labels[example.task])
                        continue
                    correct[i] = table.columns[scorer][table.rows(example.id)][0] > 0.5
                    empty[i] = not correct[i] and _empty(table, example)
                yield name, {"correct": correct, "empty": empty}

        of_stages = len(set(map(series_of, tables))) < len(tables)
        facts = {
            "order": tasks,
            "assumed": self.order is None and of_stages and len(tasks) > 1,
            "scorer": scorer,
            **_label_facts(manifest, tasks, scorer),
        }
        return Evidence.of(units, measured(), facts)

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
            rows += _rows(name, series, draws)
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

    def why_nothing(self, manifest: Manifest) -> str:
        """Why no task has a question."""
        reasons = asked_rows(
            manifest, tasks_in_order(manifest, self.order), self.scorer
        )[1]
        return "; ".join(f"{task} {text}" for task, text in reasons.items())


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
        < len({s.strip() for s in labels.get(task, ())})
    ]
    blank = sum(
        example.split == "test"
        and example.task in tasks
        and not example.response.strip()
        for example in manifest.examples
    )
    return {"clash": clash, "blank": blank}


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
        if task not in known:
            raise InputError(
                f"{task!r} is not a task of the manifest",
                where="--order",
                fix=f"its tasks are: {', '.join(known)}",
            )
    return named


def check_order(order: str | None) -> None:
    """Refuse an order that repeats a task or leaves one empty."""
    named = listed(order)
    if order is not None and (not all(named) or len(set(named)) < len(named)):
        raise InputError(
            "names a task twice, or has an empty name",
            where="--order",
            fix="write t1,t2,...",
        )


def listed(order: str | None) -> list[str]:
    """The tasks of an order as it is given: names between commas."""
    return [] if order is None else [task.strip() for task in order.split(",")]


def places_of_tasks(
    tables: Tables, manifest: Manifest, order: str | None
) -> dict[str, dict[str, int]]:
    """Each stage of a series of several -> task -> the stage that trained on it.

    No task has a place where the order is not given, or is not as long as the series.
    """
    if order is not None:
        tasks_in_order(manifest, order)
    places = {task: k for k, task in enumerate(listed(order), start=1)}
    stages: dict[str, dict[str, int]] = defaultdict(dict)
    for name, passes in tables.items():
        one = CheckpointName.parse(name)
        if Pass() in passes and one.stage is not None and not one.derived:
            stages[series_of(name)][name] = one.stage
    return {
        name: places if {*own.values()} == {*places.values()} else {}
        for own in stages.values()
        if len(own) > 1
        for name in own
    }


def asked_rows(
    manifest: Manifest, tasks: Sequence[str], scorer: str
) -> tuple[list[ManifestExample], dict[str, str]]:
    """The rows that are asked, and why a task has none."""
    labels = task_labels(manifest) if scorer == "likelihood" else None
    found, reasons = [], {}
    for task in tasks:
        if labels is not None and not all(s.strip() for s in labels.get(task, [""])):
            reasons[task] = NO_LABELS
            continue
        rows = [
            example
            for example in manifest.examples
            if example.task == task
            and example.split == "test"
            and example.canary_id is None
            and example.response.strip()
            and example.response_token > 0
        ]
        found += rows
        if not rows:
            reasons[task] = NO_ROWS
    return found, reasons


def _likeliest(
    table: TokenTable, example: ManifestExample, labels: Sequence[str]
) -> bool:
    nll = table.columns["nll_sum"][table.rows(labels_key(example.id))]
    return labels[int(nll.argmin())].strip() == example.response.strip()


def _empty(table: TokenTable, example: ManifestExample) -> bool:
    """Whether the answer stopped at once: no token, or a newline and nothing more."""
    row = table.rows(example.id).start
    tokens, stop = (int(table.columns[name][row]) for name in ("n_tokens", "stop"))
    return tokens == 0 or (tokens == 1 and stop == NEWLINE)


def _chance(asked: Sequence[ManifestExample], scorer: str) -> dict[str, float]:
    """Share of the commonest response of each task."""
    same = normalised if scorer == "normalised" else str.strip
    counts: dict[str, Counter[str]] = {}
    for example in asked:
        counts.setdefault(example.task, Counter())[same(example.response)] += 1
    return {task: max(count.values()) / count.total() for task, count in counts.items()}


# --- accuracies of series of checkpoints, contrasts, findings -------------------------


COMPARED = ("last", "avg", "bwt")
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
        options = {"replicates": context.replicates, "seed": context.seed}
        self._weights = cache(lambda codes: draw_in_strata(np.array(codes), **options))

    def __call__(self, *sides: Answers) -> np.ndarray:
        sums = np.concatenate([side.sums for side in sides], axis=1)
        return weighted_sums(self._weights(tuple(sides[0].strata())), sums)


def _rows(name: str, series: Series, draws: _Draws) -> Iterator[Row]:
    answers, paper = series.answers(), draws.context.paper
    drawn = draws(answers)
    row = partial(Row.of_estimate, audit="utility", checkpoint=name)
    for metric in (each.name for each in METRICS if "" in each.variants):
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
