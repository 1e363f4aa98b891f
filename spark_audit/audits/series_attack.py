"""What all stages of a run give away about a row beyond its last checkpoint.

Who has every stage sees each row at the stage that knew it best. The score, declared
beforehand: by how much the row's NLL fell since the untrained model, nats per token, at
its best stage since its own task was trained on. A held-out row takes the best of the
same stages of its task, so that without training both sides are alike. That of the last
stage alone stands beside it, and the fall by the stage of the row's own task ("step":
sequential membership inference, arXiv 2602.16596), which no claim rests on.

Epsilon is bounded from coins: a canary's candidates stand in neighbouring pairs, and
where the true one stands was drawn: which of its pair was planted is a fair coin. Both
are read in the canary's own row, with as many tokens each, and guessed by the score of
the series. A held-out canary would not do: it stands in another row, which alone can
make it likelier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables
from spark_audit.audits.canary.rank_tests import coin_figures
from spark_audit.audits.mia.estimates import Group, Known
from spark_audit.audits.mia.scores import NO_ROWS, reference_table, scored_text
from spark_audit.audits.mia.texts import best_guess, labelled, without_model
from spark_audit.audits.spans import plan_of_identifiers
from spark_audit.audits.task_accuracy import UNORDERED, check_order, places_of_tasks
from spark_audit.data.canaries import FORMATS
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.manifest.sequences import coin_key
from spark_audit.names import BASE, CheckpointName, series_of
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Claim, Estimate, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.epsilon import declared_guesses
from spark_audit.stats.roc import Design, auc_estimate

SERIES, LAST, STEP = "series", "last", "step"
FPRS = {"tpr_at_fpr_10": 0.1, "tpr_at_fpr_1": 0.01}
OFS = (SERIES, LAST, STEP)
FEWEST = 10
"""A task needs this many members and as many non-members to be estimated."""
TOO_FEW = f"each task has fewer than {FEWEST} trained or {FEWEST} held-out rows"
NO_TEXTS = "the texts alone could not be tested: too few groups of rows"
CANDIDATES = Pass("candidates")
Coins: TypeAlias = Mapping[str, ManifestCanary]
METRICS = (
    Metric(
        "auc", bounds=(0.0, 1.0), learned=1, variants=OFS, null=0.5, glance=(SERIES,)
    ),
    *(Metric(name, bounds=(0.0, 1.0), learned=1, variants=OFS) for name in FPRS),
    Metric("auc_gain", bounds=(-1.0, 1.0)),
    *(Metric(f"{name}_gain", bounds=(-1.0, 1.0)) for name in FPRS),
)


@dataclass(frozen=True, kw_only=True)
class SeriesAttack(Audit):
    """Membership by all stages of a series, beside its last checkpoint.

    The evidence is one row per stage and text: its mean NLL, and as ``place`` the stage
    that trained on its task, 0 if the order of tasks is not known. ``texts`` is the
    cross-validated score of the best guess without any audited checkpoint. Two rows
    with a ``dose`` are a canary and what could have been planted in its place.
    """

    name = "series"
    metrics = METRICS
    nothing = NO_ROWS
    unscored = ""
    alone = "no series of several stages was given"
    over = "trained rows compared with held-out rows"
    chance = True
    of_series = True
    covers = ("auc", "n")
    unit = "of AUC"
    frameworks = "AITG-MOD-04, AISVS v1.0-11.2.5"
    on_request = True
    public = ("series_epsilon",)

    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None
    all_rows: Annotated[
        bool, "score every row at every stage, not only rows with an identifier"
    ] = False

    def __post_init__(self) -> None:
        check_order(self.order)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Rows of both sides, and canaries, each with one of its candidates.

        ``stages`` scores the rows with an identifier; no other audit the canaries.
        """
        sides = manifest.membership
        rows = {*sides.members, *sides.non_members}
        if not self.all_rows:
            rows &= {*plan_of_identifiers(manifest).get(Pass(), ())}
        passes = {Pass(): sorted(rows), CANDIDATES: sorted(coins_of(manifest))}
        return {wanted: keys for wanted, keys in passes.items() if keys and rows}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        places = places_of_tasks(tables, manifest, self.order)
        ids = self.plan(manifest).get(Pass(), [])
        if not ids or not places:
            return Evidence()
        texts = [scored_text(manifest.by_id[key]) for key in ids]
        units, *_ = without_model(
            manifest, texts, ids, seed=context.seed, permutations=0
        )
        coins = coins_of(manifest)

        def nll_of(scores: Mapping[Pass, TokenTable]) -> np.ndarray:
            rows = _means(scores[Pass()], ids)
            return np.concatenate([rows, coin_nll(coins, scores.get(CANDIDATES))])

        untrained = dict(tables.get(BASE, {}))
        if Pass() not in untrained:
            untrained[Pass()] = reference_table(manifest, ids)
        base = nll_of(untrained)
        seed, loss = seed_for(context.seed, "series", "texts"), -base[: len(ids)]
        guess = best_guess(texts, *labelled(units), {"loss": loss}, seed=seed)
        rows = units[["example", "task", "cluster", "member"]].assign(dose=0)
        every = pd.concat([rows, coin_units(manifest, coins)], ignore_index=True)
        unknown = np.full(len(every), np.nan)
        guessed = np.concatenate([guess, unknown[len(ids) :]])

        def measured() -> Measured:
            yield BASE, {"nll": base, "place": unknown, "texts": guessed}
            for name, own in places.items():
                place = every["task"].map(own).fillna(0)
                nll = nll_of(tables[name])
                yield name, {"nll": nll, "place": place, "texts": unknown}

        return Evidence.of(every, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Rows, findings, and membership by what there was after each stage."""
        rows: list[Row] = []
        table: list[dict[str, Any]] = []
        pooled: dict[str, Group] = {}
        gains: dict[str, float] = {}
        findings: list[Finding] = []
        coins: dict[str, StagedRows] = {}
        for name, stages, coins[name] in all_series(evidence):
            if isinstance(stages, str):
                findings.append(_not_tested(name, stages))
                rows.append(self.row(Estimate.missing(stages), name, "auc", SERIES))
                continue
            for group in _groups(name, stages, context):
                gain = list(group.differences((name, SERIES), (name, LAST)))
                if group.name == "pooled":
                    p = gain[0][2]
                    pooled[name], gains[name] = group, 1.0 if p is None else p
                rows += _rows(name, group, gain)
            table += _by_stage(name, stages)
        adjusted = holm_by_key(gains)
        by_place = {(row.checkpoint, row.metric, row.of): row for row in rows[::-1]}
        for name, group in pooled.items():
            findings.append(
                _finding(name, group, adjusted[name], len(pooled), by_place)
            )
        tables = {"series_stages": table}
        if bounds := [*epsilon_table(coins)]:
            tables["series_epsilon"] = bounds
        return AuditResult(rows=rows, findings=findings, tables=tables)


def _means(table: TokenTable, ids: list[str]) -> np.ndarray:
    """Mean NLL of each text, nats per token, NaN where it was not scored."""
    nll = table.columns["nll"]
    found = np.full(len(ids), np.nan)
    for i, key in enumerate(ids):
        if key in table and len(values := nll[table.rows(key)]):
            found[i] = values.mean(dtype=np.float64)
    return found


# --- scores of rows by all stages ---------------------------------------------------


@dataclass(frozen=True)
class StagedRows:
    """The rows of one series that have a place, and their NLL by stage.

    ``fall`` is the fall of the NLL since the untrained model, nats per token, shape
    ``(stages, rows)``; ``place`` counts from 1, ``texts`` is the best guess without a
    model.
    """

    rows: pd.DataFrame
    fall: np.ndarray
    place: np.ndarray
    texts: np.ndarray

    def take(self, kept: np.ndarray, stages: int | None = None) -> StagedRows:
        """Some of the rows, and the first stages."""
        part = self.fall[:stages, kept]
        return StagedRows(self.rows[kept], part, self.place[kept], self.texts[kept])

    @property
    def scores(self) -> Mapping[str, np.ndarray]:
        """The three scores by name, shape ``(rows,)`` each."""
        stage = np.arange(1, len(self.fall) + 1)[:, None]
        known = np.where(stage >= self.place, self.fall, -np.inf)
        steps = np.diff(self.fall, axis=0, prepend=0.0)
        own = steps[self.place - 1, np.arange(len(self.place))]
        return {SERIES: known.max(axis=0), LAST: self.fall[-1], STEP: own}


def all_series(
    evidence: Evidence,
) -> Iterator[tuple[str, StagedRows | str, StagedRows]]:
    """The series by name; of one that cannot be tested, why; its coins (dose > 0)."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for name in evidence.checkpoints:
        if name != BASE:
            by_name[series_of(name)].append(name)
    base, texts = (evidence.row(BASE, column) for column in ("nll", "texts"))
    coin = evidence.units["dose"].to_numpy() > 0
    for name, stages in by_name.items():
        stages = sorted(stages, key=lambda one: CheckpointName.parse(one).stage or 0)
        fall = np.stack([base - evidence.row(stage, "nll") for stage in stages])
        place = evidence.row(stages[0], "place").astype(int)
        whole = StagedRows(evidence.units, fall, place, texts)
        known = (place > 0) & np.isfinite(fall).all(axis=0)
        coins = whole.take(known & coin)
        sides = evidence.units[known & ~coin].groupby(["task", "member"]).size()
        sides = sides.unstack().reindex(columns=[True, False])
        enough = sides.index[sides.ge(FEWEST).all(axis=1)]
        known &= ~coin & evidence.units["task"].isin(enough).to_numpy()
        if not (place > 0).any():
            yield name, UNORDERED, coins
        elif not known.any():
            yield name, TOO_FEW, coins
        else:
            yield name, whole.take(known), coins


def _groups(name: str, stages: StagedRows, context: Context) -> Iterator[Group]:
    """All rows, and those of each task."""
    scores = {name: {**stages.scores, "texts": stages.texts}}
    known = Known(stages.rows, scores, context, FPRS, context.seed)
    seed, tasks = seed_for(context.seed, "series"), stages.rows["task"].to_numpy()
    yield Group(known, "pooled", np.arange(len(tasks)), seed)
    for task in sorted(set(tasks)):
        yield Group(known, f"task:{task}", np.flatnonzero(tasks == task), seed)


def _rows(
    name: str, group: Group, gain: Iterable[tuple[str, Estimate, float | None]]
) -> Iterator[Row]:
    row = partial(SeriesAttack.row, group=group.name)
    for of in OFS:
        for metric in ("auc", *FPRS):
            null = group.chance(name, of, metric)
            yield row(group.estimate(name, of, metric), name, metric, of, **null)
    for metric, more, _ in gain:
        yield row(more, name, f"{metric}_gain", null=0.0)


def _by_stage(name: str, stages: StagedRows) -> Iterator[dict[str, Any]]:
    """AUC of the last checkpoint and of the series, had the run ended at a stage."""
    for stage in range(1, len(stages.fall) + 1):
        then = stages.take(stages.place <= stage, stage)
        if not len(then.rows):
            continue
        record = {"checkpoint": name, "stage": stage, "tasks": len({*then.place})}
        labels = (then.rows[column] for column in ("member", "cluster", "task"))
        design = Design.of(*labels)
        for of in (LAST, SERIES):
            auc = auc_estimate(design, then.scores[of])
            ends = ("value", "low", "high")
            record |= {f"{of}_{end}": getattr(auc, end) for end in ends}
        yield record


def _not_tested(name: str, reason: str) -> Finding:
    says = "series.missing"
    return Finding.not_tested("series", says, checkpoint=name, reason=reason)


def _finding(
    name: str,
    group: Group,
    gain_p: float,
    series: int,
    rows: dict[tuple[str, str, str], Row],
) -> Finding:
    """Whether the series gives rows away, and whether it adds to its last stage."""
    row, above = rows[name, "auc", SERIES], group.above_texts(name, SERIES)
    moved = group.p(name, SERIES)
    if above is None or moved is None:
        return _not_tested(name, row.note if row.value is None else NO_TEXTS)
    needed = max(moved, above.p)
    claim: Claim = "nothing_shown"
    if needed < 0.05:
        claim = "membership"
    elif moved < 0.05 and above.told:
        claim = "confounded"
    gain = rows[name, "auc_gain", ""]
    member = group.known.facts["member"]
    facts: dict[str, Fact] = {
        **above.rows(name, SERIES, audit="series"),
        "last": rows[name, "auc", LAST],
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


def coins_of(manifest: Manifest) -> Coins:
    """Planted canaries that a coin can be told of, by the key of their pair.

    They are ours by their format: the bound rests on the draw.
    """
    return {
        coin_key(one.canary_id, min(context.example for context in one.contexts)): one
        for one in manifest.canaries
        if one.part == "full" and one.format in FORMATS
        if one.dose and not one.held_out and one.coin
    }


def coin_units(manifest: Manifest, coins: Coins) -> pd.DataFrame:
    """Two units a coin: the planted string, and the one that could have been."""
    return pd.DataFrame.from_records(
        {
            "example": (row := manifest.by_id[key.partition("/")[2]]).id,
            "task": row.task,
            "cluster": one.canary_id,
            "member": member,
            "dose": one.dose,
        }
        for key, one in coins.items()
        for member in (True, False)
    )


def coin_nll(coins: Coins, table: TokenTable | None) -> np.ndarray:
    """Mean NLL of the units, nats per token; NaN where they were not scored."""
    nll = np.full((len(coins), 2), np.nan)
    for i, (key, one) in enumerate(coins.items()):
        if table is not None and key in table and one.coin:
            both = table.columns["nll_mean"][table.rows(key)]
            nll[i] = both[::-1] if one.coin[1] else both
    return nll.ravel()


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
