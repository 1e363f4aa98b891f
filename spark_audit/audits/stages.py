"""What each stage of a series remembers, gains and forgets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits import identifiers
from spark_audit.audits.base import Context, Metric, Plan, Tables, guard
from spark_audit.audits.claims import ALPHA
from spark_audit.audits.matched.units import clear_gap as unequal
from spark_audit.audits.utility import UNORDERED, OfSeries, tasks_in_order
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY_NAME, CheckpointName
from spark_audit.results import AuditResult, Claim, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.results.rows import grouped
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import holm, holm_by_key
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.memory_contrast import Memory, Sides, memory

NONE_ALONE = "its rows contain no identifier that occurs in this task only"


@dataclass(frozen=True, kw_only=True)
class Stages(OfSeries):
    """Memory by stage and task of a series: learned, kept or forgotten.

    The evidence is one row per stage and identifier. ``place`` is the stage that
    trained on its task; 0 if the order of tasks is not known, because none was given or
    it is not as long as the series. ``elsewhere`` counts the other tasks whose trained
    rows contain the same string.
    """

    name = "stages"
    metrics = (
        Metric("memory", "nats", learned=-1, variants=(ANY_NAME,)),
        Metric("step", "nats", variants=(ANY_NAME,)),
        Metric("memory_by_series", "nats", learned=-1),
        Metric("memory_by_last", "nats", learned=-1),
        Metric("memory_gain", "nats"),
    )
    # A report without a series has nothing of it, and says nothing.
    nothing = ""
    unscored = ""
    alone = "no series of several stages was given"
    over = "over the tasks trained on so far"
    memory = True
    example = (
        "stages --ckpt 'mine=[run/step1,run/step2]' --base models/base --order t1,t2"
    )
    claims = False

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        tasks_in_order(manifest, self.order)
        return identifiers.plan_of_identifiers(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        places = self.places(tables, manifest)
        if not places:
            return Evidence()
        spans = _spans(manifest)
        at = tuple(spans[name].to_numpy() for name in ("index", "start", "n_tokens"))
        units = spans.drop(columns="index")
        units["ref_sum"] = identifiers.Sums(manifest)(*at)

        def measured() -> Measured:
            for name, own in places.items():
                sums = identifiers.Sums(manifest, tables[name][Pass()])(*at)
                yield name, {"nll_sum": sums, "place": units["task"].map(own).fillna(0)}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Rows, findings and guards of every series, and the state of each task."""
        every = all_series(evidence)
        cells = judged(c for name, one in every.items() for c in cells_of(name, one))
        single = cells[cells["task"] != ""]
        # Nothing stands before the first stage but the reference.
        rows = [*cells["memory"], *single["step"][single["stage"] > 1]]
        findings, guards = list[Finding](), list[Guard]()
        gains: dict[str, Gain] = {}
        for name, series in every.items():
            own = single[single["series"] == name]
            whole = cells[(cells["series"] == name) & (cells["task"] == "")]
            findings += [remembered(own, whole, single), likelier(own, single)]
            early = own[own["stage"] < own["place"]]
            apart = sorted({*early["task"][early["p"] < ALPHA]})
            if tested := int(early["p"].count()):
                early_guard = guard(
                    "tasks not yet trained on",
                    "early_apart" if apart else "early_alike",
                    {"figures": tested, "tasks": apart},
                    passed=None if apart else True,
                    checkpoint=name,
                    further=["early_figures"],
                )
                guards.append(early_guard)
            if (gain := gain_of(name, series, apart)) is not None:
                gains[name] = gain
                rows += gain[0]
        adjusted = holm_by_key({name: p for name, (_, p) in gains.items()})
        for name, p in adjusted.items():
            best, last, more = gains[name][0]
            shown = identifiers.memory_claim(best) == "memory"
            adds = p < ALPHA and (more.value or 0.0) < 0 and shown
            facts: dict[str, Fact] = {
                "series": best,
                "last": last,
                "gain": more,
                "p": p,
                "tests": len(adjusted),
            }
            says = f"stages.series_adds{'' if adds else '_nothing'}"
            claim: Claim = "moved" if adds else "nothing_shown"
            found = Finding.on(
                more,
                claim,
                says,
                further=["stages.series_best"],
                facts=facts,
                p_adjusted=p,
            )
            findings.append(found)
        tables = {"stages_states": [*_records(single)]}
        return AuditResult(rows, guards=guards, findings=findings, tables=tables)


def _spans(manifest: Manifest) -> pd.DataFrame:
    """Every audited identifier, without scores."""
    facts, holders = identifiers.identifier_facts(manifest), _holders(manifest)
    records = [
        {
            "index": i,
            "example": example.id,
            "cluster": example.cluster,
            "task": example.task,
            "split": example.split,
            "type": span.type,
            "start": tokens[0],
            "n_tokens": tokens[1] - tokens[0],
            **vars(facts[example.id, span.start, span.end]),
            "elsewhere": len(holders[string_of(example, span)] - {example.task}),
        }
        for i, example, spans in identifiers.audited_spans(manifest)
        for span, tokens in spans
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


def judged(cells: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """What :func:`cells_of` gives, with p adjusted over all single tasks, and states.

    What was before a task was trained on is corrected apart from what is since, and so
    are rises since the lowest, and steps by later stages. NaN: not tested.

    ``state`` is one of: not yet trained, remembered, forgotten, not shown, less likely,
    confounded, not estimable. ``again``: the stage, a later one than its own, made the
    task's likelier again.
    """
    frame = pd.DataFrame.from_records([*cells])
    stage, place = frame["stage"], frame["place"]
    single, each = frame["task"] != "", [frame["series"], frame["task"]]
    early, late = single & (stage < place), single & (stage >= place)
    followed = late & (0 < place) & (place < stage)
    families = {"p": [early, late], "since": [late], "step_p": [followed]}
    for column, parts in families.items():
        known = [frame[column][part].astype(float).dropna() for part in parts]
        frame[column] = pd.concat([pd.Series(holm(one), one.index) for one in known])
    shown = frame["p"] < ALPHA
    apart = (early & shown).groupby(each).transform("any")
    lower = late & shown & (frame["value"].astype(float) < 0)
    seen = (lower & ~apart).groupby(each).cummax()
    states = {
        "not yet trained": early,
        "not estimable": frame["p"].isna(),
        "confounded": apart,
        "remembered": lower,
        "less likely": shown,
        "forgotten": seen & (frame["since"] < ALPHA),
    }
    state = np.select([*states.values()], [*states], "not shown")
    # Likelier by themselves, and beyond those never trained on.
    fell = (frame[["fell", "moved"]].astype(float) < 0).all(axis=1)
    again = (frame["step_p"] < ALPHA) & ~apart & fell
    return frame.assign(state=state, again=again)


Series: TypeAlias = tuple[pd.DataFrame, Mapping[int, np.ndarray]]
"""Spans of one series, and by stage their summed NLL, nats; of seeds the mean.

The spans have the stage that trained on the span's task as ``place``.
"""

Gain: TypeAlias = tuple[list[Row], float | None]
"""Memory by the series, by its last stage, and the gain; two-sided p of no gain."""


def all_series(evidence: Evidence) -> dict[str, Series]:
    """The series by name, each with the stages that all of its seeds have reached."""
    parts = [CheckpointName.parse(name) for name in evidence.checkpoints]
    sums, places = (evidence.values[name] for name in ("nll_sum", "place"))
    series = dict[str, Series]()
    for method, own in grouped(range(len(parts)), lambda i: parts[i].method).items():
        stages = sorted(grouped(own, lambda i: parts[i].stage or 1).items())
        most = max(len(at) for _, at in stages)
        whole = {stage: at for stage, at in stages if len(at) == most}
        nll = {stage: np.mean(sums[at], axis=0) for stage, at in whole.items()}
        place = places[next(iter(whole.values()))[0]].astype(int)
        series[method] = evidence.units.assign(place=place), nll
    return series


def _usable(spans: pd.DataFrame) -> np.ndarray:
    """Identifiers of one task alone, trained or held out, that have a control."""
    alone = (spans["split"] == "train") & (spans["elsewhere"] == 0)
    either = alone | ((spans["split"] == "test") & (spans["dose"] == 0))
    # Where text alone tells the sides apart, one is no control for the other.
    return np.asarray(either & (spans["stratum"] >= 0))


def _contrast(
    sides: Sides, sums: np.ndarray, before: np.ndarray
) -> tuple[Memory, float]:
    """Change of trained beyond never trained, and what they were clearly apart before.

    Parameters
    ----------
    sums, before
        Summed NLL of each span, nats, and the one that it is compared with.
    """
    if not len(sums):
        return Memory.missing(NONE_ALONE), 0.0
    return memory(sums - before, sides), unequal(memory(before, sides).difference)


def cells_of(name: str, series: Series) -> Iterator[dict[str, Any]]:
    """Every task stage after stage, and all that were trained on so far (no task).

    Yields
    ------
    ``place``: stage that trained the task, 0 if unknown. ``memory``, and its change by
    the stage, ``step``: rows, whose band is what the sides were apart before, nats:
    less is no evidence. ``p``, ``step_p``: two-sided. ``since``: p of no rise since the
    stage at which the task was remembered most, over all that could have been that.
    ``fell``: upper limit of the change of trained identifiers by the stage.
    """
    spans, nll = series
    usable = _usable(spans)
    columns = (spans[column].to_numpy() for column in ("task", "place", "ref_sum"))
    tasks, places, reference = columns
    for task in [*sorted({*tasks}), ""]:
        place = int(places[tasks == task][0]) if task else 0
        least: dict[int, float] = {}
        held = 0.0
        for stage, sums in nll.items():
            chosen = usable & (tasks == task if task else places <= stage)
            sides = identifiers.sides_of(spans[chosen])
            own, reach = _contrast(sides, sums[chosen], reference[chosen])
            step, gap = Memory.missing("the previous stage was not scored"), 0.0
            if task and stage - 1 in nll:
                step, gap = _contrast(sides, sums[chosen], nll[stage - 1][chosen])
                # Memory is known better than the level: luck is paired away.
                gap = max(gap, held)
            held, value, since = unequal(own.difference), own.difference.value, 1.0
            if least and value is not None:
                peak = min(least, key=lambda one: least[one])
                rose = memory((sums - nll[peak])[chosen], sides)
                # The lowest of several is low by luck too: each could have been it.
                p = rose.t_p()
                if p is not None and (rose.difference.value or 0.0) > 0:
                    since = min(1.0, len(least) * p)
            if task and value is not None and stage >= place:
                least[stage] = value
            place_of_rows = (name, str(stage), f"task:{task}" if task else "pooled")
            yield {
                "series": name,
                "task": task,
                "stage": stage,
                "place": place,
                "memory": _row(own.difference, "memory", *place_of_rows, band=reach),
                "step": _row(step.difference, "step", *place_of_rows, band=gap),
                "value": value,
                "moved": step.difference.value,
                "p": own.t_p(null=reach),
                "step_p": step.t_p(null=gap),
                "since": since,
                "fell": step.trained.high,
            }


def _row(
    estimate: Estimate,
    metric: str,
    name: str,
    of: str = "",
    group: str = "pooled",
    *,
    band: float,
) -> Row:
    """Return a figure; ``band``: how far its sides were apart before, nats."""
    return Stages.row(
        estimate,
        name,
        metric,
        of,
        group=group,
        null=0.0,
        null_low=-band,
        null_high=band,
    )


def gain_of(name: str, series: Series, without: Collection[str]) -> Gain | None:
    """What all stages at once show beyond the last one, over all tasks.

    Who has every stage sees an identifier at the stage that knew it best since its own
    task; held-out identifiers of the task take the best of the same stages. ``None`` if
    no task has a place, or of a single stage.

    Parameters
    ----------
    without
        Tasks whose sides differed before they were trained on.
    """
    spans, nll = series
    trained = (spans["place"] > 0) & ~spans["task"].isin([*without])
    chosen = _usable(spans) & trained.to_numpy()
    own = spans[chosen]
    if len(nll) < 2 or own.empty:
        return None
    # More stages have seen the tasks that came first: each is compared by itself.
    strata = own.assign(stratum=own.groupby(["task", "stratum"]).ngroup())
    sides, before = identifiers.sides_of(strata), own["ref_sum"].to_numpy()
    sums = np.stack([each[chosen] for each in nll.values()])
    since = np.array([*nll])[:, None] >= own["place"].to_numpy()
    seen = np.where(since, sums, np.inf).min(axis=0)
    last, reach = _contrast(sides, sums[-1], before)
    best, _ = _contrast(sides, seen, before)
    gain, _ = _contrast(sides, seen, sums[-1])
    rows = [
        _row(best.difference, "memory_by_series", name, band=reach),
        _row(last.difference, "memory_by_last", name, band=reach),
        Stages.row(gain.difference, name, "memory_gain", null=0.0),
    ]
    return rows, gain.t_p()


def remembered(own: pd.DataFrame, whole: pd.DataFrame, every: pd.DataFrame) -> Finding:
    """What is remembered of a series and when.

    ``own`` are its single tasks, ``whole`` all of them; ``every`` task of the report
    counts.
    """
    tested = own[own["state"] != "not yet trained"]
    estimable = tested[tested["state"] != "not estimable"]
    if estimable.empty:
        reasons = [*filter(None, dict.fromkeys(row.note for row in own["memory"]))]
        return Finding.not_tested(
            "stages",
            "stages.missing" if reasons else "stages.missing_alike",
            checkpoint=own["series"].iloc[0],
            reasons=reasons,
        )
    shown = estimable[estimable["state"] == "remembered"]
    if shown.empty:
        row = whole.set_index("stage")["memory"][estimable["stage"].max()]
        return Finding.on(
            row,
            "nothing_shown",
            "stages.nothing",
            further=["stages.after_last"],
            facts={"memory": row},
        )
    periods: dict[tuple[str, ...], list[str]] = defaultdict(list)
    forgotten = tested[tested["state"] == "forgotten"]
    for task, at in shown.groupby("task")["stage"]:
        lost = forgotten["stage"][forgotten["task"] == task]
        lost = lost[lost > at.max()][:1]
        periods["".join(map(str, lost)), *map(str, at)].append(str(task))
    # The latest stage is what is left now; of its tasks the one remembered most.
    latest = shown["stage"] == shown["stage"].max()
    (best, *_) = shown[latest].sort_values("value", kind="stable").to_dict("records")
    facts: dict[str, Fact] = {
        "tasks": [*periods.values()],
        "periods": [list(period) for period in periods],
        "memory": best["memory"],
        "task": best["task"],
        "stage": best["stage"],
        "p": best["p"],
        "tests": int(every["p"][every["stage"] >= every["place"]].count()),
        "remembered_tasks": sorted({*map(str, shown["task"])}),
        "forgotten_tasks": sorted({*map(str, forgotten["task"])}),
    }
    further = ["stages.remembered_tasks"]
    if facts["forgotten_tasks"]:
        further.append("stages.forgotten_tasks")
    return Finding.on(
        best["memory"],
        "moved",
        "stages.remembered",
        further=further,
        facts=facts,
        p_adjusted=best["p"],
    )


def likelier(own: pd.DataFrame, every: pd.DataFrame) -> Finding:
    """Whether a later stage made identifiers of an earlier task likelier again."""
    steps = own[own["step_p"].notna()]
    if steps.empty:
        ordered = own["place"].any()
        reason = "no task can be followed beyond its stage" if ordered else UNORDERED
        return Finding.not_tested(
            "stages", "stages.no_steps", checkpoint=own["series"].iloc[0], reason=reason
        )
    again = steps[steps["again"]]
    chosen = steps if again.empty else again
    (best, *_) = chosen.sort_values("moved", kind="stable").to_dict("records")
    facts: dict[str, Fact] = {
        "step": best["step"],
        "task": best["task"],
        "stage": best["stage"],
        "p": best["step_p"],
        "tests": int(every["step_p"].count()),
        "tasks": [*again["task"]],
        "stages": [*map(str, again["stage"])],
        "again": [
            [task, str(stage)]
            for task, stage in zip(again["task"], again["stage"], strict=True)
        ],
    }
    says = "stages.not_again" if again.empty else "stages.again"
    claim: Claim = "nothing_shown" if again.empty else "moved"
    further = ["stages.largest_step"]
    if not again.empty:
        further.append("stages.again_tasks")
        further.append("stages.replay")
    return Finding.on(
        best["step"],
        claim,
        says,
        further=further,
        facts=facts,
        p_adjusted=best["step_p"],
    )


FEWEST_TOLD = 3
"""Clusters of a figure whose p is told."""


def _records(cells: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Lines of the table: all but the figures, which are rows."""
    names = {"series": "checkpoint", "place": "trained_at", "p": "p_adjusted"}
    names |= {"again": "likelier_again", "step_p": "step_p_adjusted"}
    columns = ["series", "task", "stage", "place", "state", "p", "again", "step_p"]
    for cell in cells.sort_values("stage", kind="stable").to_dict("records"):
        clusters = cell["memory"].clusters
        cell["place"] = cell["place"] or None
        for key in ("p", "step_p"):
            if clusters < FEWEST_TOLD or np.isnan(cell[key]):
                cell[key] = None
        yield {names.get(k, k): cell[k] for k in columns} | {"clusters": clusters}
