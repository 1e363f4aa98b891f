"""What the stages of a run remember, and what all of them give away together.

``stages``, when what was remembered and when forgotten: the contrast of ``matched``,
change of the NLL of identifiers in trained rows since the reference, minus that of
identifiers of the same kinds in rows of the *same task* that were never trained on,
which formats and drift move alike. It is exploratory, and corrected over all stages and
tasks of a report.

``series``: who has every stage sees each row at the stage that knew it best. The score,
declared beforehand: by how much the row's NLL fell since the untrained model, nats per
token, at its best stage since its own task was trained on. A held-out row takes the
best of the same stages of its task, so that without training both sides are alike. That
of the last stage alone stands beside it, and the fall by the stage of the row's own
task ("step": sequential membership inference, arXiv 2602.16596), which no claim rests
on. Epsilon is bounded from coins: a canary's candidates stand in neighbouring pairs,
and where the true one stands was drawn: which of its pair was planted is a fair coin.
Both are read in the canary's own row, with as many tokens each, and guessed by the
score of the series. A held-out canary would not do: it stands in another row, which
alone can make it likelier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits import identifiers
from spark_audit.audits.base import LEVEL, Context, Metric, Plan, Tables, guard
from spark_audit.audits.canary_ranks import coin_figures
from spark_audit.audits.matched_changes import unequal
from spark_audit.audits.mia.estimates import Group
from spark_audit.audits.mia.scores import NO_ROWS, reference_table, scored_text
from spark_audit.audits.mia.texts import best_guess, labelled, without_model
from spark_audit.audits.task_accuracy import UNORDERED, OfSeries, tasks_in_order
from spark_audit.data.canaries import FORMATS
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.manifest.sequences import key_of, parts_of
from spark_audit.names import ANY, BASE, CheckpointName, series_of
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Claim, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact, grouped
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import holm, holm_by_key
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.memorisation import declared_guesses
from spark_audit.stats.memory_contrast import Memory, Sides, memory
from spark_audit.stats.roc import Design, auc_estimate

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
        Metric("memory", "nats", learned=-1, variants=(ANY,)),
        Metric("step", "nats", variants=(ANY,)),
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
            apart = sorted({*early["task"][early["p"] < LEVEL]})
            if tested := int(early["p"].count()):
                facts: dict[str, Any] = {"figures": tested, "tasks": apart}
                passed = None if apart else True
                what = "tasks not yet trained on", "early_tasks", facts
                guards.append(guard(*what, passed=passed, checkpoint=name))
            if (gain := gain_of(name, series, apart)) is not None:
                gains[name] = gain
                rows += gain[0]
        adjusted = holm_by_key({name: p for name, (_, p) in gains.items()})
        for name, p in adjusted.items():
            best, last, more = gains[name][0]
            shown = identifiers.memory_claim(best) == "memory"
            adds = p < LEVEL and (more.value or 0.0) < 0 and shown
            facts = {"series": best, "last": last, "gain": more}
            facts |= {"p": p, "tests": len(adjusted)}
            says = f"stages.series_adds{'' if adds else '_nothing'}"
            claim: Claim = "moved" if adds else "nothing_shown"
            found = Finding.on(more, claim, says, facts=facts, p_adjusted=p)
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


# --- memory of each task after each stage ---------------------------------------------


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
    shown = frame["p"] < LEVEL
    apart = (early & shown).groupby(each).transform("any")
    lower = late & shown & (frame["value"].astype(float) < 0)
    seen = (lower & ~apart).groupby(each).cummax()
    states = {
        "not yet trained": early,
        "not estimable": frame["p"].isna(),
        "confounded": apart,
        "remembered": lower,
        "less likely": shown,
        "forgotten": seen & (frame["since"] < LEVEL),
    }
    state = np.select([*states.values()], [*states], "not shown")
    # Likelier by themselves, and beyond those never trained on.
    fell = (frame[["fell", "moved"]].astype(float) < 0).all(axis=1)
    again = (frame["step_p"] < LEVEL) & ~apart & fell
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
            group = f"task:{task}" if task else "pooled"
            row = partial(Stages.row, checkpoint=name, of=str(stage), group=group)
            yield {
                "series": name,
                "task": task,
                "stage": stage,
                "place": place,
                "memory": row(own.difference, metric="memory", **_band(reach)),
                "step": row(step.difference, metric="step", **_band(gap)),
                "value": value,
                "moved": step.difference.value,
                "p": own.t_p(null=reach),
                "step_p": step.t_p(null=gap),
                "since": since,
                "fell": step.trained.high,
            }


def _band(reach: float) -> dict[str, Any]:
    """Nulls of a figure whose sides were so far apart before."""
    return {"null": 0.0, "null_low": -reach, "null_high": reach}


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
        Stages.row(best.difference, name, "memory_by_series", **_band(reach)),
        Stages.row(last.difference, name, "memory_by_last", **_band(reach)),
        Stages.row(gain.difference, name, "memory_gain", null=0.0),
    ]
    return rows, gain.t_p()


# --- findings and a table -------------------------------------------------------------


def remembered(own: pd.DataFrame, whole: pd.DataFrame, every: pd.DataFrame) -> Finding:
    """What is remembered of a series and when.

    ``own`` are its single tasks, ``whole`` all of them; ``every`` task of the report
    counts.
    """
    tested = own[own["state"] != "not yet trained"]
    estimable = tested[tested["state"] != "not estimable"]
    if estimable.empty:
        reasons = [*filter(None, dict.fromkeys(row.note for row in own["memory"]))]
        missing: Any = {"checkpoint": own["series"].iloc[0], "reasons": reasons}
        return Finding.not_tested("stages", "stages.missing", **missing)
    shown = estimable[estimable["state"] == "remembered"]
    if shown.empty:
        row = whole.set_index("stage")["memory"][estimable["stage"].max()]
        return Finding.on(row, "nothing_shown", "stages.nothing", facts={"memory": row})
    periods: dict[tuple[str, ...], list[str]] = defaultdict(list)
    forgotten = tested[tested["state"] == "forgotten"]
    for task, at in shown.groupby("task")["stage"]:
        lost = forgotten["stage"][forgotten["task"] == task]
        lost = lost[lost > at.max()][:1]
        periods["".join(map(str, lost)), *map(str, at)].append(str(task))
    # The latest stage is what is left now; of its tasks the one remembered most.
    latest = shown["stage"] == shown["stage"].max()
    (best, *_) = shown[latest].sort_values("value", kind="stable").to_dict("records")
    facts: dict[str, Any] = {
        "tasks": [*periods.values()],
        "periods": [list(period) for period in periods],
        **{key: best[key] for key in ("memory", "task", "stage", "p")},
        "tests": int(every["p"][every["stage"] >= every["place"]].count()),
    }
    told = {"facts": facts, "p_adjusted": best["p"]}
    return Finding.on(best["memory"], "moved", "stages.remembered", **told)


def likelier(own: pd.DataFrame, every: pd.DataFrame) -> Finding:
    """Whether a later stage made identifiers of an earlier task likelier again."""
    steps = own[own["step_p"].notna()]
    if steps.empty:
        ordered = own["place"].any()
        reason = "no task can be followed beyond its stage" if ordered else UNORDERED
        missing: Any = {"checkpoint": own["series"].iloc[0], "reason": reason}
        return Finding.not_tested("stages", "stages.no_steps", **missing)
    again = steps[steps["again"]]
    chosen = steps if again.empty else again
    (best, *_) = chosen.sort_values("moved", kind="stable").to_dict("records")
    facts: dict[str, Any] = {
        **{key: best[key] for key in ("step", "task", "stage")},
        "p": best["step_p"],
        "tests": int(every["step_p"].count()),
        "tasks": [*again["task"]],
        "stages": [*map(str, again["stage"])],
    }
    says = "stages.not_again" if again.empty else "stages.again"
    claim: Claim = "nothing_shown" if again.empty else "moved"
    told = {"facts": facts, "p_adjusted": best["step_p"]}
    return Finding.on(best["step"], claim, says, **told)


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


SERIES, LAST, STEP = "series", "last", "step"
FPRS = {"tpr_at_fpr_10": 0.1, "tpr_at_fpr_1": 0.01}
OFS = (SERIES, LAST, STEP)
_rate = partial(Metric, bounds=(0.0, 1.0), learned=1, variants=OFS)
FEWEST = 10
"""A task needs this many members and as many non-members to be estimated."""
TOO_FEW = f"each task has fewer than {FEWEST} trained or {FEWEST} held-out rows"
NO_TEXTS = "the texts alone could not be tested: too few groups of rows"
CANDIDATES = Pass("candidates")
Figures: TypeAlias = dict[tuple[str, str], Row]
"""Rows of one group by metric and variant."""


@dataclass(frozen=True, kw_only=True)
class SeriesAttack(OfSeries):
    """Membership by all stages of a series, beside its last checkpoint.

    The evidence is one row per stage and text: its mean NLL, and as ``place`` the stage
    that trained on its task, 0 if the order of tasks is not known. ``texts`` is the
    cross-validated score of the best guess without any audited checkpoint. Two rows
    with a ``dose`` are a canary and what could have been planted in its place.
    """

    name = "series"
    metrics = (
        _rate("auc", null=0.5, glance=(SERIES,)),
        *map(_rate, FPRS),
        *(Metric(f"{name}_gain", bounds=(-1.0, 1.0)) for name in ("auc", *FPRS)),
    )
    nothing = NO_ROWS
    unscored = ""
    alone = "no series of several stages was given"
    over = "trained rows compared with held-out rows"
    chance = True
    covers = ("auc", "n")
    unit = "of AUC"

    all_rows: Annotated[
        bool, "score every row at every stage, not only rows with an identifier"
    ] = False

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Rows of both sides, and canaries, each with one of its candidates.

        ``stages`` scores the rows with an identifier; no other audit the canaries.
        """
        tasks_in_order(manifest, self.order)
        sides = manifest.membership
        rows = {*sides.members, *sides.non_members}
        if not self.all_rows:
            rows &= {*identifiers.plan_of_identifiers(manifest).get(Pass(), ())}
        passes = {Pass(): sorted(rows), CANDIDATES: sorted(coins_of(manifest))}
        return {wanted: keys for wanted, keys in passes.items() if keys and rows}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        places = self.places(tables, manifest)
        ids = self.plan(manifest).get(Pass(), [])
        if not ids or not places:
            return Evidence()
        texts = [scored_text(manifest.by_id[key]) for key in ids]
        units, *_ = without_model(
            manifest, texts, ids, seed=context.seed, permutations=0
        )
        coins = coins_of(manifest)
        rows = units[["example", "task", "cluster", "member"]].assign(dose=0)
        # Two units a coin: the planted string, and the one that could have been.
        planted = [
            (row.id, row.task, one.canary_id, member, one.dose)
            for key, one in coins.items()
            for row in [manifest.by_id[parts_of(key)[-1]]]
            for member in (True, False)
        ]
        pairs = pd.DataFrame(planted, columns=[*rows])
        every = pd.concat([rows, pairs], ignore_index=True) if planted else rows

        def nll_of(scores: Mapping[Pass, TokenTable]) -> np.ndarray:
            """Mean NLL, nats per token; NaN where a unit was not scored."""
            found = np.full(len(every), np.nan)
            table, drawn = scores[Pass()], scores.get(CANDIDATES)
            for i, key in enumerate(ids):
                if key in table:
                    nll = table.columns["nll"][table.rows(key)]
                    found[i] = nll.mean(dtype=np.float64) if len(nll) else np.nan
            for i, (key, one) in enumerate(coins.items()):
                if drawn is not None and key in drawn and one.coin:
                    both = drawn.columns["nll_mean"][drawn.rows(key)]
                    at = len(ids) + 2 * i
                    found[at : at + 2] = both[::-1] if one.coin[1] else both
            return found

        untrained = dict(tables.get(BASE, {}))
        if Pass() not in untrained:
            untrained[Pass()] = reference_table(manifest, ids)
        base, unknown = nll_of(untrained), np.full(len(every), np.nan)
        seed, loss = seed_for(context.seed, "series", "texts"), -base[: len(ids)]
        guess = best_guess(texts, *labelled(units), {"loss": loss}, seed=seed)
        guessed = np.concatenate([guess, unknown[len(ids) :]])

        def measured() -> Measured:
            yield BASE, {"nll": base, "place": unknown, "texts": guessed}
            for name, own in places.items():
                place, nll = every["task"].map(own).fillna(0), nll_of(tables[name])
                yield name, {"nll": nll, "place": place, "texts": unknown}

        return Evidence.of(every, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Rows, findings, and membership by what there was after each stage."""
        rows, table, findings = list[Row](), list[dict[str, Any]](), list[Finding]()
        pooled, gains = dict[str, tuple[Group, Figures]](), dict[str, float]()
        coins: dict[str, StagedRows] = {}
        for name, stages, coins[name] in staged_series(evidence):
            if isinstance(stages, str):
                missing = "series", "series.missing"
                lost = Finding.not_tested(*missing, checkpoint=name, reason=stages)
                findings.append(lost)
                rows.append(self.row(Estimate.missing(stages), name, "auc", SERIES))
                continue
            scores = {name: {**stages.scores, "texts": stages.rows["texts"].to_numpy()}}
            known = stages.rows, scores, context, FPRS, context.seed
            parts = {"pooled": np.arange(len(stages.rows))}
            tasks = stages.rows.groupby("task").indices
            parts |= {f"task:{task}": np.asarray(at) for task, at in tasks.items()}
            for where, at in parts.items():
                group = Group(*known, where, at, seed_for(context.seed, "series"))
                row, made = partial(self.row, group=where), Figures()
                for of, metric in product(OFS, ("auc", *FPRS)):
                    found = group.estimate(name, of, metric)
                    rate = metric != "auc"
                    null = group.chance(name, of, FPRS[metric]) if rate else {}
                    made[metric, of] = row(found, name, metric, of, **null)
                for metric, found, p in group.differences((name, SERIES), (name, LAST)):
                    more = f"{metric}_gain"
                    made[more, ""] = row(found, name, more, null=0.0)
                    if (where, metric) == ("pooled", "auc"):
                        pooled[name] = group, made
                        gains[name] = 1.0 if p is None else p
                rows += made.values()
            table += _by_stage(name, stages)
        for name, p in holm_by_key(gains).items():
            findings.append(_finding(name, *pooled[name], p, len(pooled)))
        tables = {"series_stages": table}
        if bounds := [*epsilon_table(coins)]:
            tables["series_epsilon"] = bounds
        return AuditResult(rows=rows, findings=findings, tables=tables)


# --- scores of rows by all stages ---------------------------------------------------


@dataclass(frozen=True)
class StagedRows:
    """The rows of one series that have a place, and their NLL by stage.

    ``rows`` have their ``place`` from 1, and in ``texts`` the best guess without a
    model; ``fall`` is the fall of the NLL since the untrained model, nats per token,
    shape ``(stages, rows)``.
    """

    rows: pd.DataFrame
    fall: np.ndarray

    def take(self, kept: np.ndarray, stages: int | None = None) -> StagedRows:
        """Some of the rows, and the first stages."""
        return StagedRows(self.rows[kept], self.fall[:stages, kept])

    @property
    def scores(self) -> Mapping[str, np.ndarray]:
        """The three scores by name, shape ``(rows,)`` each."""
        stage, place = np.arange(len(self.fall))[:, None], self.rows["place"].to_numpy()
        known = np.where(stage >= place - 1, self.fall, -np.inf)
        own = np.diff(self.fall, axis=0, prepend=0.0)[place - 1, np.arange(len(place))]
        return {SERIES: known.max(axis=0), LAST: self.fall[-1], STEP: own}


def staged_series(
    evidence: Evidence,
) -> Iterator[tuple[str, StagedRows | str, StagedRows]]:
    """The series by name; of one that cannot be tested, why; its coins (dose > 0)."""
    names = (name for name in evidence.checkpoints if name != BASE)
    base, texts = (evidence.row(BASE, column) for column in ("nll", "texts"))
    coin = evidence.units["dose"].to_numpy() > 0
    for name, stages in grouped(names, series_of).items():
        stages = sorted(stages, key=lambda one: CheckpointName.parse(one).stage or 0)
        fall = np.stack([base - evidence.row(stage, "nll") for stage in stages])
        place = evidence.row(stages[0], "place").astype(int)
        whole = StagedRows(evidence.units.assign(place=place, texts=texts), fall)
        known = (place > 0) & np.isfinite(fall).all(axis=0)
        coins = whole.take(known & coin)
        sides = evidence.units[known & ~coin].groupby(["task", "member"]).size()
        sides = sides.unstack().reindex(columns=[True, False])
        enough = sides.index[sides.ge(FEWEST).all(axis=1)]
        known &= ~coin & evidence.units["task"].isin(enough).to_numpy()
        reason = TOO_FEW if (place > 0).any() else UNORDERED
        yield name, whole.take(known) if known.any() else reason, coins


def _by_stage(name: str, stages: StagedRows) -> Iterator[dict[str, Any]]:
    """AUC of the last checkpoint and of the series, had the run ended at a stage."""
    for stage in range(1, len(stages.fall) + 1):
        then = stages.take((stages.rows["place"] <= stage).to_numpy(), stage)
        if not len(then.rows):
            continue
        tasks = then.rows["place"].nunique()
        record = {"checkpoint": name, "stage": stage, "tasks": tasks}
        labels = (then.rows[column] for column in ("member", "cluster", "task"))
        design = Design.of(*labels)
        for of in (LAST, SERIES):
            auc, _ = auc_estimate(design, then.scores[of])
            ends = ("value", "low", "high")
            record |= {f"{of}_{end}": getattr(auc, end) for end in ends}
        yield record


def _finding(
    name: str, group: Group, rows: Figures, gain_p: float, series: int
) -> Finding:
    """Whether the series gives rows away, and whether it adds to its last stage."""
    row, above = rows["auc", SERIES], group.above_texts(name, SERIES)
    moved = group.p(name, SERIES)
    if above is None or moved is None:
        reason = row.note if row.value is None else NO_TEXTS
        missing = "series", "series.missing"
        return Finding.not_tested(*missing, checkpoint=name, reason=reason)
    needed = max(moved, above.p)
    claim: Claim = "nothing_shown"
    if needed < 0.05:
        claim = "membership"
    elif moved < 0.05 and above.told:
        claim = "confounded"
    gain = rows["auc_gain", ""]
    member = group.facts["member"]
    facts: dict[str, Fact] = {
        **above.facts(name, SERIES, audit="series"),
        "last": rows["auc", LAST],
        "gain": gain,
        "gain_p": gain_p,
        "adds": gain_p < 0.05 and (gain.value or 0.0) > 0,
        "series": series,
        "members": int(member.sum()),
        "others": int((~member.astype(bool)).sum()),
    }
    primary = {"p": needed, **above.figures()}
    return Finding.on(row, claim, f"series.{claim}", facts=facts, **primary)


# --- coins ----------------------------------------------------------------------------


def coins_of(manifest: Manifest) -> dict[str, ManifestCanary]:
    """Planted canaries that a coin can be told of, by the key of their pair.

    They are ours by their format: the bound rests on the draw.
    """
    return {
        key_of("coin", one.canary_id, min(at.example for at in one.contexts)): one
        for one in manifest.canaries
        if one.part == "full" and one.format in FORMATS
        if one.dose and not one.held_out and one.coin
    }


def epsilon_table(series: Mapping[str, StagedRows]) -> Iterator[dict[str, Any]]:
    """Lower bounds of each series' epsilon: by all its stages, and by the last one.

    Half of the coins are guessed, those whose two scores lie furthest apart; a tie is a
    wrong guess. All bounds of a report hold together at 95 % (Bonferroni).
    """
    known = {name: coins for name, coins in series.items() if len(coins.rows)}
    share = 0.05 / (2 * max(len(known), 1))
    for (name, coins), of in product(known.items(), (SERIES, LAST)):
        planted, other = coins.scores[of].reshape(-1, 2).T
        gap = planted - other
        guesses = declared_guesses(len(gap))
        surest = np.argsort(-np.abs(gap), kind="stable")[:guesses]
        record: dict[str, Any] = {
            "checkpoint": name,
            "of": of,
            "pairs": len(gap),
            "guesses": guesses,
            "right": int((gap[surest] > 0).sum()),
            "rows": int(coins.rows["dose"].max()),
            "significance": share,
        }
        record |= coin_figures(record, share)
        epsilon = record["epsilon_per_record"]
        key = "canary.bounded" if epsilon > 0 else "canary.bound_of_0"
        told = {**record, "epsilon": epsilon, "declared": True, "assumed": "drawn"}
        yield {**record, "says": sentences.render(key, **told)}
