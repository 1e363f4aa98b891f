"""What the membership audit claims of a checkpoint, and guards of its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import guard
from spark_audit.audits.mia.estimates import TOLD, AboveTexts, Group
from spark_audit.audits.mia.scores import ATTACKS, DECLARED, FEWEST, NO_ROWS
from spark_audit.audits.mia.texts import label_test, labelled
from spark_audit.audits.setup_guards import ALARM, BASE_READ
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import (
    Claim,
    Contrast,
    Finding,
    Guard,
    Hits,
    Row,
    Status,
    number,
    side_of,
)
from spark_audit.results.findings import Fact, Power
from spark_audit.stats.bootstrap import correlated, holm, independent
from spark_audit.stats.matching import smd
from spark_audit.stats.power import mde

Record: TypeAlias = "dict[str, Any]"
R = TypeVar("R", bound=Row)
PRIMARY = "combined"
"""The score that is told where several detect."""
USABLE = ("ok", "insensitive")


def verdicts(
    names: list[str], rows: list[Row], contrasts: list[Contrast], judged: Findings
) -> tuple[list[Finding], list[Record]]:
    """What is said of each checkpoint but the untrained model, and on what.

    The table compares each score with the best guess from the texts alone; rates of the
    score that the sentence rests on.
    """
    found: list[Finding] = []
    table: list[Record] = []
    for name in names:
        if name == BASE:
            continue
        own, changes = _aucs(rows, name), _aucs(contrasts, name)
        concluded, tests = _concluded(name, own, changes, judged)
        found.append(concluded)
        for attack, test in tests.items():
            if (above := test.above) is not None:
                record = {"checkpoint": name, "of": attack, "metric": "auc"}
                table.append({**record, **above.record, "says": test.state})
        on = tests.get(concluded.of)
        if on is not None and on.above is not None and on.more:
            table += _rates(on, on.above, judged.pooled)
    return found, table


def _rates(test: Tested, auc: AboveTexts, pooled: Group) -> Iterator[Record]:
    """TPR of a score, compared with that of the texts alone."""
    name, attack = test.row.checkpoint, test.row.of
    for metric, apart, _ in pooled.differences((name, attack), (name, "texts")):
        alone = pooled.estimate(name, "texts", metric).value
        if metric == "auc" or apart.value is None or alone is None:
            continue
        score = alone + apart.value
        above = replace(auc, difference=apart, score=score, texts=alone)
        says = test.state if (apart.low or 0.0) > 0 else "not shown"
        record = {"checkpoint": name, "of": attack, "metric": metric}
        yield {**record, **above.record, "says": says}


def _aucs(rows: Sequence[R], name: str) -> dict[str, R]:
    """AUCs of a checkpoint, or changes since the untrained model, by score."""
    found = {
        row.of: row
        for row in rows
        if (row.checkpoint, row.group, row.metric) == (name, "pooled", "auc")
        and getattr(row, "baseline", BASE) == BASE
        and row.value is not None
    }
    return {of: found[of] for of in DECLARED if of in found}


@dataclass(frozen=True)
class Tested:
    """One score's test: of its change since the untrained model, or of its AUC.

    ``above`` is what it has beyond the texts alone: a weak difference in topic passes
    the guard and still moves every score. Where the texts were not tried, a score that
    a guard doubts claims nothing, and the sentence of any other says so. Only where
    the sides are ``told`` apart without training can a change be confounded with that.
    """

    row: Row
    p: float
    doubted: bool
    above: AboveTexts | None

    @property
    def more(self) -> bool:
        """Whether members look more familiar; else less."""
        return effect_of(self.row) > 0

    @property
    def told(self) -> bool:
        """Whether the sides are told apart without training."""
        return self.doubted if self.above is None else self.above.told

    @property
    def beyond_p(self) -> float:
        """P value of what a claim needs in addition to the change."""
        if self.above is not None:
            return self.above.p
        return 1.0 if self.doubted else self.p

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
        return facts | self.above.rows(self.row.checkpoint, self.row.of)


def effect_of(row: Row) -> float:
    """How far a figure is from its null."""
    return (row.value or 0.0) - (row.null or 0.0)


def _tests(
    name: str, own: Mapping[str, Row], changes: Mapping[str, Contrast], judged: Findings
) -> tuple[dict[str, Tested], dict[str, Any]]:
    """The test of each usable score, and which scores have none."""
    pooled, tests = judged.pooled, dict[str, Tested]()
    void: list[str] = []
    untested: list[str] = []
    for attack, row in own.items():
        change = changes.get(attack)
        tested = change or row
        p = change.p if change else pooled.p(name, attack)
        if tested.status not in USABLE:
            void.append(attack)
        elif p is None:
            untested.append(attack)
        else:
            more = effect_of(tested) > 0
            above = pooled.above_texts(name, attack, more=more, told=judged.before)
            tests[attack] = Tested(tested, p, judged.doubted(attack), above)
    return tests, {"void": sorted(void), "untested": sorted(untested)}


def base_read(pooled: Group) -> list[Guard]:
    """That the base tells trained rows from others better than their texts do."""
    above = pooled.above_texts(BASE, "loss", texts="blind")
    if above is None or above.p >= ALARM:
        return []
    facts = above.rows(BASE, "loss")
    return [guard(BASE_READ, "mia.base_read", facts, passed=False, checkpoint=BASE)]


def _concluded(
    name: str, own: Mapping[str, Row], changes: Mapping[str, Contrast], judged: Findings
) -> tuple[Finding, dict[str, Tested]]:
    not_tested = partial(Finding.not_tested, "mia", checkpoint=name)
    pooled = judged.pooled
    if not own:
        return not_tested("mia.missing", reason=pooled.reason or NO_ROWS), {}
    tests, facts = _tests(name, own, changes, judged)
    if not tests:
        return not_tested("mia.no_score", **facts), {}

    moved, needed, over = _corrected(name, tests, pooled)
    facts["scores"] = len(tests)
    member = pooled.known.facts["member"].to_numpy(bool)[pooled.rows]
    facts |= {"members": int(member.sum()), "others": int((~member).sum())}
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
    name: str, tests: Mapping[str, Tested], pooled: Group
) -> tuple[dict[str, float], dict[str, float], tuple[float, float]]:
    """P values of each score's change, and of its claim, over the whole panel.

    And how many independent tests the two families are worth.

    A claim needs the change and what is beyond the texts: each is one family of
    correlated tests, and the larger of a score's two p values is its own. Where the
    sides are told apart without training what a score shows beyond that is no sample
    of noise alone: nothing is gained there from how scores vary together.
    """
    change = {
        attack: BASE if isinstance(test.row, Contrast) else ""
        for attack, test in tests.items()
    }
    beyond = {a: "texts" if t.above else change[a] for a, t in tests.items()}
    ps = [test.p for test in tests.values()]
    further = [test.beyond_p for test in tests.values()]
    together = pooled.correlation(name, change)
    moved, worth = correlated(ps, together), independent(together)
    if any(test.told for test in tests.values()):
        excess, worth_excess = holm(further), float(len(tests))
    else:
        together = pooled.correlation(name, beyond)
        excess, worth_excess = correlated(further, together), independent(together)
    both = np.maximum(moved, excess)
    return (
        dict(zip(tests, moved.tolist(), strict=True)),
        dict(zip(tests, both.tolist(), strict=True)),
        (worth, worth_excess),
    )


def _shown_of(found: list[str], tests: Mapping[str, Tested]) -> str:
    """The score that is told: the one declared beforehand, where it may.

    The best of many looks better than it is.
    """
    if PRIMARY in found:
        return PRIMARY
    return max(found, key=lambda attack: abs(effect_of(tests[attack].row)))


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
    scores tell the sides, as one family; ``pooled`` has the scores of all rows.
    """

    pooled: Group
    alone: Mapping[str, float] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    void: dict[str, tuple[Status, str]] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    texts: bool = False
    before: bool = False
    apart: set[str] = field(default_factory=set)

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

    def doubted(self, attack: str) -> bool:
        """Whether the sides differ in what is no training: nothing is clean then."""
        return self.texts or attack in self.apart


def findings(pooled: Group, alone: Mapping[str, float], *, seed: int) -> Findings:
    """Judge the sets and the untrained model.

    Parameters
    ----------
    alone
        What the texts alone tell.
    """
    facts = pooled.known.facts.iloc[pooled.rows]
    found = Findings(pooled, alone if len(facts) else {})
    _rows(found, facts)
    _blind(found, facts)
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
        sd = float(np.sqrt((np.var(x, ddof=1) + np.var(y, ddof=1)) / 2))
        apart = smd(x, y, sd=sd) if sd > 0 else None
        yield {"task": task, "covariate": name, **figures, "smd": apart}


def _rows(found: Findings, facts: pd.DataFrame) -> None:
    members = int(facts["member"].sum())
    others = len(facts) - members
    clusters = facts.groupby("member")["cluster"].nunique()
    least = int(min(clusters.get(True, 0), clusters.get(False, 0)))
    tasks = facts["task"].nunique()
    seen: float | None = None
    if least > 1:
        seen = 2.8 * float(np.sqrt((members + others + 1) / (12 * members * others)))
    passed = False if seen is None else True if least >= FEW else None
    counts = {"members": members, "others": others, "tasks": tasks, "fewest": FEWEST}
    told = {**counts, "seen": seen}
    found.add("rows", "rows", told, passed=passed)


def _blind(found: Findings, facts: pd.DataFrame) -> None:
    name, alone = "blind text classifier", found.alone
    if "blind_p" not in alone:
        found.add(name, "blind_missing", {})
        return
    value, p = alone["blind_value"], alone["blind_p"]
    passed: bool | None = True
    says = "alike"
    if p < 0.05:
        passed, says = False, "unlike"
        found.texts = True
        found.beside[ALL] = TEXTS
    elif value > 0.55:
        passed, says = None, "unsure"
    columns: dict[str, Any] = {"audit": "mia", "checkpoint": "", "metric": "auc"}
    ends = {name: alone[f"blind_{name}"] for name in ("null_low", "null_high")}
    columns |= {"of": "blind", "clusters": facts["cluster"].nunique(), **ends}
    auc = Row(value=value, **columns)
    values: dict[str, Fact] = {"p": p, "auc": auc}
    values |= {of: alone[f"blind_{of}"] for of in ("permutations", "rows")}
    found.add(name, f"blind_{says}", values, passed=passed)


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
    removed = found.alone["duplicates_removed"]
    passed = False if blurred else None if known else True
    values: dict[str, Fact] = {"removed": removed, "left": left, "blurred": blurred}
    found.add(name, "duplicates", values, passed=passed)


def _labels(found: Findings, facts: pd.DataFrame, seed: int) -> None:
    p = label_test(*labelled(facts), seed=seed_for(seed, "mia", "labels"))
    if p is None:
        found.add("label balance", "labels_missing", {})
        return
    if p < 0.01:
        found.void["response"] = ("invalid", LABELS)
    passed = False if p < 0.01 else None if p < 0.05 else True
    values = {"p": p, "void": "response" in found.void}
    found.add("label balance", "labels", values, passed=passed)


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
    scored = [one for one in ATTACKS if not pooled.usable(BASE, one)]
    ps = {one: p for one in scored if (p := pooled.p(BASE, one)) is not None}
    together = pooled.correlation(BASE, dict.fromkeys(ps, ""))
    found.before = bool(ps) and bool(correlated([*ps.values()], together).min() < TOLD)
    for attack in DECLARED:
        estimate = pooled.estimate(BASE, attack)
        if (side := side_of(estimate, 0.5)) is None:
            alone.append(attack)
            continue
        holds = side == 0
        if not holds:
            found.apart.add(attack)
            found.beside[attack] = UNTRAINED
        auc = Row.of_estimate(
            estimate, audit="mia", checkpoint=BASE, metric="auc", of=attack
        )
        told = {"passed": holds, "checkpoint": BASE}
        facts: dict[str, Fact] = {"auc": auc, "holds": holds}
        found.add("untrained model", "untrained", facts, **told)
    if "loss" in found.apart:
        found.apart |= {*DECLARED}
        for attack in alone:
            found.beside[attack] = UNGUARDED
