"""Task accuracy after every stage: Last, Avg, BWT, forgetting.

Greedy answers to the prompts of test rows, without canaries, compared with the rows'
responses. A series arrives as one checkpoint a stage, ``NAME@1``, ``NAME@2`` ...;
stage ``t`` was trained on the ``t``-th task of the order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Plan, Tables
from spark_audit.audits.metric import Metric
from spark_audit.audits.utility.accuracy_rows import conclude
from spark_audit.errors import InputError, choose
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.manifest.sequences import labels_key, task_labels
from spark_audit.names import ANY, CheckpointName, series_of
from spark_audit.results import AuditResult
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.answers import normalised, stripped
from spark_audit.scoring.table import Pass, TokenTable

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
        return conclude(evidence, context, METRICS)

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
        < len({stripped(s) for s in labels.get(task, ())})
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
    return stripped(labels[int(nll.argmin())]) == stripped(example.response)


def _empty(table: TokenTable, example: ManifestExample) -> bool:
    """Whether the answer stopped at once: no token, or a newline and nothing more."""
    row = table.rows(example.id).start
    tokens, stop = (int(table.columns[name][row]) for name in ("n_tokens", "stop"))
    return tokens == 0 or (tokens == 1 and stop == NEWLINE)


def _chance(asked: Sequence[ManifestExample], scorer: str) -> dict[str, float]:
    """Share of the commonest response of each task."""
    same = normalised if scorer == "normalised" else stripped
    counts: dict[str, Counter[str]] = {}
    for example in asked:
        counts.setdefault(example.task, Counter())[same(example.response)] += 1
    return {task: max(count.values()) / count.total() for task, count in counts.items()}
