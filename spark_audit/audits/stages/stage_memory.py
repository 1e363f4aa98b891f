"""When what was remembered and when forgotten: memory by stage and task of a series.

The contrast is that of ``matched``: change of the NLL of identifiers in trained rows
since the reference, minus that of identifiers of the same kinds in rows of the *same
task* that were never trained on, which formats and drift move alike. It is exploratory,
and corrected over all stages and tasks of a report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import pandas as pd

from spark_audit.audits import AUDITS
from spark_audit.audits.claims import LEVEL
from spark_audit.audits.contract import ANY, About, Context, Metric, Plan, Tables
from spark_audit.audits.identifier_facts import identifier_facts
from spark_audit.audits.matched.selectivity import plan as of_identifiers
from spark_audit.audits.spans import Sums, audited_spans
from spark_audit.audits.stages.cells import (
    Cell,
    Found,
    Key,
    State,
    all_series,
    cells_of,
)
from spark_audit.audits.stored_evidence import joined
from spark_audit.audits.utility.series import listed, tasks_in_order
from spark_audit.audits.wording import adjusted_p, figure, unseen
from spark_audit.data.occurrences import folded, standing
from spark_audit.manifest.schema import Manifest
from spark_audit.names import CheckpointName
from spark_audit.results import AuditResult, Estimate, Finding, Guard, Row, number
from spark_audit.scoring.table import Pass

UNORDERED = (
    "which task each stage learned is not known: give --order, a task for each stage"
)
Told: TypeAlias = "Mapping[tuple[str, str, str, str], Row]"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _when(states: Mapping[int, State], place: int) -> str:
    """From when to when a task's identifiers were remembered, in words."""
    held = [stage for stage, state in states.items() if state == "remembered"]
    last = max(states)
    every = [stage for stage in states if held[0] <= stage <= held[-1]]
    if held[-1] == last and held == every:
        return (
            "from their own stage on" if held[0] == place else f"from stage {held[0]}"
        )
    if held == every and len(held) > 1:
        said = f"from stage {held[0]} to {held[-1]}"
    else:
        stages = "stage" if len(held) == 1 else "stages"
        said = f"at {stages} {_and([str(stage) for stage in held])}"
    if held[-1] == last:
        return said
    end = next(stage for stage in states if stage > held[-1])
    lost = [s for s, state in states.items() if s > held[-1] and state == "forgotten"]
    if lost:
        return f"{said}, forgotten from stage {lost[0]}"
    return f"{said}, not shown any more from stage {end}"


def remembered(name: str, found: Found, rows: Told) -> Finding:
    """The one sentence of a series: what is remembered from when to when."""
    cells = found.of(name)
    tested = [k for k in cells if found.states[k] != "not yet trained"]
    known = [key for key in tested if found.states[key] != "not estimable"]
    if not known:
        reasons = dict.fromkeys(c.own.difference.note for c in cells.values())
        reason = "; ".join(filter(None, reasons)) or "no identifier differs"
        said = f"{name}: memory by stage and task not tested: {reason}."
        return Finding(
            audit="stages", checkpoint=name, claim="not_tested", sentence=said
        )
    by_task: dict[str, dict[int, State]] = defaultdict(dict)
    for _, task, stage in tested:
        by_task[task][stage] = found.states[name, task, stage]
    whens: dict[str, list[str]] = defaultdict(list)
    for task, states in by_task.items():
        if "remembered" in states.values():
            place = cells[name, task, max(states)].place
            whens[_when(states, place)].append(task)
    tests = len(found.late)
    if not whens:
        row = rows[name, "memory", str(max(key[2] for key in known)), "pooled"]
        text = f"{name}: of no task memory of identifiers is shown after any stage"
        text += f"; after the last, of all {figure(row)} nats a token"
        text += unseen(row.mde, unit="nats", after=".")
        return Finding.on(row, "nothing_shown", text)
    told = [f"of {_and(tasks)} {when}" for when, tasks in whens.items()]
    shown = [key for key in known if found.states[key] == "remembered"]
    # The latest stage is what is left now; of its tasks the one remembered most.
    best = min(shown, key=lambda k: (-k[2], cells[k].own.difference.value or 0.0))
    row = rows[name, "memory", str(best[2]), f"task:{best[1]}"]
    p = found.late[best]
    text = (
        f"{name}: identifiers are remembered {'; '.join(told)}. After stage {best[2]}, "
        f"those of {best[1]} by {figure(row)} nats a token against never-trained ones "
        f"of that task (0 without memory, {adjusted_p(p, tests)}; exploratory)."
    )
    return Finding.on(row, "moved", text, p_adjusted=p)


def likelier(name: str, found: Found, rows: Told) -> Finding:
    """Whether a later stage made identifiers of an earlier task likelier again."""
    cells = found.of(name)
    steps = {key: p for key, p in found.steps.items() if key[0] == name}
    head = f"{name}: whether a later stage made identifiers likelier again"
    if not steps:
        ordered = any(cell.place for cell in cells.values())
        reason = "no task can be followed beyond its stage" if ordered else UNORDERED
        return Finding(
            audit="stages",
            checkpoint=name,
            claim="not_tested",
            sentence=f"{head}: not tested ({reason}).",
        )
    again = [key for key in steps if key in found.again]
    best = min(again or steps, key=lambda key: cells[key].step.difference.value or 0.0)
    row = rows[name, "step", str(best[2]), f"task:{best[1]}"]
    tested = adjusted_p(steps[best], len(found.steps))
    if not again:
        text = (
            f"{name}: no later stage is shown to have made identifiers of earlier "
            f"tasks likelier again; the most {figure(row)} nats a token against "
            f"never-trained ones ({best[1]} by stage {best[2]}; {tested})."
        )
        return Finding.on(row, "nothing_shown", text, p_adjusted=steps[best])
    others = [f"{task} by stage {stage}" for _, task, stage in again]
    null = f"beyond {number(row.null_high)}, which they were apart before"
    text = (
        f"{name}: later stages made identifiers of earlier tasks LIKELIER AGAIN: "
        f"{_and(others)}; most {best[1]} by {figure(row)} nats a token against "
        f"never-trained ones ({null if row.null_high else '0 if not'}; {tested}; "
        "exploratory). Replay of their rows does this too."
    )
    return Finding.on(row, "moved", text, p_adjusted=steps[best])


def guards_of(name: str, found: Found) -> list[Guard]:
    """The contrast where nothing can be remembered: before a task was trained on."""
    early = [k for k, c in found.of(name).items() if k[2] < c.place]
    known = [key for key in early if key in found.early]
    if not known:
        return []
    apart = sorted({key[1] for key in known if found.early[key] < LEVEL})
    detail = (
        f"before their tasks were trained on, identifiers of trained and never-trained "
        f"rows differ in {len(known)} figures by task and stage "
    )
    detail += f"for {_and(apart)}: nothing is said of these" if apart else "for no task"
    return [
        Guard(
            name="tasks not yet trained on",
            checkpoint=name,
            passed=None if apart else True,
            detail=detail,
        )
    ]


METRICS = (
    Metric(
        "memory",
        "memory after the stage",
        unit="nats",
        learned=-1,
        variants=(ANY,),
        definitions={
            "memory after the stage": "memory, as in the matched audit, of the "
            "identifiers that one task alone trained on, against those of its rows "
            "never trained on. `forgotten`: it was remembered, is not any more, and "
            "rose since its lowest beyond chance; `not shown` where the last is open. "
            "`confounded`: the two moved apart before the task was trained on at all."
        },
    ),
    Metric(
        "step",
        "change of memory by the stage",
        unit="nats",
        variants=(ANY,),
        definitions={
            "change of memory by the stage": "the same since the stage before. Below 0 "
            "after the task's own stage, its identifiers became likelier again than "
            "never-trained ones did (assisted memorisation). Claimed only beyond what "
            "the two were apart before the stage: drift that depends on difficulty "
            "can widen that."
        },
    ),
)
COLUMNS = (
    *("checkpoint", "example", "cluster", "task", "split", "type", "start", "dose"),
    *("form", "cue", "elsewhere", "place", "stratum", "text_auc", "n_tokens"),
    *("ref_sum", "nll_sum"),
)
SCOPE = (
    "By stage and task: exploratory, corrected (Holm) over all of them in the report. "
    "It says when; whether a checkpoint remembers is told by the other audits.",
    "Identifiers that trained rows of several tasks hold belong to no one task, and "
    "are left out by stage and task. What a method replays it trains on again: "
    "likelier again is said of a stage, not of its new rows alone.",
)
FEWEST_TOLD = 3
"""Clusters of a figure whose p is told."""


def plan(manifest: Manifest, *, preset: str | None = None) -> Plan:
    """All examples with an audited identifier."""
    return of_identifiers(manifest, preset=preset)


def conclude(evidence: pd.DataFrame, context: Context) -> AuditResult:
    """Rows, states and sentences; nothing is drawn at random, and no baseline used."""
    del context
    found = Found()
    for name, stages in all_series(evidence).items():
        for task, stage, cell in cells_of(stages):
            found.cells[name, task, stage] = cell
    found.conclude()
    names = list(dict.fromkeys(key[0] for key in found.cells))
    rows = [row for key, cell in found.cells.items() for row in _rows(key, cell)]
    by_place = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
    findings, guards = [], []
    for name in names:
        findings += [remembered(name, found, by_place), likelier(name, found, by_place)]
        guards += guards_of(name, found)
    return AuditResult(
        rows=rows,
        guards=guards,
        findings=findings,
        scope=list(SCOPE),
        tables={"stages_states": [_record(key, found) for key in found.states]},
    )


def _rows(key: Key, cell: Cell) -> list[Row]:
    name, task, stage = key
    columns: dict[str, Any] = {
        "audit": "stages",
        "checkpoint": name,
        "of": str(stage),
        "group": f"task:{task}" if task else "pooled",
        "unit": "nats",
        "null": 0.0,
    }

    def row(metric: str, estimate: Estimate, reach: float) -> Row:
        band = {"null_low": -reach, "null_high": reach}
        return Row.of_estimate(estimate, metric=metric, **columns, **band)

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


def frames(
    tables: Tables, manifest: Manifest, *, order: str | None = None
) -> Iterator[pd.DataFrame]:
    """:func:`evidence`, stage by stage."""
    if order is not None:
        tasks_in_order(manifest, order)
    named = [CheckpointName.parse(n) for n, p in tables.items() if Pass() in p]
    staged = [one for one in named if one.stage is not None and not one.rounding]
    counts: dict[tuple[str, int | None], set[int]] = defaultdict(set)
    for one in staged:
        counts[one.method, one.seed].add(one.stage or 1)
    several = [one for one in staged if len(counts[one.method, one.seed]) > 1]
    if not several:
        return
    spans = _spans(manifest)
    at = tuple(spans[name].to_numpy() for name in ("index", "start", "n_tokens"))
    spans = spans.assign(ref_sum=Sums.of_reference(manifest)(*at)).drop(columns="index")
    for one in several:
        tasks = listed(order)
        whole = counts[one.method, one.seed] == set(range(1, len(tasks) + 1))
        places = {task: k for k, task in enumerate(tasks, start=1)} if whole else {}
        sums = Sums.of_table(manifest, tables[str(one)][Pass()])(*at)
        place = spans["task"].map(lambda task, of=places: of.get(task, 0))
        yield spans.assign(checkpoint=str(one), place=place, nll_sum=sums)


@AUDITS.register(
    about=About(
        METRICS,
        columns=COLUMNS,
        # A report without a series has nothing of it, and is told nothing.
        nothing="",
        unscored="",
        alone="no checkpoint was given as a series of several stages",
        over="over the tasks trained on so far",
        stages=True,
    ),
    plan=plan,
    conclude=conclude,
)
def evidence(
    tables: Tables,
    manifest: Manifest,
    *,
    order: Annotated[
        str | None, "Tasks in training order: t1,t2; default: the runs' own."
    ] = None,
) -> pd.DataFrame:
    """One row a stage and identifier; ``place`` is the stage that trained its task.

    ``elsewhere`` counts the other tasks whose trained rows hold its string. A ``place``
    is 0 where the order of tasks is not known: none was given, or it is not as long as
    the series.
    """
    return joined(frames(tables, manifest, order=order))


def _spans(manifest: Manifest) -> pd.DataFrame:
    """Every audited identifier, without scores."""
    facts, holders = identifier_facts(manifest), _holders(manifest)
    records = []
    for split in ("train", "test"):
        for i, example, ranges in audited_spans(manifest, split=split):
            for span, tokens in example.identifiers:
                if tokens not in ranges:
                    continue
                string = folded(example.text[span.start : span.end].strip())
                record = {
                    "index": i,
                    "example": example.id,
                    "cluster": example.cluster,
                    "task": example.task,
                    "split": split,
                    "type": span.type,
                    "start": tokens[0],
                    "n_tokens": tokens[1] - tokens[0],
                    **vars(facts[example.id, span.start, span.end]),
                    "elsewhere": len(holders[string] - {example.task}),
                }
                records.append(record)
    return pd.DataFrame.from_records(records)


def _holders(manifest: Manifest) -> dict[str, set[str]]:
    """Identifier -> the tasks whose trained rows hold it, annotated there or not."""
    own = [
        {folded(row.text[s.start : s.end].strip()) for s in row.spans}
        for row in manifest.examples
    ]
    read = [row.text * (row.split == "train") for row in manifest.examples]
    found: dict[str, set[str]] = defaultdict(set)
    stood = standing(read, set[str]().union(*own))
    for row, strings, there in zip(manifest.examples, own, stood, strict=True):
        if row.split == "train":
            for string in strings | there:
                found[string].add(row.task)
    return found
