"""When what was remembered and when forgotten: memory by stage and task of a series.

The contrast is that of ``matched``: change of the NLL of identifiers in trained rows
since the reference, minus that of identifiers of the same kinds in rows of the *same
task* that were never trained on, which formats and drift move alike. It is exploratory,
and corrected over all stages and tasks of a report.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated

import pandas as pd

from spark_audit.audits.base import Audit, Context, Plan, Tables
from spark_audit.audits.identifier_facts import identifier_facts, string_of
from spark_audit.audits.metric import Metric
from spark_audit.audits.spans import Sums, audited_spans, plan_of_identifiers
from spark_audit.audits.utility.series import check_order, places_of_tasks
from spark_audit.data.occurrences import standing
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY
from spark_audit.results import AuditResult
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass

METRICS = (
    Metric("memory", "nats", learned=-1, variants=(ANY,)),
    Metric("step", "nats", variants=(ANY,)),
    Metric("memory_by_series", "nats", learned=-1),
    Metric("memory_by_last", "nats", learned=-1),
    Metric("memory_gain", "nats"),
)


@dataclass(frozen=True, kw_only=True)
class Stages(Audit):
    """Memory by stage and task of a series: learned, kept or forgotten.

    The evidence is one row per stage and identifier. ``place`` is the stage that
    trained on its task; 0 if the order of tasks is not known, because none was given or
    it is not as long as the series. ``elsewhere`` counts the other tasks whose trained
    rows contain the same string.
    """

    name = "stages"
    metrics = METRICS
    # A report without a series has nothing of it, and says nothing.
    nothing = ""
    unscored = ""
    alone = "no series of several stages was given"
    over = "over the tasks trained on so far"
    of_series = True
    public = ("stages_states",)
    memory = True
    claims = False

    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None

    def __post_init__(self) -> None:
        check_order(self.order)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        return plan_of_identifiers(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        places = places_of_tasks(tables, manifest, self.order)
        if not places:
            return Evidence()
        spans = _spans(manifest)
        at = tuple(spans[name].to_numpy() for name in ("index", "start", "n_tokens"))
        units = spans.drop(columns="index")
        units["ref_sum"] = Sums.of_reference(manifest)(*at)

        def measured() -> Measured:
            for name, own in places.items():
                sums = Sums.of_table(manifest, tables[name][Pass()])(*at)
                yield name, {"nll_sum": sums, "place": units["task"].map(own).fillna(0)}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        from spark_audit.audits.stages.stage_findings import conclude

        del context
        return conclude(evidence)


def _spans(manifest: Manifest) -> pd.DataFrame:
    """Every audited identifier, without scores."""
    facts, holders = identifier_facts(manifest), _holders(manifest)
    records = [
        {
            "index": i,
            "example": example.id,
            "cluster": example.cluster,
            "task": example.task,
            "split": split,
            "type": span.type,
            "start": tokens[0],
            "n_tokens": tokens[1] - tokens[0],
            **vars(facts[example.id, span.start, span.end]),
            "elsewhere": len(holders[string_of(example, span)] - {example.task}),
        }
        for split in ("train", "test")
        for i, example, ranges in audited_spans(manifest, split=split)
        for span, tokens in example.identifiers
        if tokens in ranges
    ]
    return pd.DataFrame.from_records(records)


def _holders(manifest: Manifest) -> dict[str, set[str]]:
    """Identifier -> the tasks whose trained rows hold it, annotated there or not."""
    own = [{string_of(row, span) for span in row.spans} for row in manifest.examples]
    read = [row.text * (row.split == "train") for row in manifest.examples]
    found: dict[str, set[str]] = defaultdict(set)
    stood = standing(read, set[str]().union(*own))
    for row, strings, there in zip(manifest.examples, own, stood, strict=True):
        if row.split == "train":
            for string in strings | there:
                found[string].add(row.task)
    return found
