"""What the membership audit says of a checkpoint: one sentence, on one score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_audit.audits.contract import BASE
from spark_audit.audits.mia.estimates import (
    NO_ROWS,
    AboveTexts,
    Group,
)
from spark_audit.audits.mia.guards import (
    ALL,
    APART,
    Findings,
)
from spark_audit.audits.wording import figure, p_value
from spark_audit.results import (
    Claim,
    Contrast,
    Finding,
    Row,
    number,
)
from spark_audit.stats.bootstrap import holm

USABLE = ("ok", "insensitive")
LEAST_P = 1e-4
"""Smaller p values are only said to be below it."""


def verdicts(
    names: list[str],
    rows: list[Row],
    contrasts: list[Contrast],
    pooled: Group,
    judged: Findings,
) -> list[Finding]:
    """What is said of each checkpoint but the untrained model."""
    found = []
    for name in names:
        if name == BASE:
            continue
        own = {
            row.of: row
            for row in rows
            if (row.checkpoint, row.group, row.metric) == (name, "pooled", "auc")
            and row.of != "blind"
            and row.value is not None
        }
        changes = {
            row.of: row
            for row in contrasts
            if (row.checkpoint, row.baseline, row.group, row.metric)
            == (name, BASE, "pooled", "auc")
            and row.value is not None
        }
        found.append(_concluded(name, own, changes, pooled, judged))
    return found


def verdict(name: str, claim: Claim, said: str, row: Row | None = None) -> Finding:
    """A finding that begins with its checkpoint."""
    where = {"audit": "mia", "checkpoint": name}
    return Finding.on(row, claim, f"{name}: {said}", **where)


@dataclass(frozen=True)
class Tested:
    """One score's test: of its change since the untrained model, or of its AUC.

    ``above`` is what it has beyond the texts alone: a weak difference in topic passes
    the guard and still moves every score. Where the texts were not tried, a score that
    a guard doubts claims nothing, and the sentence of any other says so.
    """

    row: Row
    p: float
    doubted: bool = False
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
    def claim_p(self) -> float:
        """Of the claim: the larger of both where both are needed."""
        if self.above is not None:
            return max(self.p, self.above.excess_p)
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
    for attack, row in own.items():
        change = changes.get(attack)
        tested = change or row
        p = change.p if change else pooled.p(name, attack)
        if tested.status not in USABLE:
            void.append(attack)
        elif p is None:
            untested.append(attack)
        else:
            test = Tested(tested, p, doubted=judged.doubted(attack))
            above = pooled.above_texts(name, attack, more=test.more)
            tests[attack] = replace(test, above=above)
    tail = f" Void: {', '.join(sorted(void))}." if void else ""
    if untested:
        tail += f" Without a test: {', '.join(sorted(untested))}."
    return tests, tail


def _concluded(
    name: str,
    own: dict[str, Row],
    changes: Mapping[str, Contrast],
    pooled: Group,
    judged: Findings,
) -> Finding:
    if not own:
        said = f"membership is not estimable ({pooled.reason or NO_ROWS})."
        return verdict(name, "not_tested", said)
    tests, tail = _tests(name, own, changes, pooled, judged)
    if not tests:
        said = f"nothing can be said of membership.{tail}"
        return verdict(name, "not_tested", said)

    def corrected(ps: list[float]) -> dict[str, float]:
        return dict(zip(tests, holm(ps).tolist(), strict=True))

    def largest(found: list[str]) -> str:
        return max(found, key=lambda attack: abs(tests[attack].effect))

    moved = corrected([test.p for test in tests.values()])
    # A claim's p value is never below that of the change: nor is it once corrected.
    needed = corrected([test.claim_p for test in tests.values()])
    if detected := [attack for attack in tests if needed[attack] < 0.05]:
        best = largest(detected)
        test = tests[best]
        said = (
            f"membership was detected: {_shown(best, test.row)}, "
            f"{p_value(needed[best], least=LEAST_P)} corrected for {len(tests)} "
            f"scores{_beyond(test) or NOT_TRIED}. Rows it was trained on look "
            f"{'more' if test.more else 'LESS'} familiar than rows "
            f"that it was not trained on.{tail}"
        )
        return verdict(name, "membership", said, test.row)
    if confounded := [attack for attack in tests if moved[attack] < 0.05]:
        best = largest(confounded)
        test = tests[best]
        why = APART if best in judged.apart else "the sides differ in their texts"
        said = (
            "membership cannot be told from what differs between the texts: "
            f"{_shown(best, test.row)}, {p_value(moved[best], least=LEAST_P)} "
            f"corrected for {len(tests)} scores"
            f"{_beyond(test) or NOT_BESIDE}: {why}.{tail}"
        )
        return verdict(name, "confounded", said, test.row)
    best = min(tests, key=lambda attack: (moved[attack], tests[attack].p))
    row = tests[best].row
    said = f"effects below {number(row.mde)}" if row.mde else "smaller effects"
    blurred = f" {judged.void[ALL][1]}." if ALL in judged.void else ""
    sentence = (
        f"membership was not detected: {_shown(best, row)} is the clearest of "
        f"{len(tests)} scores, corrected {p_value(moved[best], places=2)}; "
        f"{said} cannot be excluded, nor can stronger attacks.{blurred}{tail}"
    )
    return verdict(name, "nothing_shown", sentence, row)


NOT_TRIED = "; what the texts alone tell was not tried"
NOT_BESIDE = ", and no AUC of the texts alone is there to hold it against"


def _beyond(test: Tested) -> str:
    """The score's AUC beside that of the texts alone; empty where nobody asks."""
    if test.above is None:
        return ""
    apart = test.above.difference
    turned = "" if test.more else " (turned round)"
    own = f"; its AUC{turned} is {number(test.above.score)}, "
    if test.above.texts <= 0.5:
        return f"{own}the texts alone give {number(test.above.texts)}: chance or less"
    return (
        f"{own}where the texts alone give {number(test.above.texts)}, a difference of "
        f"{figure(apart)}"
    )


def _shown(attack: str, row: Row) -> str:
    if isinstance(row, Contrast):
        return f"the AUC of {attack} changed by {figure(row)} since the untrained model"
    return f"the AUC of {attack} is {figure(row)}, chance 0.5"
