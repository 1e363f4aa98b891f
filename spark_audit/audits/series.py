"""Membership inference that reads all stages of a series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits import identifiers
from spark_audit.audits.base import Context, Metric, Plan, Tables
from spark_audit.audits.canary.epsilon import coin_figures
from spark_audit.audits.mia.best_guess import best_guess
from spark_audit.audits.mia.estimates import MembershipGroup
from spark_audit.audits.mia.score_tables import NO_MEMBERS, reference_table, scored_text
from spark_audit.audits.mia.texts import labelled, without_model
from spark_audit.audits.utility import UNORDERED, OfSeries, tasks_in_order
from spark_audit.data.canaries import CANARY_FORMATS
from spark_audit.manifest.encodings import key_of, parts_of
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.names import BASE, CheckpointName, series_of
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Claim, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.results.rows import grouped
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.clustered_roc import Design, auc_estimate
from spark_audit.stats.epsilon_bounds import declared_guesses
from spark_audit.stats.estimate import Estimate

SERIES, LAST, STEP = "series", "last", "step"

STAGE_FPRS = {"tpr_at_fpr_10": 0.1, "tpr_at_fpr_1": 0.01}

SERIES_ATTACKS = (SERIES, LAST, STEP)

_rate = partial(Metric, bounds=(0.0, 1.0), learned=1, variants=SERIES_ATTACKS)

MIN_ROWS_OF_TASK = 10
"""A task needs this many members and as many non-members to be estimated."""

TOO_FEW_ROWS = (
    f"each task has fewer than {MIN_ROWS_OF_TASK} trained "
    f"or {MIN_ROWS_OF_TASK} held-out rows"
)

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
        *map(_rate, STAGE_FPRS),
        *(Metric(f"{name}_gain", bounds=(-1.0, 1.0)) for name in ("auc", *STAGE_FPRS)),
    )
    nothing = NO_MEMBERS
    unscored = ""
    alone = "no series of several stages was given"
    over = "trained rows compared with held-out rows"
    chance = True
    covers = ("auc", "n")
    sides = ("members", "others")
    strongest_claim = "membership"
    table_rules = {"series_epsilon": "digits"}
    unit = "of AUC"

    all_rows: Annotated[
        bool, "score every row at every stage, not only rows with an identifier"
    ] = False

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return ``chance`` or ``best_guess``: what the AUC is claimed beyond."""
        return "chance" if finding.facts.get("is_bar_chance") else "best_guess"

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
        pooled, gains = dict[str, tuple[MembershipGroup, Figures]](), dict[str, float]()
        coins: dict[str, StagedRows] = {}
        for name, stages, coins[name] in staged_series(evidence):
            if isinstance(stages, str):
                findings.append(
                    Finding.not_tested(
                        "series", "series.missing", checkpoint=name, reason=stages
                    )
                )
                rows.append(self.row(Estimate.missing(stages), name, "auc", SERIES))
                continue
            scores = {name: {**stages.scores, "texts": stages.rows["texts"].to_numpy()}}
            parts = {"pooled": np.arange(len(stages.rows))}
            tasks = stages.rows.groupby("task").indices
            parts |= {f"task:{task}": np.asarray(at) for task, at in tasks.items()}
            for where, at in parts.items():
                group = MembershipGroup(
                    facts=stages.rows,
                    scores=scores,
                    context=context,
                    fprs=STAGE_FPRS,
                    chance_seed=context.seed,
                    name=where,
                    rows=at,
                    seed=seed_for(context.seed, "series"),
                )
                figures = {
                    (metric, attack): _attack_row(group, name, attack, metric)
                    for attack in SERIES_ATTACKS
                    for metric in ("auc", *STAGE_FPRS)
                }
                for metric, gain, p in group.differences((name, SERIES), (name, LAST)):
                    gain_metric = f"{metric}_gain"
                    figures[gain_metric, ""] = self.row(
                        gain, name, gain_metric, group=where, null=0.0
                    )
                    if (where, metric) == ("pooled", "auc"):
                        pooled[name] = group, figures
                        gains[name] = 1.0 if p is None else p
                rows += figures.values()
            table += _by_stage(name, stages)
        for name, p in holm_by_key(gains).items():
            findings.append(_finding(name, *pooled[name], p, len(pooled)))
        tables = {"series_stages": table}
        if bounds := [*epsilon_table(coins)]:
            tables["series_epsilon"] = bounds
        return AuditResult(rows=rows, findings=findings, tables=tables)


def _attack_row(group: MembershipGroup, name: str, attack: str, metric: str) -> Row:
    """Return the AUC or TPR of an attack; a rate has chance as its null value."""
    estimate = group.estimate(name, attack, metric)
    chance: Mapping[str, float] = {}
    if metric != "auc":
        chance = group.chance(name, attack, STAGE_FPRS[metric])
    return SeriesAttack.row(
        estimate,
        name,
        metric,
        attack,
        group=group.name,
        null=chance.get("null"),
        null_low=chance.get("null_low"),
        null_high=chance.get("null_high"),
    )


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
        enough = sides.index[sides.ge(MIN_ROWS_OF_TASK).all(axis=1)]
        known &= ~coin & evidence.units["task"].isin(enough).to_numpy()
        reason = TOO_FEW_ROWS if (place > 0).any() else UNORDERED
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
    name: str, group: MembershipGroup, rows: Figures, gain_p: float, series: int
) -> Finding:
    """Whether the series gives rows away, and whether it adds to its last stage."""
    row = rows["auc", SERIES]
    above = group.above_texts(name, SERIES)
    moved = group.p(name, SERIES)
    if above is None or moved is None:
        reason = row.note if row.value is None else NO_TEXTS
        return Finding.not_tested(
            "series", "series.missing", checkpoint=name, reason=reason
        )

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
    says = f"series.{claim}"
    if claim == "membership" and facts["adds"]:
        says = "series.membership_added"
    bar = "chance" if above.is_bar_chance else "texts"
    further = ["series.pairs", f"series.beyond_{bar}"]
    if claim != "confounded":
        further.append("series.adds" if facts["adds"] else "series.adds_nothing")
    return above.finding(
        row,
        claim,
        says,
        further=further,
        facts=facts,
        p=needed,
        power=above.power(),
        bounds=above.bounds(),
    )


def coins_of(manifest: Manifest) -> dict[str, ManifestCanary]:
    """Planted canaries that a coin can be told of, by the key of their pair.

    They are ours by their format: the bound rests on the draw.
    """
    return {
        key_of("coin", one.canary_id, min(at.example for at in one.contexts)): one
        for one in manifest.canaries
        if one.part == "full" and one.format in CANARY_FORMATS
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
        sentence = sentences.render(
            key, **record, epsilon=epsilon, declared=True, assumed="drawn"
        )
        yield {**record, "says": sentence}
