"""When what was remembered and when forgotten: memory by stage and task of a series.

The contrast is that of ``matched``: change of the NLL of identifiers in trained rows
since the reference, minus that of identifiers of the same kinds in rows of the *same
task* that were never trained on, which formats and drift move alike. It is exploratory,
and corrected over all stages and tasks of a report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, guard
from spark_audit.audits.claims import LEVEL
from spark_audit.audits.identifier_facts import identifier_facts, sides_of, string_of
from spark_audit.audits.matched.changes import unequal
from spark_audit.audits.spans import Sums, audited_spans, plan_of_identifiers
from spark_audit.audits.task_accuracy import UNORDERED, check_order, places_of_tasks
from spark_audit.data.occurrences import standing
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY, CheckpointName
from spark_audit.results import AuditResult, Claim, Estimate, Finding, Guard, Row
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
        band: dict[str, Any] = {"null_low": -one.reach, "null_high": one.reach}
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
Key: TypeAlias = tuple[str, str, int]
"""Series, task (empty: all of them) and stage."""


@dataclass(frozen=True)
class Cell:
    """One task after one stage: memory, and its change by the stage.

    ``place`` is the stage that trained the task, 0 if unknown. ``p`` and ``step_p`` are
    two-sided, of no difference beyond what the sides were apart before (``reach``,
    ``gap``, nats); ``since`` is p of no rise since the stage at which the task was
    remembered most, over all stages that could have been that.
    """

    own: Memory
    step: Memory
    place: int
    reach: float = 0.0
    gap: float = 0.0
    since: float = 1.0

    @property
    def p(self) -> float | None:
        """Of no memory."""
        return self.own.t_p(null=self.reach)

    @property
    def step_p(self) -> float | None:
        """Of no change of it by the stage."""
        return self.step.t_p(null=self.gap)

    @property
    def likelier(self) -> bool:
        """Whether the stage made trained ones likelier, by themselves and beyond."""
        fell = self.step.trained.high
        return fell is not None and fell < 0 and (self.step.difference.value or 0) < 0


@dataclass
class Found:
    """All cells of a report, with what holds once all of them count.

    ``early`` and ``late`` are p of no memory before a task was trained on and since,
    ``risen`` of no rise since its lowest, ``steps`` of no change by a later stage, each
    adjusted over its own kind; ``again`` holds what a later stage made likelier again.
    """

    cells: dict[Key, Cell] = field(default_factory=dict)
    early: dict[Key, float] = field(default_factory=dict)
    late: dict[Key, float] = field(default_factory=dict)
    risen: dict[Key, float] = field(default_factory=dict)
    steps: dict[Key, float] = field(default_factory=dict)
    states: dict[Key, State] = field(default_factory=dict)
    again: set[Key] = field(default_factory=set)

    def of(self, series: str) -> dict[Key, Cell]:
        """Cells of a series' single tasks."""
        return {k: c for k, c in self.cells.items() if k[0] == series and k[1]}

    def apart(self, series: str) -> set[str]:
        """Tasks of a series whose sides differed before they were trained on."""
        return {k[1] for k, p in self.early.items() if k[0] == series and p < LEVEL}

    def conclude(self) -> None:
        """Correct over all single tasks, and name each one's state."""
        single = {k: cell for k, cell in self.cells.items() if k[1]}
        late = {k: cell for k, cell in single.items() if k[2] >= cell.place}
        self.late = holm_by_key({k: cell.p for k, cell in late.items()})
        self.early = holm_by_key({k: c.p for k, c in single.items() if k not in late})
        self.risen = holm_by_key({k: cell.since for k, cell in late.items()})
        self.steps = holm_by_key(
            {k: c.step_p for k, c in late.items() if 0 < c.place < k[2]}
        )
        apart = {k[:2] for k, p in self.early.items() if p < LEVEL}
        seen: set[tuple[str, str]] = set()
        for key in sorted(single, key=lambda key: key[2]):
            cell, who = single[key], key[:2]
            self.states[key] = state = self._state(key, cell, who in apart, who in seen)
            if state == "remembered":
                seen.add(who)
            if self.steps.get(key, 1.0) < LEVEL and who not in apart and cell.likelier:
                self.again.add(key)

    def _state(self, key: Key, cell: Cell, apart: bool, before: bool) -> State:
        p, value = self.late.get(key), cell.own.difference.value
        if key[2] < cell.place:
            return "not yet trained"
        if p is None or value is None:
            return "not estimable"
        if apart:
            return "confounded"
        if p < LEVEL:
            return "remembered" if value < 0 else "less likely"
        return "forgotten" if before and self.risen[key] < LEVEL else "not shown"


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


def cells_of(series: Series) -> Iterator[tuple[str, int, Cell]]:
    """Task (empty: all that were trained on) and stage, with its cell."""
    spans = series.spans
    usable = _usable(spans)
    tasks, places = (spans[name].to_numpy() for name in ("task", "place"))
    for task in sorted(set(tasks)):
        chosen = usable & (tasks == task)
        held = {stage: sums[chosen] for stage, sums in series.nll.items()}
        place = int(places[tasks == task][0])
        yield from ((task, *each) for each in _course(spans[chosen], held, place))
    for stage, sums in series.nll.items():
        chosen = usable & (places <= stage)
        own, before = spans[chosen], spans["ref_sum"].to_numpy()[chosen]
        moved, apart = _contrast(_sides(own), sums[chosen], before)
        yield "", stage, Cell(moved, Memory.missing("only per task"), 0, apart)


@dataclass(frozen=True)
class BySeries:
    """Memory of all tasks by every stage at once, by the last one, and the gain.

    Who has every stage sees an identifier at the stage that knew it best since its own
    task; held-out identifiers of the task take the best of the same stages.
    """

    best: Memory
    last: Memory
    gain: Memory
    reach: float

    @classmethod
    def of(cls, series: Series, *, without: Collection[str] = ()) -> BySeries | None:
        """``None`` where no task has a place, or there is a single stage.

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
        return cls(best, last, _contrast(sides, seen, sums[-1])[0], reach)


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
    spans: pd.DataFrame, nll: Mapping[int, np.ndarray], place: int
) -> Iterator[tuple[int, Cell]]:
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
        yield stage, Cell(own, step, place, reach, gap, since)
        held = unequal(own.difference)
        if own.difference.value is not None and stage >= place:
            least[stage] = own.difference.value
