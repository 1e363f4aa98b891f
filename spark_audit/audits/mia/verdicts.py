"""The verdict of membership inference on each checkpoint.

Each declared score has two tests: that its AUC moved since the untrained model, and
that it exceeds the texts alone. A claim needs both. Each family is corrected over the
scores.

``name`` is a checkpoint, *attack* the name of a score, and a *figure* the pooled row of
its AUC. A further claim is a line of the table of :func:`_verdict` and the same step of
:func:`_claimed_score`; its sentence is ``mia.CLAIM`` in ``spark_audit/sentences/en/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.mia import estimates, score_tables
from spark_audit.audits.mia.above_texts import AboveTexts, beyond_both, less_chance
from spark_audit.audits.mia.guards import EVERY_SCORE, ScoreGuards
from spark_audit.audits.mia.score_tests import FamilySizes, ScoreTest, effect_of
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.findings import Fact
from spark_audit.stats.multiple_tests import correlated, holm

PRIMARY = "combined"
"""The score that is shown if several detect, declared beforehand."""

USABLE = ("ok", "insensitive")
"""Statuses of an AUC that is tested."""


class Corrected(NamedTuple):
    """p values by score, corrected over all scores of a checkpoint.

    Attributes
    ----------
    change_p
        p of the test that the score's AUC changed, or is not 0.5 where the untrained
        model has no such score.
    claim_p
        p of a claim: the score changed, and exceeds the texts alone.
    sizes
        Effective numbers of tests that both are corrected over.
    """

    change_p: dict[str, float]
    claim_p: dict[str, float]
    sizes: FamilySizes


class ClaimedScore(NamedTuple):
    """What a checkpoint's tests claim, and the score that the finding shows.

    Attributes
    ----------
    score
        Name of that score.
    remarks
        Keys of the sentences that explain the claim.
    facts
        Facts of the finding that depend on the claim.
    """

    claim: Claim
    score: str
    remarks: list[str]
    facts: dict[str, Fact]


class MembershipVerdict(NamedTuple):
    """The finding on a checkpoint, and the tests of its usable scores by name."""

    finding: Finding
    tests: Mapping[str, ScoreTest]


class Verdicts(NamedTuple):
    """Findings on all checkpoints, and the table of their scores above the texts."""

    findings: list[Finding]
    table: list[TableRecord]


def verdicts(
    names: Sequence[str], rows: Sequence[Row], guards: ScoreGuards
) -> Verdicts:
    """Return the verdicts on all checkpoints except the untrained model.

    Parameters
    ----------
    names
        Checkpoints, the untrained model among them.
    rows
        Figures of the audit, contrasts last.

    Returns
    -------
    Findings; and as a table (``mia_texts``) each score compared with the best guess
    from the texts alone, with the rates of the score that a finding rests on.
    """
    findings: list[Finding] = []
    table: list[TableRecord] = []
    for name in names:
        if name == BASE:
            continue

        # Figures, then the verdict on them, then the records that explain it.
        figures = _declared_figures(name, rows)
        verdict = _verdict(name, figures, guards)
        findings.append(verdict.finding)
        table += _records_above_texts(verdict, guards.pooled)
    return Verdicts(findings, table)


def _declared_figures(name: str, rows: Sequence[Row]) -> dict[str, Row]:
    """Return the figure of each declared score that has one, by the score's name.

    The figure is its change since the untrained model; without that, its AUC.
    """
    figures: dict[str, Row] = {}
    for row in rows:
        is_of_checkpoint = row.checkpoint == name and row.group == "pooled"
        is_auc = row.metric == "auc" and row.variant in score_tables.DECLARED_SCORES
        is_since_base = not isinstance(row, Contrast) or row.baseline == BASE

        if is_of_checkpoint and is_auc and is_since_base and row.value is not None:
            # Contrasts come last, so that a change replaces an AUC.
            figures[row.variant] = row
    return figures


def _records_above_texts(
    verdict: MembershipVerdict, pooled: estimates.MembershipGroup
) -> Iterator[TableRecord]:
    """Yield each score compared with the texts alone, then the rates of the one shown.

    Columns are those of the record of :class:`AboveTexts`, and ``checkpoint``,
    ``variant``, ``metric`` and ``says``, the state of the score by itself, which is
    uncorrected.
    """
    for attack, test in verdict.tests.items():
        if test.above is None:
            continue
        yield {
            "checkpoint": test.row.checkpoint,
            "variant": attack,
            "metric": "auc",
            **test.above.record,
            "says": test.state,
        }

    test_of_finding = verdict.tests.get(verdict.finding.variant)
    if test_of_finding is None or test_of_finding.above is None:
        return
    # Rates are of the score as it is, not turned round: if it is lower for members they
    # say nothing about an attack.
    if test_of_finding.is_more_familiar:
        yield from _rates(test_of_finding, test_of_finding.above, pooled)


def _rates(
    test: ScoreTest, auc_above_texts: AboveTexts, pooled: estimates.MembershipGroup
) -> Iterator[TableRecord]:
    """Yield the TPR of a score, compared with those of the texts alone and of chance.

    Parameters
    ----------
    auc_above_texts
        The same comparison of its AUC.
    """
    name = test.row.checkpoint
    attack = test.row.variant
    for difference in pooled.differences((name, attack), (name, "texts")):
        metric = difference.metric
        if metric == "auc":
            continue

        over_texts = difference.estimate
        rate = pooled.estimate(name, attack, metric)
        texts_rate = pooled.estimate(name, "texts", metric).value
        if over_texts.value is None or rate.value is None or texts_rate is None:
            continue

        # The rate of a random score; without it, the budget, which is about the same.
        budget = score_tables.MEMBERSHIP_FPRS[metric]
        chance = pooled.chance(name, attack, budget).get("null", budget)
        over_chance = less_chance(rate, chance)
        excess = beyond_both(over_texts, over_chance)
        # The difference is over examples with both scores: the score's rate is the
        # texts' rate plus it.
        rate_above_texts = replace(
            auc_above_texts,
            excess=excess,
            score=texts_rate + over_texts.value,
            texts=texts_rate,
            chance=chance,
        )

        # A rate has no test of its own, so its interval must also exclude the bar.
        is_above_bar = (excess.low or 0.0) > 0
        says = test.state if is_above_bar else "not shown"
        yield {
            "checkpoint": name,
            "variant": attack,
            "metric": metric,
            **rate_above_texts.record,
            "says": says,
        }


def _verdict(
    name: str, figures: Mapping[str, Row], guards: ScoreGuards
) -> MembershipVerdict:
    """Return the verdict on a checkpoint; the first match wins.

    =============  =================================================  ===============
    claim          condition                                          score shown
    =============  =================================================  ===============
    not tested     no declared score has a figure
    not tested     no figure is usable and has a p
    membership     the claim of a score is significant                the primary one
    confounded     a score's change is significant, and the sides     the primary one
                   are distinguished without training
    nothing shown  else                                               the smallest p
    =============  =================================================  ===============

    Significant means a p below :data:`ALPHA` after correction over the scores. The
    primary one is shown only if the condition holds for it; else the one of the largest
    effect.

    Parameters
    ----------
    figures
        From :func:`_declared_figures`.
    """
    if not figures:
        return MembershipVerdict(_without_figures(name, guards), {})

    tests = _score_tests(name, figures, guards)
    # Scores that do not count were voided by a guard, or have no p.
    void = sorted(attack for attack, row in figures.items() if row.status not in USABLE)
    untested = sorted(set(figures) - set(tests) - set(void))
    remarks_unused = []
    if void:
        remarks_unused.append("mia.void")
    if untested:
        remarks_unused.append("mia.untested")

    if not tests:
        untested_finding = Finding.not_tested(
            "mia",
            "mia.no_score",
            checkpoint=name,
            further=remarks_unused,
            void=void,
            untested=untested,
        )
        return MembershipVerdict(untested_finding, {})

    corrected = _corrected(name, tests, guards.pooled)
    claimed = _claimed_score(tests, corrected, guards)
    shown_test = tests[claimed.score]

    n_examples = len(guards.judged_examples)
    n_members = int(guards.judged_examples["member"].sum())
    facts: dict[str, Fact] = {
        "void": void,
        "untested": untested,
        "scores": len(tests),
        "members": n_members,
        "others": n_examples - n_members,
        **claimed.facts,
        **shown_test.facts,
    }

    # Remarks: the figure, then the claim, cautions, and scores that were not tested.
    further = [shown_test.says, *claimed.remarks]
    if len(tests) > 1:
        further.append("mia.choice")
    further += shown_test.remarks(n_examples)
    further += remarks_unused

    # p is that of the checkpoint: that any of its scores claims something.
    finding = shown_test.finding(
        claimed.claim,
        further=further,
        facts=facts,
        p=min(corrected.claim_p.values()),
        sizes=corrected.sizes,
    )
    return MembershipVerdict(finding, tests)


def _claimed_score(
    tests: Mapping[str, ScoreTest], corrected: Corrected, guards: ScoreGuards
) -> ClaimedScore:
    """Return what the tests claim: the last three lines of :func:`_verdict`'s table.

    Parameters
    ----------
    tests
        Score -> its tests; at least one.
    """
    detected = [attack for attack in tests if corrected.claim_p[attack] < ALPHA]
    # Scores that moved, perhaps because the sides differ in more than training.
    confounded = [
        attack
        for attack, test in tests.items()
        if corrected.change_p[attack] < ALPHA and test.sides_differ
    ]

    # In the order of the table: the first match wins.
    if detected:
        return ClaimedScore(
            "membership", _strongest(detected, tests), remarks=[], facts={}
        )

    if confounded:
        score = _strongest(confounded, tests)
        differ_before = score in guards.unclean_scores
        return ClaimedScore(
            "confounded",
            score,
            remarks=["mia.differ_before" if differ_before else "mia.texts_differ"],
            facts={"differ_before": differ_before},
        )

    # The uncorrected p decides between equal corrected ones.
    score = min(tests, key=lambda attack: (corrected.change_p[attack], tests[attack].p))
    # Near-duplicates are the only reason that gives all scores another status.
    has_duplicates = EVERY_SCORE in guards.void
    remarks = ["mia.stronger"]
    if has_duplicates:
        remarks.append("mia.duplicates")
    return ClaimedScore(
        "nothing_shown",
        score,
        remarks=remarks,
        facts={"p": corrected.claim_p[score], "duplicates": has_duplicates},
    )


def _without_figures(name: str, guards: ScoreGuards) -> Finding:
    """Return "not tested": no declared score has a figure."""
    # Without examples in the pooled group, each task has too few of them.
    reason = score_tables.NO_MEMBERS
    if not len(guards.pooled.example_indices):
        reason = estimates.TOO_FEW_MEMBERS
    return Finding.not_tested("mia", "mia.missing", checkpoint=name, reason=reason)


def _score_tests(
    name: str, figures: Mapping[str, Row], guards: ScoreGuards
) -> dict[str, ScoreTest]:
    """Return the tests of each score whose figure is usable and has a p.

    Parameters
    ----------
    figures
        From :func:`_declared_figures`.

    Returns
    -------
    Attack -> its tests, not corrected.
    """
    pooled = guards.pooled
    tests: dict[str, ScoreTest] = {}
    for attack, row in figures.items():
        p = row.p if isinstance(row, Contrast) else pooled.p(name, attack)
        # Skip scores that a guard voids, or that have no spread to test.
        if row.status not in USABLE or p is None:
            continue

        is_more_familiar = effect_of(row) > 0
        above = pooled.above_texts(
            name,
            attack,
            members_score_higher=is_more_familiar,
            sides_differ=guards.differs_before,
        )
        if above is not None:
            sides_differ = above.sides_differ
            excess_p = above.p
        else:
            # Without a test of the texts, a score that a guard doubts claims nothing.
            sides_differ = guards.texts_differ or attack in guards.unclean_scores
            excess_p = 1.0 if sides_differ else p

        tests[attack] = ScoreTest(
            row=row,
            p=p,
            above=above,
            sides_differ=sides_differ,
            excess_p=excess_p,
        )
    return tests


def _corrected(
    name: str, tests: Mapping[str, ScoreTest], pooled: estimates.MembershipGroup
) -> Corrected:
    """Return the p values of a checkpoint's scores, corrected over all of them.

    Changes are one family of correlated tests, and excesses over the texts another. A
    claim needs both, so its p is the larger of the two.
    """
    # Attack -> what its AUC is compared with: that of the base; None: 0.5.
    origins: dict[str, estimates.CheckpointScore | None] = {}
    for attack, test in tests.items():
        origins[attack] = (BASE, attack) if isinstance(test.row, Contrast) else None
    change_ps, n_changes = correlated(
        [test.p for test in tests.values()], pooled.correlation(name, origins)
    )  # (scores,)

    # Test the same scores against the texts alone.
    uncorrected_ps = [test.excess_p for test in tests.values()]
    if any(test.sides_differ for test in tests.values()):
        # If the sides differ without training, an excess is more than noise. The
        # correlation of scores then allows no weaker correction.
        excess_ps = holm(uncorrected_ps)  # (scores,)
        n_excesses = float(len(tests))
    else:
        bars = _bars(name, tests, origins)
        correlation = pooled.correlation(name, bars)  # (scores, scores)
        excess_ps, n_excesses = correlated(uncorrected_ps, correlation)  # (scores,)

    # Both must hold, so the larger p counts (intersection-union test, Berger 1982).
    claim_ps = np.maximum(change_ps, excess_ps)  # (scores,)
    return Corrected(
        change_p=dict(zip(tests, change_ps, strict=True)),
        claim_p=dict(zip(tests, claim_ps, strict=True)),
        sizes=FamilySizes(changes=n_changes, excesses=n_excesses),
    )


def _bars(
    name: str,
    tests: Mapping[str, ScoreTest],
    origins: Mapping[str, estimates.CheckpointScore | None],
) -> dict[str, estimates.CheckpointScore | None]:
    """Return the bar of each score: (checkpoint, score), or None for chance.

    Parameters
    ----------
    origins
        What changes are compared with, which is the bar if the texts were not tested.
    """
    bars: dict[str, estimates.CheckpointScore | None] = {}
    for attack, test in tests.items():
        if test.above is None:
            bars[attack] = origins[attack]
        elif test.above.is_bar_chance:
            # Chance is a constant, which no score correlates with.
            bars[attack] = None
        else:
            bars[attack] = (name, "texts")
    return bars


def _strongest(attacks: Sequence[str], tests: Mapping[str, ScoreTest]) -> str:
    """Return the primary score if it is among these, else that of the largest effect.

    The primary score goes first, since the best of many looks better than it is. An
    effect below 0 is as large as one above it: an attacker reverses such a score.
    """
    if PRIMARY in attacks:
        return PRIMARY
    return max(attacks, key=lambda attack: abs(effect_of(tests[attack].row)))
