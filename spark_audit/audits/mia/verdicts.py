"""What the membership audit says of a checkpoint: one sentence, on one score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from spark_audit.audits.claims import ALARM, BASE_READ
from spark_audit.audits.contract import BASE
from spark_audit.audits.mia.estimates import NO_ROWS, AboveTexts, Group
from spark_audit.audits.mia.membership_guards import ALL, APART, Findings
from spark_audit.audits.mia.scores import ATTACKS, DECLARED, FPRS
from spark_audit.audits.wording import figure, p_value
from spark_audit.results import Claim, Contrast, Finding, Guard, Row, number
from spark_audit.results.findings import Power
from spark_audit.stats.bootstrap import correlated, holm, independent
from spark_audit.stats.power import mde

Record: TypeAlias = "dict[str, Any]"
TOLD = 0.01
"""p below which the texts alone tell the sides apart; of out-of-fold scores it is
somewhat too small."""
PRIMARY = "combined"
"""The score that is told where several detect."""
USABLE = ("ok", "insensitive")
LEAST_P = 1e-4
"""Smaller p values are only said to be below it."""


def verdicts(
    names: list[str],
    rows: list[Row],
    contrasts: list[Contrast],
    pooled: Group,
    judged: Findings,
) -> tuple[list[Finding], list[Record]]:
    """What is said of each checkpoint but the untrained model, and on what.

    The table holds each score beside the best guess from the texts alone; rates of the
    score that the sentence rests on.
    """
    found: list[Finding] = []
    table: list[Record] = []
    for name in names:
        if name == BASE:
            continue
        own = {
            row.of: row
            for row in rows
            if (row.checkpoint, row.group, row.metric) == (name, "pooled", "auc")
            and row.of in DECLARED
            and row.value is not None
        }
        changes = {
            row.of: row
            for row in contrasts
            if (row.checkpoint, row.baseline, row.group, row.metric)
            == (name, BASE, "pooled", "auc")
            and row.value is not None
        }
        concluded, tests = _concluded(name, own, changes, pooled, judged)
        found.append(concluded)
        for attack, test in tests.items():
            if test.above is not None:
                table.append(_beside(name, attack, test))
        on = tests.get(concluded.of)
        if on is not None and on.above is not None and on.more:
            table += _rates(name, concluded.of, on, rows, contrasts, pooled)
    return found, table


def _beside(name: str, attack: str, test: Tested) -> Record:
    """The AUC of a score beside that of the texts alone."""
    assert test.above is not None
    apart = test.above.difference
    return {
        "checkpoint": name,
        "of": attack,
        "metric": "auc",
        "score": test.above.score,
        "texts": test.above.texts,
        "difference": apart.value,
        "low": apart.low,
        "high": apart.high,
        "mde": apart.mde,
        "says": test.state,
    }


def _rates(
    name: str,
    attack: str,
    test: Tested,
    rows: list[Row],
    contrasts: list[Contrast],
    pooled: Group,
) -> Iterator[Record]:
    """TPR of a score beside that of the texts alone."""
    place = (name, "pooled", attack)
    for metric in FPRS:
        mine = [
            row
            for row in (*rows, *contrasts)
            if (row.checkpoint, row.group, row.of, row.metric) == (*place, metric)
            and getattr(row, "baseline", BASE) == BASE
            and row.value is not None
        ]
        # `reference` is a change by itself: its null is chance.
        since = next((row for row in mine if isinstance(row, Contrast)), None)
        own = next((row for row in mine if not isinstance(row, Contrast)), None)
        if own is None:
            continue
        apart, alone = pooled.rate_above(name, attack, metric)
        risen = (own.low or 0.0) > (own.null_high or 1.0)
        if since is not None:
            risen = since.low is not None and since.low > 0
        yield {
            "checkpoint": name,
            "of": attack,
            "metric": metric,
            "score": alone + (apart.value or 0.0),
            "texts": alone,
            "difference": apart.value,
            "low": apart.low,
            "high": apart.high,
            "mde": apart.mde,
            "says": _state(risen, (apart.low or 0.0) > 0, told=test.told),
        }


def _state(risen: bool, above: bool, *, told: bool) -> str:
    """``detected``, ``confounded`` where the texts tell the sides, or not shown."""
    if risen and above:
        return "detected"
    return "confounded" if risen and told else "not shown"


def verdict(
    name: str, claim: Claim, said: str, row: Row | None = None, **more: Any
) -> Finding:
    """A finding that begins with its checkpoint."""
    where = {"audit": "mia", "checkpoint": name}
    return Finding.on(row, claim, f"{name}: {said}", **where, **more)


@dataclass(frozen=True)
class Tested:
    """One score's test: of its change since the untrained model, or of its AUC.

    ``above`` is what it has beyond the texts alone: a weak difference in topic passes
    the guard and still moves every score. Where the texts were not tried, a score that
    a guard doubts claims nothing, and the sentence of any other says so. Only where
    the sides are ``told`` apart without training can a change be confounded with that:
    by the texts, or ``before`` by the untrained model.
    """

    row: Row
    p: float
    doubted: bool = False
    before: bool = False
    above: AboveTexts | None = None

    @property
    def more(self) -> bool:
        """Whether members look more familiar; else less."""
        return self.effect > 0

    @property
    def effect(self) -> float:
        """How far the figure is from its null."""
        return (self.row.value or 0.0) - (self.row.null or 0.0)

    @property
    def told(self) -> bool:
        """Whether the sides are told apart without training."""
        if self.above is None:
            return self.doubted
        return self.before or self.above.told_p < TOLD

    @property
    def state(self) -> str:
        """What it is by itself."""
        assert self.above is not None
        above = self.above.excess_p(told=self.told) < 0.05
        return _state(self.p < 0.05, above, told=self.told)

    def figures(self, over: tuple[float, float]) -> dict[str, Any]:
        """What is claimed: of a score beside the texts, by how much it is beyond.

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
        apart, most = self.above.difference, 1 - self.above.texts
        if apart.se:
            test = Power(test="t", se=apart.se, df=apart.clusters - 1, over=over[1])
            margin = self.above.margin(told=self.told)
            power.append(test.model_copy(update={"most": most, "beyond": margin}))
        own = {"value": apart.value, "low": apart.low, "high": apart.high}
        return {**own, "null": 0.0, "unit": "AUC", "power": power}

    @property
    def beyond_p(self) -> float:
        """P value of what a claim needs beside the change."""
        if self.above is not None:
            return self.above.excess_p(told=self.told)
        return 1.0 if self.doubted else self.p


def _tests(
    name: str,
    own: Mapping[str, Row],
    changes: Mapping[str, Contrast],
    pooled: Group,
    judged: Findings,
) -> tuple[dict[str, Tested], str]:
    """The test of each usable score, and which scores have none, in words."""
    tests: dict[str, Tested] = {}
    void, untested = [], []
    before = _told_before(pooled)
    for attack, row in own.items():
        change = changes.get(attack)
        tested = change or row
        p = change.p if change else pooled.p(name, attack)
        if tested.status not in USABLE:
            void.append(attack)
        elif p is None:
            untested.append(attack)
        else:
            test = Tested(tested, p, judged.doubted(attack), before)
            above = pooled.above_texts(name, attack, more=test.more)
            tests[attack] = replace(test, above=above)
    tail = f" Void: {', '.join(sorted(void))}." if void else ""
    if untested:
        tail += f" Without a test: {', '.join(sorted(untested))}."
    return tests, tail


def base_read(pooled: Group) -> list[Guard]:
    """That the base tells trained rows from others better than their texts do."""
    if BASE not in pooled.known.scores:
        return []
    above = pooled.above_texts(BASE, "loss", more=True, texts="blind")
    if above is None or above.excess_p(told=above.told_p < TOLD) >= ALARM:
        return []
    detail = (
        "The base seems to have read these rows: it tells trained rows from held-out "
        f"ones with AUC {number(above.score)}, their texts alone with "
        f"{number(above.texts)}."
    )
    return [Guard(name=BASE_READ, checkpoint=BASE, passed=False, detail=detail)]


def _told_before(pooled: Group) -> bool:
    """Whether the untrained model's scores tell the sides, as one family."""
    if BASE not in pooled.known.scores:
        return False
    known = [one for one in ATTACKS if not pooled.usable(BASE, one)]
    ps = {one: p for one in known if (p := pooled.p(BASE, one)) is not None}
    if not ps:
        return False
    together = pooled.correlation(BASE, dict.fromkeys(ps, ""))
    return bool(correlated([*ps.values()], together).min() < TOLD)


def _concluded(
    name: str,
    own: dict[str, Row],
    changes: Mapping[str, Contrast],
    pooled: Group,
    judged: Findings,
) -> tuple[Finding, dict[str, Tested]]:
    if not own:
        said = f"membership is not estimable ({pooled.reason or NO_ROWS})."
        return verdict(name, "not_tested", said), {}
    tests, tail = _tests(name, own, changes, pooled, judged)
    if not tests:
        said = f"nothing can be said of membership.{tail}"
        return verdict(name, "not_tested", said), {}

    moved, needed, over = _corrected(name, tests, pooled)
    least = min(needed.values())
    primary: dict[str, Any] = {"family": "primary", "p": least}
    if detected := [attack for attack in tests if needed[attack] < 0.05]:
        best = _shown_of(detected, tests)
        test = tests[best]
        figures = (
            f"{_told(best, test) or _shown(best, test.row) + NOT_TRIED}, "
            f"{p_value(least, least=LEAST_P)} corrected for {len(tests)} scores"
        )
        less = "" if test.more else " Its rows look LESS familiar than others."
        said = f"membership was detected: {figures}.{less}{tail}"
        otherwise = f"{name}: membership is not shown once all tests of the report "
        otherwise += f"count: {figures}.{tail}"
        primary |= {"otherwise": otherwise, **test.figures(over)}
        return verdict(name, "membership", said, test.row, **primary), tests
    risen = [attack for attack in tests if moved[attack] < 0.05]
    if confounded := [attack for attack in risen if tests[attack].told]:
        best = _shown_of(confounded, tests)
        test = tests[best]
        why = APART if best in judged.apart else "the sides differ in their texts"
        said = (
            "membership cannot be told from what differs between the texts: "
            f"{_told(best, test) or _shown(best, test.row) + NOT_BESIDE}; {why}.{tail}"
        )
        primary |= test.figures(over)
        return verdict(name, "confounded", said, test.row, **primary), tests
    said, test = _not_shown(tests, moved, needed, judged)
    primary |= test.figures(over)
    return verdict(name, "nothing_shown", f"{said}{tail}", test.row, **primary), tests


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
    beyond = {
        a: "texts" if t.above is not None else change[a] for a, t in tests.items()
    }
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
    """The score that a sentence tells: the one declared beforehand, where it may.

    The best of many looks better than it is.
    """
    if PRIMARY in found:
        return PRIMARY
    return max(found, key=lambda attack: abs(tests[attack].effect))


def _not_shown(
    tests: Mapping[str, Tested],
    moved: Mapping[str, float],
    needed: Mapping[str, float],
    judged: Findings,
) -> tuple[str, Tested]:
    """That membership was not detected, and what would not have been."""
    best = min(tests, key=lambda attack: (moved[attack], tests[attack].p))
    test = tests[best]
    blurred = f" {judged.void[ALL][1]}." if ALL in judged.void else ""
    sentence = (
        f"membership was not detected: {_told(best, test) or _shown(best, test.row)}, "
        f"the clearest of {len(tests)} scores, {p_value(needed[best], places=2)} "
        f"corrected for them; stronger attacks cannot be excluded.{blurred}"
    )
    return sentence, test


NOT_TRIED = "; what the texts alone tell was not tried"
NOT_BESIDE = ", and no AUC of the texts alone is there to hold it against"


def _told(attack: str, test: Tested) -> str:
    """The score's AUC beside that of the texts alone; empty where nobody asks."""
    if test.above is None:
        return ""
    turned = "" if test.more else " (turned round)"
    return (
        f"AUC {number(test.above.score)}{turned} of {attack}, "
        f"{number(test.above.texts)} of the texts alone, apart by "
        f"{figure(test.above.difference)}"
    )


def _shown(attack: str, row: Row) -> str:
    if isinstance(row, Contrast):
        return f"the AUC of {attack} changed by {figure(row)} since the untrained model"
    return f"the AUC of {attack} is {figure(row)}, chance 0.5"
