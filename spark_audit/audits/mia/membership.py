"""Whether scores separate trained rows from held-out rows.

Members are train rows, non-members test rows; every score is larger for what looks
more like a member. An AUC is evidence of leakage only if nothing but training tells
the two sides apart: the untrained model should score 0.5, and so should a classifier
that sees the texts alone. Membership is claimed only of a score that changed since the
former and is above the best of the latter by more than chance; every figure stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import Audit, Context, Plan, Tables, guard, with_base
from spark_audit.audits.mia import estimates, scores
from spark_audit.audits.mia.referee import (
    given_files,
    outside_scores,
    read_rows,
    read_scores,
)
from spark_audit.audits.mia.texts import best_guess, label_test, labelled, without_model
from spark_audit.audits.setup_guards import ALARM, BASE_READ
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import (
    AuditResult,
    Claim,
    Contrast,
    Finding,
    Guard,
    Hits,
    Row,
    number,
)
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass
from spark_audit.sentences import p_value, render
from spark_audit.stats.bootstrap import correlated, holm
from spark_audit.stats.estimate import Estimate, Power, Status, side_of
from spark_audit.stats.matching import smd
from spark_audit.stats.power import NOT_DETECTED, mde
from spark_audit.stats.roc import tpr_by_task

CURVE = 20
"""Points of a ROC curve in the report."""
OF_BASE = ("loss", "mink10", "zlib")
"""What the untrained model gives a text: had of any manifest, as a guess at it."""
UNSCORED = "its texts were not scored"


@dataclass(frozen=True, kw_only=True)
class Membership(Audit):
    """Whether scores separate trained rows from held-out rows.

    The evidence is one row per checkpoint and example, without text: the scores of the
    checkpoint and of the text alone. ``label`` is a number within the task, ``texts``
    the cross-validated score of the best guess without any audited checkpoint,
    ``blind`` that of the classifier of the guard, NaN if there is none. A checkpoint
    named ``base`` is the untrained model: all scores are checked on it, ``reference``
    is relative to it, and every checkpoint is compared with it. Without such a
    checkpoint, the reference scores of the manifest are used.
    """

    name = "mia"
    metrics = scores.METRICS
    nothing = scores.NO_ROWS
    unscored = UNSCORED
    over = "trained rows compared with held-out rows"
    chance = True
    covers = ("auc", "n")
    unit = "of AUC"

    blind_permutations: Annotated[
        int, "permutations of the classifier that sees only the texts; 0: none"
    ] = 199
    scores_file: Annotated[
        str | None,
        "NAME=FILE,...: scores of other tools' attacks, by id; NAME=-FILE: the lower, "
        "the likelier a member",
    ] = None
    scores_rows: Annotated[
        Path | None,
        "rows of `manifest rows`, in whose order scores are that have no id",
    ] = None

    def __post_init__(self) -> None:
        if self.blind_permutations and self.blind_permutations < 20:
            what = f"{self.blind_permutations} permutations cannot give a p below 0.05"
            fix = "give at least 20, or 0 for no blind classifier"
            raise InputError(what, where="--blind-permutations", fix=fix)

    @property
    def inputs(self) -> list[Path]:
        rows = [] if self.scores_rows is None else [self.scores_rows]
        return [*rows, *(one.path for one in given_files(self.scores_file))]

    def check_names(self, names: Sequence[str]) -> None:
        rows = None if self.scores_rows is None else read_rows(self.scores_rows)
        for one in given_files(self.scores_file):
            read_scores(one, names, rows)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """All members and non-members."""
        sides = manifest.membership
        if not sides.members or not sides.non_members:
            return {}
        return {Pass(): sorted([*sides.members, *sides.non_members])}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        ids = self.plan(manifest).get(Pass(), [])
        scored = [name for name, passes in tables.items() if Pass() in passes]
        if not ids or not scored:
            return Evidence()
        if borrowed := BASE not in scored:
            scored, base = [BASE, *scored], scores.reference_table(manifest, ids)
        else:
            base = tables[BASE][Pass()]
        texts = [scores.scored_text(manifest.by_id[key]) for key in ids]
        options = {"seed": context.seed, "permutations": self.blind_permutations}
        units, alone, blind = without_model(manifest, texts, ids, **options)
        attacks = given_files(self.scores_file)
        outside = outside_scores(attacks, manifest, ids, scored, self.scores_rows)
        of_base = scores.membership_scores(base, manifest, ids)
        read = {of: of_base[of] for of in OF_BASE}
        seed = seed_for(context.seed, "mia", "texts")
        guess = best_guess(texts, *labelled(units), read, seed=seed)

        def measured() -> Measured:
            unknown = dict.fromkeys(scores.BESIDE, np.full(len(units), np.nan))
            for name in scored:
                if name == BASE:
                    own = {**of_base, "texts": guess, "blind": blind}
                else:
                    table = tables[name][Pass()]
                    own = scores.membership_scores(table, manifest, ids, base=base)
                    own |= unknown
                yield name, {**own, **outside[name]}

        lacking = [name for name in tables if name not in scored]
        told = {"alone": alone, "borrowed": borrowed, "unscored": lacking}
        if attacks:
            told["outside"] = list(dict.fromkeys(one.name for one in attacks))
        return Evidence.of(units, measured(), told)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Rows, contrasts, guards and verdict.

        ``auc`` and the rates are taken by task and averaged over the tasks with
        at least 20 members and 20 non-members.
        """
        names, outside = list(evidence.checkpoints), evidence.facts.get("outside", [])
        every = (*scores.ATTACKS, *outside)
        values = {
            name: {of: evidence.row(name, of) for of in every}
            | {of: evidence.row(BASE, of) for of in scores.BESIDE}
            for name in names
        }
        seed = partial(seed_for, context.seed, "mia")
        known = evidence.units, values, context, scores.FPRS, seed("chance")
        groups = {
            group: estimates.Group(*known, group, rows, seed(group))
            for group, rows in estimates.rows_by_group(evidence.units).items()
        }
        pooled = groups["pooled"]
        judged = findings(pooled, evidence.facts, seed=context.seed)
        rows = [
            row
            for group in groups.values()
            for name in names
            for attack in (*(every if group is pooled else scores.DECLARED), "blind")
            for row in rows_of(group, name, attack, judged)
        ]
        contrasts = [
            row
            for group in groups.values()
            for name, other in with_base(names, context.baselines)
            for attack in scores.DECLARED
            if other != BASE or attack not in scores.RELATIVE
            for row in contrasts_of(group, name, other, attack, judged)
        ]
        told, above = verdicts(names, [*rows, *contrasts], judged)
        for name in evidence.facts["unscored"]:
            lost: dict[str, Any] = {"checkpoint": name, "reason": UNSCORED}
            told.append(Finding.not_tested("mia", "mia.missing", **lost))
        tables = {
            "mia_covariates": [*covariate_table(judged.facts)],
            "mia_roc": [*curve_table(pooled, names)],
            "mia_texts": above,
            "mia_outside": judged_scores(names, outside, judged),
        }
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=judged.guards,
            findings=told,
            settings={"replicates": min(context.replicates, estimates.MOST_REPLICATES)},
            tables={name: table for name, table in tables.items() if table},
        )


def rows_of(
    group: estimates.Group, name: str, attack: str, judged: Findings
) -> Iterator[Row]:
    """AUC and rates of one score, with what the guards say of it."""
    pooled = group.name == "pooled"
    for metric in ("auc", *scores.FPRS):
        estimate, null = group.estimate(name, attack, metric), dict[str, float]()
        if estimate.value is not None and metric != "auc":
            null = group.chance(name, attack, scores.FPRS[metric])
        if attack == "blind" and estimate.value is not None:
            # Intervals that take cross-validated scores as given are too narrow.
            sizes: dict[str, Any] = {"n": estimate.n, "clusters": estimate.clusters}
            bare = Estimate(estimate.value, status=estimate.status, **sizes)
            estimate = bare.noting("cross-validated, without a model")
            if pooled and metric == "auc":
                told = judged.alone
                p, drawn = p_value(told["blind_p"]), told["blind_permutations"]
                estimate = estimate.noting(f"permutation {p}, {drawn} permutations")
                null = {end: told[f"blind_{end}"] for end in estimates.NULL}
        elif estimate.value is not None:
            estimate = _voided(estimate, judged, attack)
            if metric == "auc" and pooled:
                count = judged.facts["task"].nunique()
                over = f"mean over {count} tasks" if count > 1 else "1 task"
                estimate = estimate.noting(over)
            within = estimate.status == "ok" and side_of(estimate, 0.5) == 0
            if metric == "auc" and within and estimate.mde:
                estimate = estimate.noting(NOT_DETECTED)
        yield Membership.row(estimate, name, metric, attack, group=group.name, **null)


def _voided(
    estimate: Estimate, judged: Findings, attack: str, *, change: bool = False
) -> Estimate:
    """The estimate with the status and notes that the guards give it."""
    status, reason = judged.of(attack, change=change)
    note = "; ".join(filter(None, (reason, estimate.note)))
    status = estimate.status if status == "ok" else status
    return replace(estimate, status=status, note=note)


def contrasts_of(
    group: estimates.Group, name: str, other: str, attack: str, judged: Findings
) -> Iterator[Contrast]:
    """AUC and rates of one score minus those of another checkpoint."""
    columns = {"audit": "mia", "checkpoint": name, "group": group.name, "of": attack}
    columns |= {"baseline": other}
    for metric, estimate, p in group.differences((name, attack), (other, attack)):
        if estimate.value is not None:
            estimate = _voided(estimate, judged, attack, change=True)
        figure: dict[str, Any] = {"metric": metric, "p": p, "null": 0.0}
        yield Contrast.of_estimate(estimate, **columns, **figure)


def curve_table(pooled: estimates.Group, names: list[str]) -> Iterator[dict[str, Any]]:
    """Points of the ROC curves, with the band of a score that knows nothing.

    Budgets of false positives run from what one non-member of the smallest task
    allows to 1; a rate is the mean over tasks, as in the rows.
    """
    for name, attack in product(names, scores.DECLARED):
        if pooled.usable(name, attack):
            continue
        drawn, (values,) = pooled.drawn((name, attack))
        fewest = min((len(others) for _, others in drawn.design.tasks), default=0)
        if fewest < 2:
            continue
        # A hair above, or the smallest task's first false positive is lost.
        for fpr in np.geomspace(1 / fewest * (1 + 1e-9), 0.99, CURVE).tolist():
            if band := pooled.chance(name, attack, fpr):
                rates = [tpr.value for tpr in tpr_by_task(drawn.design, values, fpr)]
                point = {"checkpoint": name, "of": attack, "fpr": fpr}
                point["tpr"] = float(np.mean(rates))
                yield point | {
                    f"chance_{k}": band[f"null_{k}"] for k in ("low", "high")
                }


# --- what is claimed, and guards ------------------------------------------------------


Record: TypeAlias = "dict[str, Any]"
PRIMARY = "combined"
"""The score that is told where several detect."""
USABLE = ("ok", "insensitive")


def verdicts(
    names: Sequence[str], rows: Sequence[Row], judged: Findings
) -> tuple[list[Finding], list[Record]]:
    """What is said of each checkpoint but the untrained model, and on what.

    The table compares each score with the best guess from the texts alone; rates of the
    score that the sentence rests on. ``rows`` are all of the report, contrasts last.
    """
    found: list[Finding] = []
    table: list[Record] = []
    for name in names:
        if name == BASE:
            continue
        # Of each score its change since the untrained model, or where there is none
        # its AUC.
        aucs = {
            row.of: row
            for row in rows
            if (row.checkpoint, row.group, row.metric) == (name, "pooled", "auc")
            and getattr(row, "baseline", BASE) == BASE
            and row.value is not None
            and row.of in scores.DECLARED
        }
        concluded, tests = _concluded(name, aucs, judged)
        found.append(concluded)
        for attack, test in tests.items():
            if (above := test.above) is not None:
                record = {"checkpoint": name, "of": attack, "metric": "auc"}
                table.append({**record, **above.record, "says": test.state})
        on = tests.get(concluded.of)
        if on is not None and on.above is not None and on.more:
            table += _rates(on, on.above, judged.pooled)
    return found, table


def _rates(
    test: Tested, auc: estimates.AboveTexts, pooled: estimates.Group
) -> Iterator[Record]:
    """TPR of a score, compared with that of the texts alone and of chance."""
    name, attack = test.row.checkpoint, test.row.of
    for metric, over_texts, _ in pooled.differences((name, attack), (name, "texts")):
        if metric == "auc":
            continue
        rate = pooled.estimate(name, attack, metric)
        alone = pooled.estimate(name, "texts", metric).value
        if over_texts.value is None or rate.value is None or alone is None:
            continue

        budget = scores.FPRS[metric]
        chance = pooled.chance(name, attack, budget).get("null", budget)
        over_chance = estimates.less_chance(rate, chance)
        beyond = estimates.beyond_both(over_texts, over_chance)
        above = replace(
            auc,
            difference=beyond,
            score=alone + over_texts.value,
            texts=alone,
            chance=chance,
        )
        says = test.state if (beyond.low or 0.0) > 0 else "not shown"
        record = {"checkpoint": name, "of": attack, "metric": metric}
        yield {**record, **above.record, "says": says}


@dataclass(frozen=True)
class Tested:
    """One score's test: of its change since the untrained model, or of its AUC.

    ``above`` is what it has beyond the texts alone: a weak difference in topic passes
    the guard and still moves every score. Where the texts were not tried, a score that
    a guard doubts claims nothing, and the sentence of any other says so. Only where
    the sides are ``told`` apart without training can a change be confounded with that.
    ``beyond_p`` is the p value of what a claim needs in addition to the change.
    """

    row: Row
    p: float
    above: estimates.AboveTexts | None
    told: bool
    beyond_p: float

    @property
    def more(self) -> bool:
        """Whether members look more familiar; else less."""
        return effect_of(self.row) > 0

    @property
    def state(self) -> str:
        """What it is by itself."""
        if self.p < 0.05 and self.beyond_p < 0.05:
            return "detected"
        return "confounded" if self.p < 0.05 and self.told else "not shown"

    def figures(self, over: tuple[float, float]) -> dict[str, Any]:
        """What is claimed: by how much a score exceeds the texts alone.

        ``over`` is how many tests the families of changes and of what is beyond the
        texts are worth: a claim needs both.
        """
        row, power = self.row, []
        if row.mde:
            se = row.mde / mde(1.0, clusters=row.clusters, level=row.level)
            df = row.clusters - 1
            power.append(Power(test="t", se=se, df=df, most=0.5, over=over[0]))
        if self.above is None:
            return {"unit": "AUC", "power": power}
        beyond = self.above.figures(over=over[1])
        return {**beyond, "power": [*power, *beyond["power"]]}

    @property
    def facts(self) -> dict[str, Fact]:
        """The score, compared with the texts alone where they were tested."""
        facts: dict[str, Fact] = {"attack": self.row.of, "turned": not self.more}
        if self.above is None:
            return facts | {"auc": self.row}
        return facts | self.above.facts(self.row.checkpoint, self.row.of)


def effect_of(row: Row) -> float:
    """How far a figure is from its null."""
    return (row.value or 0.0) - (row.null or 0.0)


def _concluded(
    name: str, aucs: Mapping[str, Row], judged: Findings
) -> tuple[Finding, dict[str, Tested]]:
    """What is said of a checkpoint, and the tests of its usable scores."""
    not_tested = partial(Finding.not_tested, "mia", checkpoint=name)
    pooled, tests = judged.pooled, dict[str, Tested]()
    if not aucs:
        reason = scores.NO_ROWS if len(pooled.rows) else estimates.TOO_FEW
        return not_tested("mia.missing", reason=reason), {}
    for attack, row in aucs.items():
        p = row.p if isinstance(row, Contrast) else pooled.p(name, attack)
        if row.status in USABLE and p is not None:
            more = effect_of(row) > 0
            above = pooled.above_texts(name, attack, more=more, told=judged.before)
            # The sides differ in what is no training: nothing is clean then.
            doubted = judged.texts or attack in judged.apart
            beyond = doubted, 1.0 if doubted else p
            if above is not None:
                beyond = above.told, above.p
            tests[attack] = Tested(row, p, above, *beyond)
    void = sorted(a for a, row in aucs.items() if row.status not in USABLE)
    untested = sorted({*aucs} - {*tests, *void})
    facts: dict[str, Any] = {"void": void, "untested": untested}
    if not tests:
        return not_tested("mia.no_score", **facts), {}

    moved, needed, over = _corrected(name, tests, pooled)
    members = int(judged.facts["member"].sum())
    facts |= {"scores": len(tests), "members": members}
    facts["others"] = len(judged.facts) - members
    claim: Claim = "nothing_shown"
    if detected := [attack for attack in tests if needed[attack] < 0.05]:
        claim, best = "membership", _shown_of(detected, tests)
    elif apart := [a for a in tests if moved[a] < 0.05 and tests[a].told]:
        claim, best = "confounded", _shown_of(apart, tests)
        facts["differ_before"] = best in judged.apart
    else:
        best = min(tests, key=lambda attack: (moved[attack], tests[attack].p))
        facts |= {"p": needed[best], "duplicates": ALL in judged.void}
    test = tests[best]
    facts |= test.facts
    primary = {"p": min(needed.values()), **test.figures(over)}
    return Finding.on(test.row, claim, f"mia.{claim}", facts=facts, **primary), tests


def _corrected(
    name: str, tests: Mapping[str, Tested], pooled: estimates.Group
) -> tuple[dict[str, float], dict[str, float], tuple[float, float]]:
    """P values of each score's change, and of its claim, over the whole panel.

    And how many independent tests the two families are worth.

    A claim needs the change and what is beyond the texts: each is one family of
    correlated tests, and the larger of a score's two p values is its own. Where the
    sides are told apart without training what a score shows beyond that is no sample
    of noise alone: nothing is gained there from how scores vary together.
    """
    change = {
        attack: (BASE, attack) if isinstance(test.row, Contrast) else None
        for attack, test in tests.items()
    }
    together = pooled.correlation(name, change)
    moved, worth = correlated([test.p for test in tests.values()], together)
    further = [test.beyond_p for test in tests.values()]
    excess, worth_excess = holm(further), float(len(tests))
    if not any(test.told for test in tests.values()):
        bars: dict[str, tuple[str, str] | None] = {}
        for attack, test in tests.items():
            bars[attack] = change[attack]
            if test.above is not None:
                # Chance does not vary with a score.
                is_chance = test.above.is_bar_chance
                bars[attack] = None if is_chance else (name, "texts")
        excess, worth_excess = correlated(further, pooled.correlation(name, bars))
    both = np.maximum(moved, excess)
    changed, claimed = (dict(zip(tests, ps, strict=True)) for ps in (moved, both))
    return changed, claimed, (worth, worth_excess)


def _shown_of(found: list[str], tests: Mapping[str, Tested]) -> str:
    """The score that is told: the one declared beforehand, where it may.

    The best of many looks better than it is.
    """
    if PRIMARY in found:
        return PRIMARY
    return max(found, key=lambda attack: abs(effect_of(tests[attack].row)))


def judged_scores(
    names: Sequence[str], attacks: Sequence[str], judged: Findings
) -> list[Record]:
    """What each attack shows of each checkpoint, by the guards of our own scores.

    It detects where it scores trained rows higher than the base did (or, without scores
    of the base, than chance), and exceeds the best guess from the texts alone; p values
    are corrected (Holm) over attacks and checkpoints. Of a score that is lower of
    trained rows a warning asks whether it is the wrong way round.
    """
    pooled, records = judged.pooled, list[Record]()
    for name, attack in product((one for one in names if one != BASE), attacks):
        estimate = pooled.estimate(name, attack)
        above = pooled.above_texts(name, attack, told=judged.texts)
        record = {"checkpoint": name, "of": attack, "rows": estimate.n}
        records.append(record)
        if estimate.value is None or above is None:
            says = estimate.note or "the best guess was not tested beside it"
            record |= {"score": estimate.value, "says": f"not estimable: {says}"}
            continue
        moved, p = estimate.value - 0.5, pooled.p(name, attack)
        is_lower = side_of(estimate, 0.5) == -1
        if not pooled.usable(BASE, attack):
            (_, change, p), *_ = pooled.differences((name, attack), (BASE, attack))
            moved = change.value or 0.0
            is_lower &= side_of(change) == -1
        if is_lower:
            auc = Membership.row(estimate, name, "auc", attack)
            facts: dict[str, Fact] = {"auc": auc, "attack": attack}
            judged.add("scores of other tools", "outside", facts, checkpoint=name)
            record["note"] = render("mia.reversed", attack=attack)
        rising = 1.0 if p is None or moved <= 0 else p
        says = "confounded" if above.told and rising < 0.05 else "not shown"
        record |= {**above.record, "p": max(rising, above.p)}
        record |= {"status": judged.of(attack)[0], "says": says}
    tested = [one for one in records if "p" in one]
    ps = holm([one["p"] for one in tested]).tolist()
    for one, p in zip(tested, ps, strict=True):
        one["p_adjusted"] = p
        if p < 0.05:
            one["says"] = "detected" if one["status"] == "ok" else one["status"]
    return records


# --- guards and notes, from the evidence alone ----------------------------------------


FEW = 100
TEXTS = (
    "texts of members and non-members differ, so the AUC must exceed that of the texts "
    "alone"
)
LABELS = "INVALID: labels of members and non-members differ"
DUPLICATES = "both sides contain near-duplicates, which pull the AUC towards 0.5"
APART = (
    "the two sides differ before training, so a change can be generalisation instead "
    "of membership"
)
UNTRAINED = "the AUC of the untrained model is not 0.5 either: only the change counts"
UNGUARDED = (
    "the AUC of loss is not 0.5 for the untrained model, and it has no AUC of this "
    "score: the two sides differ before training"
)
BLURRED, UNUSABLE = 0.01, 0.2
"""Shares of rows with a near-duplicate on the other side: figures are drawn to chance,
and are of no use."""
ALL = ""


@dataclass
class Findings:
    """Guards, and what they say of which score (:data:`ALL`: of all of them).

    ``void`` takes a score's status, for rows that cannot be used; ``beside`` is noted
    of a figure that stands. ``texts`` is whether the texts alone tell the sides apart,
    ``apart`` are scores a change of which is no clean evidence of membership
    (:data:`APART`): those whose AUC of the untrained model is not 0.5, and all of them
    where that is so of ``loss``. A score of few tokens passes where the sides differ.
    ``alone`` is what the texts alone tell, ``before`` whether the untrained model's
    scores tell the sides, as one family; ``pooled`` has the scores of all rows that
    are judged, ``facts`` what is known of these rows.
    """

    pooled: estimates.Group
    alone: Mapping[str, float] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    void: dict[str, tuple[Status, str]] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    texts: bool = False
    before: bool = False
    apart: set[str] = field(default_factory=set)

    @cached_property
    def facts(self) -> pd.DataFrame:
        return self.pooled.facts.iloc[self.pooled.rows]

    def add(self, name: str, says: str, facts: Mapping[str, Fact], **more: Any) -> None:
        """Add a guard, by default a warning."""
        self.guards.append(guard(name, f"mia.{says}", facts, **more))

    def of(self, attack: str, *, change: bool = False) -> tuple[Status, str]:
        """Status and notes that a score's figures, or changes of them, must bear."""
        status, reason = self.void.get(attack) or self.void.get(ALL) or ("ok", "")
        own = self.beside.get(attack, "")
        if change and attack in self.apart:
            own = APART
        notes = dict.fromkeys((reason, own, self.beside.get(ALL, "")))
        return status, "; ".join(note for note in notes if note)


def findings(
    pooled: estimates.Group, told: Mapping[str, Any], *, seed: int
) -> Findings:
    """Judge the sets and the untrained model.

    Parameters
    ----------
    told
        Whether the untrained model's figures are ``borrowed``, and what the texts
        ``alone`` tell.
    """
    found = Findings(pooled, told["alone"] if len(pooled.rows) else {})
    facts, of_base = found.facts, {"checkpoint": BASE}
    if told["borrowed"]:
        found.add("untrained model", "untrained_borrowed", {}, **of_base)
    # The base tells trained rows from others better than their texts do.
    above = pooled.above_texts(BASE, "loss", texts="blind")
    if above is not None and above.p < ALARM:
        read = above.facts(BASE, "loss")
        found.add(BASE_READ, "base_read", read, passed=False, **of_base)
    _rows(found, facts)
    _blind_guard(found, facts)
    _duplicates(found, len(facts))
    _labels(found, facts, seed)
    _covariates(found, facts)
    _untrained(found)
    return found


def covariate_table(facts: pd.DataFrame) -> Iterator[Record]:
    """Length and compressed size of members against non-members, by task.

    ``ks`` and ``p`` of Kolmogorov-Smirnov with rows taken as independent, and ``smd``,
    the mean difference over the pooled SD (``None`` where that is 0).
    """
    tasks = facts.groupby("task", sort=False)
    for (task, part), name in product(tasks, ("length", "zlib_bytes")):
        sides = (part.loc[part["member"] == side, name] for side in (True, False))
        x, y = (side.dropna().to_numpy(np.float64) for side in sides)
        if len(x) < 2 or len(y) < 2:
            continue
        test = scipy.stats.ks_2samp(x, y)
        figures = {"ks": float(test.statistic), "p": float(test.pvalue)}
        clusters = int(part.groupby("member")["cluster"].nunique().min())
        sd = float(np.sqrt((np.var(x, ddof=1) + np.var(y, ddof=1)) / 2))
        apart = smd(x, y, sd=sd) if sd > 0 else None
        record = {"task": task, "covariate": name, **figures, "smd": apart}
        yield record | {"clusters": clusters}


def _rows(found: Findings, facts: pd.DataFrame) -> None:
    members = int(facts["member"].sum())
    others = len(facts) - members
    clusters = facts.groupby("member")["cluster"].nunique()
    least = int(min(clusters.get(True, 0), clusters.get(False, 0)))
    told: dict[str, Fact] = {
        "members": members,
        "others": others,
        "fewest": scores.FEWEST,
    }
    told |= {"tasks": facts["task"].nunique(), "seen": None}
    if least > 1:
        share = (members + others + 1) / (12 * members * others)
        told["seen"] = 2.8 * float(np.sqrt(share))
    passed = False if least < 2 else True if least >= FEW else None
    found.add("rows", "rows", told, passed=passed)


def _blind_guard(found: Findings, facts: pd.DataFrame) -> None:
    name, alone = "blind text classifier", found.alone
    if "blind_p" not in alone:
        found.add(name, "blind_missing", {})
        return
    value, p = alone["blind_value"], alone["blind_p"]
    passed, says = (None, "unsure") if value > 0.55 else (True, "alike")
    if p < 0.05:
        passed, says = False, "unlike"
        found.texts, found.beside[ALL] = True, TEXTS
    columns: dict[str, Any] = {"checkpoint": "", "metric": "auc", "of": "blind"}
    columns |= {of: alone[f"blind_{of}"] for of in ("value", "null_low", "null_high")}
    auc = Row(audit="mia", clusters=facts["cluster"].nunique(), **columns)
    values = {of: alone[f"blind_{of}"] for of in ("p", "permutations", "rows")}
    found.add(name, f"blind_{says}", {"auc": auc, **values}, passed=passed)


def _duplicates(found: Findings, rows: int) -> None:
    name, known = "near-duplicates", found.alone.get("duplicates_left")
    if known is None:
        found.add(name, "duplicates_missing", {})
        return
    left = Hits(count=int(known), of=rows)
    blurred = known > BLURRED * rows
    if blurred:
        void: Status = "invalid" if known > UNUSABLE * rows else "insensitive"
        found.void[ALL] = (void, DUPLICATES)
    passed = False if blurred else None if known else True
    values: dict[str, Fact] = {"left": left, "blurred": blurred}
    values["removed"] = found.alone["duplicates_removed"]
    found.add(name, "duplicates", values, passed=passed)


def _labels(found: Findings, facts: pd.DataFrame, seed: int) -> None:
    p = label_test(*labelled(facts), seed=seed_for(seed, "mia", "labels"))
    if p is None:
        found.add("label balance", "labels_missing", {})
        return
    if p < 0.01:
        found.void["response"] = ("invalid", LABELS)
    passed = False if p < 0.01 else None if p < 0.05 else True
    found.add("label balance", "labels", {"p": p, "void": p < 0.01}, passed=passed)


def _covariates(found: Findings, facts: pd.DataFrame) -> None:
    rows = [*covariate_table(facts)]
    apart = [r for r in rows if r["p"] < 0.01 and abs(r["smd"] or 0.0) > 0.1]
    passed = None if apart or not rows else True
    says = "apart" if apart else "alike" if rows else "missing"
    values = {
        "covariates": [r["covariate"] for r in apart],
        "tasks": [r["task"] for r in apart],
        "smds": [number(r["smd"], 2) for r in apart],
    }
    found.add("text covariates", f"covariates_{says}", values, passed=passed)


def _untrained(found: Findings) -> None:
    pooled, alone = found.pooled, list[str]()
    scored = [one for one in scores.ATTACKS if not pooled.usable(BASE, one)]
    ps = {one: p for one in scored if (p := pooled.p(BASE, one)) is not None}
    if ps:
        together = pooled.correlation(BASE, dict.fromkeys(ps))
        least = correlated([*ps.values()], together)[0].min()
        found.before = bool(least < estimates.TOLD)
    for attack in scores.DECLARED:
        estimate = pooled.estimate(BASE, attack)
        if (side := side_of(estimate, 0.5)) is None:
            alone.append(attack)
            continue
        holds = side == 0
        if not holds:
            found.apart.add(attack)
            found.beside[attack] = UNTRAINED
        columns = {"audit": "mia", "checkpoint": BASE, "metric": "auc", "of": attack}
        auc, told = Row.of_estimate(estimate, **columns), {"passed": holds}
        facts: dict[str, Fact] = {"auc": auc, "holds": holds}
        found.add("untrained model", "untrained", facts, **told, checkpoint=BASE)
    if "loss" in found.apart:
        found.apart |= {*scores.DECLARED}
        found.beside |= dict.fromkeys(alone, UNGUARDED)
