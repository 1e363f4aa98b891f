"""Tests of membership scores, and what they are taken to mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_audit.audits.mia import estimates, score_tables
from spark_audit.audits.mia.guards import (
    ALL_ROWS,
    Findings,
    Record,
    _blind_guard,
    _covariates,
    _duplicates,
    _labels,
    _rows,
    _untrained,
)
from spark_audit.audits.setup_guards import ALARM, BASE_READ
from spark_audit.names import BASE
from spark_audit.results import (
    Claim,
    Contrast,
    Finding,
    Row,
)
from spark_audit.results.findings import Fact
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.bootstrap import correlated, holm
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.power import mde

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
            and row.of in score_tables.DECLARED_SCORES
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
    test: ScoreTest, auc: estimates.AboveTexts, pooled: estimates.MembershipGroup
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

        budget = score_tables.MEMBERSHIP_FPRS[metric]
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
class ScoreTest:
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

    def power(self, over: tuple[float, float]) -> list[Power]:
        """Return the tests that a claim needs: of the change, and beyond the texts.

        ``over`` is how many tests each of these two families is worth.
        """
        over_changes, over_excesses = over
        power = []
        row = self.row
        if row.mde:
            test = Power(
                test="t",
                se=row.mde / mde(1.0, clusters=row.clusters, level=row.level),
                df=row.clusters - 1,
                most=0.5,
                over=over_changes,
            )
            power.append(test)
        if self.above is not None:
            power += self.above.power(over=over_excesses)
        return power

    def finding(
        self,
        claim: Claim,
        *,
        further: Sequence[str],
        facts: Mapping[str, Fact],
        p: float,
        over: tuple[float, float],
    ) -> Finding:
        """Return the finding on a checkpoint that rests on this score."""
        says = f"mia.{claim}"
        power = self.power(over)
        bounds = self.bounds(over)
        if self.above is not None:
            return self.above.finding(
                self.row,
                claim,
                says,
                facts=facts,
                p=p,
                power=power,
                bounds=bounds,
                further=further,
            )
        return Finding.on(
            self.row,
            claim,
            says,
            facts=facts,
            further=further,
            unit="AUC",
            p=p,
            power=power,
            bounds=bounds,
        )

    def bounds(self, over: tuple[float, float]) -> list[Bound]:
        """Return what could still be there follows from: of the figure of the finding.

        ``over`` is how many tests the families of changes and of excesses are worth.
        """
        over_changes, over_excesses = over
        if self.above is not None:
            return self.above.bounds(over=over_excesses)

        # A score that is lower for members is turned round by who attacks with it.
        row = self.row
        direction = 1 if self.more else -1
        null = row.null or 0.0
        return t_bound(
            row.value,
            row.high if self.more else row.low,
            df=row.clusters - 1,
            direction=direction,
            null=null,
            most=null + direction * 0.5,
            over=over_changes,
        )

    @property
    def says(self) -> str:
        """The key of the sentence on its figure and on what it is compared with."""
        if self.above is None:
            return "mia.change" if isinstance(self.row, Contrast) else "mia.level"
        side = "above" if self.more else "below"
        bar = "chance" if self.above.is_bar_chance else "texts"
        return f"mia.{side}_{bar}"

    def remarks(self, n_rows: int) -> list[str]:
        """Return keys of what readers must know of its test.

        Parameters
        ----------
        n_rows
            Rows that are judged: where some lack a score, that is said.
        """
        if self.above is None:
            return ["mia.no_texts"]
        if self.above.difference.n < n_rows:
            return ["mia.rows_of_both"]
        return []

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
) -> tuple[Finding, dict[str, ScoreTest]]:
    """What is said of a checkpoint, and the tests of its usable scores."""
    pooled, tests = judged.pooled, dict[str, ScoreTest]()
    if not aucs:
        reason = (
            score_tables.NO_MEMBERS if len(pooled.rows) else estimates.TOO_FEW_MEMBERS
        )
        finding = Finding.not_tested(
            "mia", "mia.missing", checkpoint=name, reason=reason
        )
        return finding, {}
    for attack, row in aucs.items():
        p = row.p if isinstance(row, Contrast) else pooled.p(name, attack)
        if row.status in USABLE and p is not None:
            more = effect_of(row) > 0
            above = pooled.above_texts(name, attack, more=more, told=judged.before)
            # The sides differ in what is no training: nothing is clean then.
            doubted = judged.texts or attack in judged.apart
            tests[attack] = ScoreTest(
                row=row,
                p=p,
                above=above,
                told=doubted if above is None else above.told,
                beyond_p=(1.0 if doubted else p) if above is None else above.p,
            )
    void = sorted(a for a, row in aucs.items() if row.status not in USABLE)
    untested = sorted({*aucs} - {*tests, *void})
    unused: list[str] = []
    if void:
        unused.append("mia.void")
    if untested:
        unused.append("mia.untested")
    if not tests:
        finding = Finding.not_tested(
            "mia",
            "mia.no_score",
            checkpoint=name,
            further=unused,
            void=void,
            untested=untested,
        )
        return finding, {}

    moved, needed, over = _corrected(name, tests, pooled)
    members = int(judged.facts["member"].sum())
    facts: dict[str, Fact] = {
        "void": void,
        "untested": untested,
        "scores": len(tests),
        "members": members,
        "others": len(judged.facts) - members,
    }
    further: list[str] = []
    claim: Claim = "nothing_shown"
    if detected := [attack for attack in tests if needed[attack] < 0.05]:
        claim, best = "membership", _shown_of(detected, tests)
    elif apart := [a for a in tests if moved[a] < 0.05 and tests[a].told]:
        claim, best = "confounded", _shown_of(apart, tests)
        facts["differ_before"] = best in judged.apart
        further.append(
            "mia.differ_before" if best in judged.apart else "mia.texts_differ"
        )
    else:
        best = min(tests, key=lambda attack: (moved[attack], tests[attack].p))
        facts |= {"p": needed[best], "duplicates": ALL_ROWS in judged.void}
        further.append("mia.stronger")
        if ALL_ROWS in judged.void:
            further.append("mia.duplicates")
    test = tests[best]
    facts |= test.facts
    if len(tests) > 1:
        further.append("mia.choice")
    finding = test.finding(
        claim,
        further=[test.says, *further, *test.remarks(len(judged.facts)), *unused],
        facts=facts,
        p=min(needed.values()),
        over=over,
    )
    return finding, tests


def _corrected(
    name: str, tests: Mapping[str, ScoreTest], pooled: estimates.MembershipGroup
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


def _shown_of(found: list[str], tests: Mapping[str, ScoreTest]) -> str:
    """The score that is told: the one declared beforehand, where it may.

    The best of many looks better than it is.
    """
    if PRIMARY in found:
        return PRIMARY
    return max(found, key=lambda attack: abs(effect_of(tests[attack].row)))


def findings(
    pooled: estimates.MembershipGroup, told: Mapping[str, Any], *, seed: int
) -> Findings:
    """Judge the sets and the untrained model.

    Parameters
    ----------
    told
        Whether the untrained model's figures are ``borrowed``, and what the texts
        ``alone`` tell.
    """
    found = Findings(pooled, told["alone"] if len(pooled.rows) else {})
    facts = found.facts
    if told["borrowed"]:
        found.add("untrained model", "untrained_borrowed", {}, checkpoint=BASE)
    # The base tells trained rows from others better than their texts do.
    above = pooled.above_texts(BASE, "loss", texts="blind")
    if above is not None and above.p < ALARM:
        found.add(
            BASE_READ,
            "base_read",
            above.facts(BASE, "loss"),
            passed=False,
            checkpoint=BASE,
        )
    _rows(found, facts)
    _blind_guard(found, facts)
    _duplicates(found, len(facts))
    _labels(found, facts, seed)
    _covariates(found, facts)
    _untrained(found)
    return found
