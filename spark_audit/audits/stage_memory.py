"""When what was remembered and when forgotten: memory by stage and task of a series.

The contrast is that of ``matched``: change of the NLL of identifiers in trained rows
since the reference, minus that of identifiers of the same kinds in rows of the *same
task* that were never trained on, which formats and drift move alike. It is exploratory,
and corrected over all stages and tasks of a report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, guard
from spark_audit.audits.claims import LEVEL
from spark_audit.audits.identifier_facts import identifier_facts, sides_of
from spark_audit.audits.matched.changes import unequal
from spark_audit.audits.spans import Sums, audited_spans, plan_of_identifiers
from spark_audit.audits.task_accuracy import UNORDERED, check_order, places_of_tasks
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY, CheckpointName
from spark_audit.results import AuditResult, Claim, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.memory_contrast import Memory, Sides, claim_of, memory

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
        every = all_series(evidence)
        cells = judged([c for name, one in every.items() for c in cells_of(name, one)])
        rows = [cell.row("memory") for cell in cells]
        # Nothing stands before the first stage but the reference.
        rows += [cell.row("step") for cell in cells if cell.task and cell.stage > 1]
        findings, guards, gains = list[Finding](), list[Guard](), dict[str, Gain]()
        for name, series in every.items():
            own = [cell for cell in cells if cell.series == name]
            findings += [remembered(name, own, cells), likelier(name, own, cells)]
            early = [cell for cell in own if cell.task and cell.stage < cell.place]
            apart = sorted({c.task for c in early if c.p is not None and c.p < LEVEL})
            if tested := sum(cell.p is not None for cell in early):
                facts: dict[str, Any] = {"figures": tested, "tasks": apart}
                passed = None if apart else True
                what = "tasks not yet trained on", "early_tasks", facts
                guards.append(guard(*what, passed=passed, checkpoint=name))
            if (gain := gain_of(name, series, without=apart)) is not None:
                gains[name] = gain
        rows += [row for gain in gains.values() for row in gain.rows]
        ordered = sorted((c for c in cells if c.task), key=lambda cell: cell.stage)
        return AuditResult(
            rows=rows,
            guards=guards,
            findings=[*findings, *gain_findings(gains)],
            tables={"stages_states": [_record(cell) for cell in ordered]},
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
    find = finder(set[str]().union(*own))
    found: dict[str, set[str]] = defaultdict(set)
    for row, strings in zip(manifest.examples, own, strict=True):
        if row.split == "train":
            for string in strings | find(folded(row.text)):
                found[string].add(row.task)
    return found


# --- memory of each task after each stage ---------------------------------------------


State = Literal[
    "not yet trained",
    "remembered",
    "forgotten",
    "not shown",
    "less likely",
    "confounded",
    "not estimable",
]


@dataclass(frozen=True, eq=False)
class Cell:
    """One task (empty: all of them) of a series after one stage.

    Attributes
    ----------
    place
        Stage that trained the task, 0 if unknown.
    own, step
        Memory, and its change by the stage.
    reach, gap
        What the two sides were apart before, nats: less is no evidence.
    since
        P of no rise since the stage at which the task was remembered most, over all
        stages that could have been that.
    p, step_p
        Two-sided, of no memory and of no change of it, each adjusted over the tasks of
        a report (:func:`judged`). None: not tested.
    again
        Whether the stage, a later one than its own, made the task's likelier again.
    """

    series: str
    task: str
    stage: int
    place: int
    own: Memory
    step: Memory
    reach: float = 0.0
    gap: float = 0.0
    since: float = 1.0
    p: float | None = None
    step_p: float | None = None
    state: State = "not estimable"
    again: bool = False

    def row(self, metric: Literal["memory", "step"]) -> Row:
        """A figure of it."""
        found, reach = self.own, self.reach
        if metric == "step":
            found, reach = self.step, self.gap
        band = {"null": 0.0, "null_low": -reach, "null_high": reach}
        group, of = f"task:{self.task}" if self.task else "pooled", str(self.stage)
        return Stages.row(
            found.difference, self.series, metric, of, group=group, **band
        )


def judged(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with p adjusted over all single tasks, and each one's state.

    What was before a task was trained on is corrected apart from what is since, and so
    are rises since the lowest, and steps by later stages.
    """
    single = [cell for cell in cells if cell.task]
    early = [cell for cell in single if cell.stage < cell.place]
    late = [cell for cell in single if cell.stage >= cell.place]
    followed = [cell for cell in late if 0 < cell.place < cell.stage]
    ps = {
        cell: p
        for part in (early, late)
        for cell, p in holm_by_key({c: c.own.t_p(null=c.reach) for c in part}).items()
    }
    risen = holm_by_key({cell: cell.since for cell in late})
    steps = holm_by_key({cell: cell.step.t_p(null=cell.gap) for cell in followed})
    apart = {(c.series, c.task) for c in early if ps.get(c, 1.0) < LEVEL}
    seen: set[tuple[str, str]] = set()
    found: dict[Cell, Cell] = {}
    for cell in sorted(single, key=lambda cell: cell.stage):
        who, p = (cell.series, cell.task), ps.get(cell)
        value = cell.own.difference.value
        state: State = "not shown"
        if cell.stage < cell.place:
            state = "not yet trained"
        elif p is None or value is None:
            state = "not estimable"
        elif who in apart:
            state = "confounded"
        elif p < LEVEL:
            state = "remembered" if value < 0 else "less likely"
        elif who in seen and risen[cell] < LEVEL:
            state = "forgotten"
        if state == "remembered":
            seen.add(who)
        # Likelier by themselves, and beyond those never trained on.
        fell = cell.step.trained.high
        fell_beyond = (cell.step.difference.value or 0) < 0
        again = fell is not None and fell < 0 and fell_beyond and who not in apart
        found[cell] = replace(
            cell,
            p=p,
            step_p=steps.get(cell),
            state=state,
            again=again and steps.get(cell, 1.0) < LEVEL,
        )
    return [found.get(cell, cell) for cell in cells]


@dataclass(frozen=True)
class Series:
    """Spans of one series, and by stage their summed NLL, nats; of seeds the mean.

    ``spans`` has the stage that trained on the span's task as ``place``.
    """

    spans: pd.DataFrame
    nll: Mapping[int, np.ndarray]


def all_series(evidence: Evidence) -> dict[str, Series]:
    """The series by name, each with the stages that all of its seeds have reached."""
    members: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, name in enumerate(evidence.checkpoints):
        parts = CheckpointName.parse(name)
        members[parts.method][parts.stage or 1].append(i)
    sums, places = (evidence.values[name] for name in ("nll_sum", "place"))
    series = {}
    for method, stages in members.items():
        most = max(map(len, stages.values()))
        whole = {k: at for k, at in sorted(stages.items()) if len(at) == most}
        place = places[next(iter(whole.values()))[0]].astype(int)
        series[method] = Series(
            evidence.units.assign(place=place),
            {stage: np.mean(sums[at], axis=0) for stage, at in whole.items()},
        )
    return series


def cells_of(name: str, series: Series) -> Iterator[Cell]:
    """Every task stage after stage, and all that were trained on so far."""
    spans = series.spans
    usable = _usable(spans)
    tasks, places = (spans[column].to_numpy() for column in ("task", "place"))
    for task in sorted(set(tasks)):
        chosen = usable & (tasks == task)
        held = {stage: sums[chosen] for stage, sums in series.nll.items()}
        head = name, task, int(places[tasks == task][0])
        yield from _course(*head, spans[chosen], held)
    for stage, sums in series.nll.items():
        chosen = usable & (places <= stage)
        own, before = spans[chosen], spans["ref_sum"].to_numpy()[chosen]
        moved, apart = _contrast(_sides(own), sums[chosen], before)
        yield Cell(name, "", stage, 0, moved, Memory.missing("only per task"), apart)


def _usable(spans: pd.DataFrame) -> np.ndarray:
    """Identifiers of one task alone, trained or held out, that have a control."""
    alone = (spans["split"] == "train") & (spans["elsewhere"] == 0)
    either = alone | ((spans["split"] == "test") & (spans["dose"] == 0))
    # Where text alone tells the sides apart, one is no control for the other.
    return np.asarray(either & (spans["stratum"] >= 0))


def _sides(spans: pd.DataFrame) -> Sides | None:
    return sides_of(spans) if len(spans) else None


def _contrast(
    sides: Sides | None, sums: np.ndarray, before: np.ndarray
) -> tuple[Memory, float]:
    """Change of trained beyond never trained, and what they were clearly apart before.

    Parameters
    ----------
    sums, before
        Summed NLL of each span, nats, and the one that it is compared with.
    """
    if sides is None:
        return Memory.missing(
            "its rows contain no identifier that occurs in this task only"
        ), 0.0
    return memory(sums - before, sides), unequal(memory(before, sides).difference)


def _course(
    name: str, task: str, place: int, spans: pd.DataFrame, nll: Mapping[int, np.ndarray]
) -> Iterator[Cell]:
    """A task's cells, stage after stage."""
    sides, reference = _sides(spans), spans["ref_sum"].to_numpy()
    least: dict[int, float] = {}
    held = 0.0
    for stage, sums in nll.items():
        own, reach = _contrast(sides, sums, reference)
        step, gap = Memory.missing("the previous stage was not scored"), 0.0
        if (before := nll.get(stage - 1)) is not None:
            step, gap = _contrast(sides, sums, before)
            # Memory is known better than the level: what was luck is paired away.
            gap = max(gap, held)
        since = 1.0
        if least and sides is not None and own.difference.value is not None:
            peak = min(least, key=lambda one: least[one])
            rose = memory(sums - nll[peak], sides)
            # The lowest of several is low by luck too: each could have been it.
            p = rose.t_p()
            if p is not None and (rose.difference.value or 0.0) > 0:
                since = min(1.0, len(least) * p)
        yield Cell(name, task, stage, place, own, step, reach, gap, since)
        held = unequal(own.difference)
        if own.difference.value is not None and stage >= place:
            least[stage] = own.difference.value


# --- memory by all stages at once -----------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """What all stages at once show beyond the last one.

    ``rows`` are memory by the series, by its last stage, and the gain; ``p`` is
    two-sided, of no gain.
    """

    rows: tuple[Row, Row, Row]
    p: float | None


def gain_of(name: str, series: Series, *, without: Collection[str]) -> Gain | None:
    """The gain over all tasks; ``None`` if none has a place, or of a single stage.

    Who has every stage sees an identifier at the stage that knew it best since its own
    task; held-out identifiers of the task take the best of the same stages.

    Parameters
    ----------
    without
        Tasks whose sides differed before they were trained on.
    """
    spans, stages = series.spans, np.array([*series.nll])[:, None]
    trained = (spans["place"] > 0) & ~spans["task"].isin([*without])
    chosen = _usable(spans) & trained.to_numpy()
    own = spans[chosen]
    if len(stages) < 2 or own.empty:
        return None
    # More stages have seen the tasks that came first: each is compared by itself.
    strata = own.assign(stratum=own.groupby(["task", "stratum"]).ngroup())
    sides, before = _sides(strata), own["ref_sum"].to_numpy()
    sums = np.stack([nll[chosen] for nll in series.nll.values()])
    seen = np.where(stages >= own["place"].to_numpy(), sums, np.inf).min(axis=0)
    last, reach = _contrast(sides, sums[-1], before)
    best, _ = _contrast(sides, seen, before)
    gain, _ = _contrast(sides, seen, sums[-1])
    band: dict[str, Any] = {"null": 0.0, "null_low": -reach, "null_high": reach}
    rows = (
        Stages.row(best.difference, name, "memory_by_series", **band),
        Stages.row(last.difference, name, "memory_by_last", **band),
        Stages.row(gain.difference, name, "memory_gain", null=0.0),
    )
    return Gain(rows, gain.t_p())


def gain_findings(gains: Mapping[str, Gain]) -> Iterator[Finding]:
    """Whether all stages at once show more memory than the last one."""
    adjusted = holm_by_key({name: one.p for name, one in gains.items()})
    for name, p in adjusted.items():
        best, last, gain = gains[name].rows
        shown = claim_of(best) == "memory"
        adds = p < LEVEL and (gain.value or 0.0) < 0 and shown
        facts: dict[str, Any] = {"series": best, "last": last, "gain": gain}
        facts |= {"p": p, "tests": len(adjusted)}
        says = "stages.series_adds" if adds else "stages.series_adds_nothing"
        claim: Claim = "moved" if adds else "nothing_shown"
        yield Finding.on(gain, claim, says, facts=facts, p_adjusted=p)


# --- findings and a table -------------------------------------------------------------


def remembered(name: str, own: Sequence[Cell], every: Sequence[Cell]) -> Finding:
    """What is remembered of a series and when; ``every`` cell of the report counts."""
    single = [cell for cell in own if cell.task]
    tested = [cell for cell in single if cell.state != "not yet trained"]
    estimable = [cell for cell in tested if cell.state != "not estimable"]
    if not estimable:
        notes = [cell.own.difference.note for cell in single]
        reasons = list(dict.fromkeys(filter(None, notes)))
        missing = "stages", "stages.missing"
        return Finding.not_tested(*missing, checkpoint=name, reasons=reasons)
    shown = [cell for cell in estimable if cell.state == "remembered"]
    if not shown:
        last = max(cell.stage for cell in estimable)
        whole = next(cell for cell in own if not cell.task and cell.stage == last)
        row = whole.row("memory")
        return Finding.on(row, "nothing_shown", "stages.nothing", facts={"memory": row})
    periods: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for task in dict.fromkeys(cell.task for cell in shown):
        at = [cell.stage for cell in shown if cell.task == task]
        lost = [c.stage for c in tested if (c.task, c.state) == (task, "forgotten")]
        lost = [stage for stage in lost if stage > at[-1]]
        periods["".join(map(str, lost[:1])), *map(str, at)].append(task)
    # The latest stage is what is left now; of its tasks the one remembered most.
    best = min(shown, key=lambda c: (-c.stage, c.own.difference.value or 0.0))
    row = best.row("memory")
    facts: dict[str, Any] = {
        "tasks": [*periods.values()],
        "periods": [list(period) for period in periods],
        "memory": row,
        "task": best.task,
        "stage": best.stage,
        "p": best.p,
        "tests": sum(c.p is not None for c in every if c.stage >= c.place),
    }
    return Finding.on(row, "moved", "stages.remembered", facts=facts, p_adjusted=best.p)


def likelier(name: str, own: Sequence[Cell], every: Sequence[Cell]) -> Finding:
    """Whether a later stage made identifiers of an earlier task likelier again."""
    steps = [cell for cell in own if cell.step_p is not None]
    if not steps:
        ordered = any(cell.place for cell in own)
        reason = "no task can be followed beyond its stage" if ordered else UNORDERED
        missing = "stages", "stages.no_steps"
        return Finding.not_tested(*missing, checkpoint=name, reason=reason)
    again = [cell for cell in steps if cell.again]
    best = min(again or steps, key=lambda cell: cell.step.difference.value or 0.0)
    row = best.row("step")
    facts: dict[str, Any] = {
        "step": row,
        "task": best.task,
        "stage": best.stage,
        "p": best.step_p,
        "tests": sum(cell.step_p is not None for cell in every),
        "tasks": [cell.task for cell in again],
        "stages": [str(cell.stage) for cell in again],
    }
    says = "stages.again" if again else "stages.not_again"
    claim: Claim = "moved" if again else "nothing_shown"
    return Finding.on(row, claim, says, facts=facts, p_adjusted=best.step_p)


FEWEST_TOLD = 3
"""Clusters of a figure whose p is told."""


def _record(cell: Cell) -> dict[str, Any]:
    """A line of the table: all but the figures, which are rows."""
    clusters = cell.own.difference.clusters
    told = clusters >= FEWEST_TOLD
    return {
        "checkpoint": cell.series,
        "task": cell.task,
        "stage": cell.stage,
        "trained_at": cell.place or None,
        "state": cell.state,
        "p_adjusted": cell.p if told else None,
        "likelier_again": cell.again,
        "step_p_adjusted": cell.step_p if told else None,
        "clusters": clusters,
    }
