"""When what was remembered and when forgotten: memory by stage and task of a series.

The contrast is that of ``matched``: change of the NLL of identifiers in trained rows
since the reference, minus that of identifiers of the same kinds in rows of the *same
task* that were never trained on, which formats and drift move alike. It is exploratory,
and corrected over all stages and tasks of a report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import pandas as pd

from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, guard
from spark_audit.audits.claims import LEVEL
from spark_audit.audits.identifier_facts import identifier_facts, string_of
from spark_audit.audits.spans import Sums, audited_spans, plan_of_identifiers
from spark_audit.audits.stages.stage_cells import (
    BySeries,
    Cell,
    Found,
    Key,
    State,
    all_series,
    cells_of,
)
from spark_audit.audits.task_accuracy import UNORDERED, check_order, places_of_tasks
from spark_audit.data.occurrences import standing
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY
from spark_audit.results import AuditResult, Claim, Estimate, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.memory_contrast import claim_of

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
        """Rows, findings and guards of every series, and the state of each task."""
        found, every = Found(), all_series(evidence)
        for name, series in every.items():
            for task, stage, cell in cells_of(series):
                found.cells[name, task, stage] = cell
        found.conclude()
        whole = {n: BySeries.of(s, without=found.apart(n)) for n, s in every.items()}
        at_once = {name: one for name, one in whole.items() if one is not None}
        names = list(dict.fromkeys(key[0] for key in found.cells))
        rows = [row for key, cell in found.cells.items() for row in _rows(key, cell)]
        by_place = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
        findings, guards = [], []
        for name in names:
            findings += [
                remembered(name, found, by_place),
                likelier(name, found, by_place),
            ]
            guards += guards_of(name, found)
        findings += by_series(at_once, rows)
        return AuditResult(
            rows=rows,
            guards=guards,
            findings=findings,
            tables={"stages_states": [_record(key, found) for key in found.states]},
        )


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


# --- findings, rows, and a table ------------------------------------------------------


Told: TypeAlias = "Mapping[tuple[str, str, str, str], Row]"


def _when(states: Mapping[int, State], place: int) -> tuple[str, list[str]]:
    """From when to when a task's identifiers were remembered: a key, and stages."""
    held = [stage for stage, state in states.items() if state == "remembered"]
    last = max(states)
    every = [stage for stage in states if held[0] <= stage <= held[-1]]
    if held[-1] == last and held == every:
        return ("own", []) if held[0] == place else ("from", [str(held[0])])
    if held == every and len(held) > 1:
        key, stages = "range", [str(held[0]), str(held[-1])]
    else:
        key, stages = "at", [str(stage) for stage in held]
    if held[-1] == last:
        return key, stages
    lost = [s for s, state in states.items() if s > held[-1] and state == "forgotten"]
    if lost:
        return f"{key}_forgotten", [*stages, str(lost[0])]
    end = next(stage for stage in states if stage > held[-1])
    return f"{key}_ended", [*stages, str(end)]


def remembered(name: str, series: Found, rows: Told) -> Finding:
    """What is remembered of a series from when to when."""
    cells = series.of(name)
    tested = [k for k in cells if series.states[k] != "not yet trained"]
    estimable = [key for key in tested if series.states[key] != "not estimable"]
    if not estimable:
        notes = [c.own.difference.note for c in cells.values()]
        reasons = list(dict.fromkeys(filter(None, notes)))
        return Finding.not_tested(
            "stages", "stages.missing", checkpoint=name, reasons=reasons
        )
    by_task: dict[str, dict[int, State]] = defaultdict(dict)
    for _, task, stage in tested:
        by_task[task][stage] = series.states[name, task, stage]
    whens: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for task, states in by_task.items():
        if "remembered" in states.values():
            place = cells[name, task, max(states)].place
            key, stages = _when(states, place)
            whens[key, *stages].append(task)
    if not whens:
        row = rows[name, "memory", str(max(key[2] for key in estimable)), "pooled"]
        return Finding.on(row, "nothing_shown", "stages.nothing", facts={"memory": row})
    shown = [key for key in estimable if series.states[key] == "remembered"]
    # The latest stage is what is left now; of its tasks the one remembered most.
    best = min(shown, key=lambda k: (-k[2], cells[k].own.difference.value or 0.0))
    row = rows[name, "memory", str(best[2]), f"task:{best[1]}"]
    facts: dict[str, Any] = {
        "tasks": list(whens.values()),
        "periods": [list(when) for when in whens],
    }
    facts |= {"memory": row, "task": best[1], "stage": best[2]}
    facts |= {"p": series.late[best], "tests": len(series.late)}
    return Finding.on(
        row, "moved", "stages.remembered", facts=facts, p_adjusted=series.late[best]
    )


def likelier(name: str, series: Found, rows: Told) -> Finding:
    """Whether a later stage made identifiers of an earlier task likelier again."""
    cells = series.of(name)
    steps = {key: p for key, p in series.steps.items() if key[0] == name}
    if not steps:
        ordered = any(cell.place for cell in cells.values())
        reason = "no task can be followed beyond its stage" if ordered else UNORDERED
        return Finding.not_tested(
            "stages", "stages.no_steps", checkpoint=name, reason=reason
        )
    again = [key for key in steps if key in series.again]
    best = min(again or steps, key=lambda key: cells[key].step.difference.value or 0.0)
    row = rows[name, "step", str(best[2]), f"task:{best[1]}"]
    facts: dict[str, Any] = {"step": row, "task": best[1], "stage": best[2]}
    facts |= {"p": steps[best], "tests": len(series.steps)}
    facts["tasks"] = [task for _, task, _ in again]
    facts["stages"] = [str(stage) for _, _, stage in again]
    says = "stages.again" if again else "stages.not_again"
    claim: Claim = "moved" if again else "nothing_shown"
    return Finding.on(row, claim, says, facts=facts, p_adjusted=steps[best])


def guards_of(name: str, series: Found) -> list[Guard]:
    """The contrast where nothing can be remembered: before a task was trained on."""
    early = [k for k, c in series.of(name).items() if k[2] < c.place]
    tested = [key for key in early if key in series.early]
    if not tested:
        return []
    apart = sorted(series.apart(name))
    facts: dict[str, Any] = {"figures": len(tested), "tasks": apart}
    passed = None if apart else True
    name_of = "tasks not yet trained on"
    return [guard(name_of, "early_tasks", facts, passed=passed, checkpoint=name)]


def by_series(found: Mapping[str, BySeries], rows: list[Row]) -> list[Finding]:
    """Whether all stages at once show more memory than the last one; adds the rows."""
    adjusted = holm_by_key({name: one.gain.t_p() for name, one in found.items()})
    findings = []
    for name, one in found.items():
        band = {"null_low": -one.reach, "null_high": one.reach}
        made = (one.best, "by_series", band), (one.last, "by_last", band)
        shown = [
            Stages.row(own.difference, name, f"memory_{metric}", null=0.0, **more)
            for own, metric, more in (*made, (one.gain, "gain", {}))
        ]
        rows += shown
        facts: dict[str, Any] = {"series": shown[0], "last": shown[1], "gain": shown[2]}
        if name not in adjusted:
            continue
        p, gain, best = adjusted[name], facts["gain"], facts["series"]
        found_by = claim_of(best) == "memory"
        adds = p < LEVEL and gain.value < 0 and found_by
        facts |= {"p": p, "tests": len(adjusted)}
        says = "stages.series_adds" if adds else "stages.series_adds_nothing"
        claim: Claim = "moved" if adds else "nothing_shown"
        findings.append(Finding.on(gain, claim, says, facts=facts, p_adjusted=p))
    return findings


FEWEST_TOLD = 3
"""Clusters of a figure whose p is told."""


def _rows(key: Key, cell: Cell) -> list[Row]:
    name, task, stage = key

    def row(metric: str, estimate: Estimate, reach: float) -> Row:
        band = {"null": 0.0, "null_low": -reach, "null_high": reach}
        group = f"task:{task}" if task else "pooled"
        return Stages.row(estimate, name, metric, str(stage), group=group, **band)

    made = [row("memory", cell.own.difference, cell.reach)]
    # Nothing stands before the first stage but the reference.
    if task and stage > 1:
        made.append(row("step", cell.step.difference, cell.gap))
    return made


def _record(key: Key, found: Found) -> dict[str, Any]:
    """A line of the table: all but the figures, which are rows."""
    cell = found.cells[key]
    clusters = cell.own.difference.clusters
    ps = ((found.late | found.early).get(key), found.steps.get(key))
    shown = [p if clusters >= FEWEST_TOLD else None for p in ps]
    return {
        "checkpoint": key[0],
        "task": key[1],
        "stage": key[2],
        "trained_at": cell.place or None,
        "state": found.states[key],
        "p_adjusted": shown[0],
        "likelier_again": key in found.again,
        "step_p_adjusted": shown[1],
        "clusters": clusters,
    }
