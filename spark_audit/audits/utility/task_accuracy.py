"""Task accuracy after every stage: Last, Avg, BWT, forgetting.

Greedy answers to the prompts of test rows, without canaries, compared with the rows'
responses. A series arrives as one checkpoint a stage, ``NAME@1``, ``NAME@2`` ...;
stage ``t`` was trained on the ``t``-th task of the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from spark_audit.audits.base import Audit, Context, Plan, Tables
from spark_audit.audits.metric import Metric
from spark_audit.audits.utility.series import (
    answer_evidence,
    asked_rows,
    check_order,
    tasks_in_order,
)
from spark_audit.errors import InputError, choose
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import labels_key, task_labels
from spark_audit.names import ANY, series_of
from spark_audit.results import AuditResult
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.answers import normalised, stripped
from spark_audit.scoring.table import Pass

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
        from spark_audit.audits.utility.accuracy_rows import conclude

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
