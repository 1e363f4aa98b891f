"""Results of other tools' attacks on each checkpoint, from their scores.

:mod:`~spark_audit.audits.mia.outside_scores` reads the scores; this module judges them
by the guards and the best guess of our own scores. The results are in the table
``mia_outside`` of the report, and have no finding.

``pooled`` are the examples of all judged tasks together. ``pooled.above_texts`` tests
whether a score orders them better than the best guess from their texts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.mia.above_texts import CHANCE_AUC
from spark_audit.audits.mia.estimates import MembershipGroup
from spark_audit.audits.mia.guards import ScoreGuards
from spark_audit.names import BASE
from spark_audit.results import Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.findings import Fact
from spark_audit.sentences import render
from spark_audit.stats.estimate import Estimate, side_of
from spark_audit.stats.multiple_tests import holm_by_key


def judged_scores(
    checkpoints: Sequence[str], attacks: Sequence[str], guards: ScoreGuards
) -> list[TableRecord]:
    """Return the result of each attack of another tool on each checkpoint.

    The guards of our own scores apply. An attack detects if it scores trained rows
    higher than the base did (without scores of the base: than chance), and exceeds the
    best guess from the texts alone. p values are corrected (Holm) over attacks and
    checkpoints. If trained rows score lower, a warning that asks whether the sign is
    wrong is added to the guards.

    Parameters
    ----------
    attacks
        Names of the other tools' attacks.

    Returns
    -------
    Records with ``checkpoint``, ``variant`` (the attack), ``scored_rows`` (all examples
    that the attack scored), ``score`` and ``says``:

    ===================  ===========================================================
    ``says``             condition, first match wins
    ===================  ===========================================================
    ``not estimable``    its AUC or its test is missing; the reason follows
    ``confounded``       not significant, but the texts differ between the sides,
                         and the score is higher by itself, uncorrected
    ``not shown``        not significant
    a guard's status     significant, but a guard made the score void
    ``detected``         significant
    ===================  ===========================================================

    ``score`` is the AUC of an attack. Tested attacks also have ``p``, ``p_adjusted``
    and ``status``, a ``note`` if their sign may be wrong, and ``texts``, ``bar``,
    ``difference``, ``low``, ``high`` and ``mde``: see
    :attr:`spark_audit.audits.mia.above_texts.AboveTexts.record`. These six figures and
    the ``score`` beside them are of the examples that also have a best guess.
    """
    scores = [
        _outside_score(checkpoint, attack, guards)
        for checkpoint, attack in product(checkpoints, attacks)
        if checkpoint != BASE
    ]

    # All attacks are one family, since many attacks have more chances to detect. The
    # keys are indices of scores; an untested one has no p.
    p_by_index = {i: score.record.get("p") for i, score in enumerate(scores)}
    adjusted_ps = holm_by_key(p_by_index)

    records: list[TableRecord] = []
    for i, score in enumerate(scores):
        if score.why_untested:
            says = f"not estimable: {score.why_untested}"
            records.append({**score.record, "says": says})
            continue

        says = _outcome_of_test(score, adjusted_ps[i])
        records.append({**score.record, "says": says, "p_adjusted": adjusted_ps[i]})
    return records


class OutsideScore(NamedTuple):
    """The uncorrected result of one attack of another tool on a checkpoint.

    Attributes
    ----------
    record
        The columns of :func:`judged_scores`, but ``p_adjusted`` and ``says``.
    why_untested
        Why its AUC was not tested; empty: it was.
    is_confounded
        Whether the score is higher than by chance, or at the base, at the uncorrected
        level while the texts differ between the sides, so that they may explain it.
    """

    record: TableRecord
    why_untested: str = ""
    is_confounded: bool = False


def _outcome_of_test(score: OutsideScore, adjusted_p: float) -> str:
    """Return ``says`` of a tested score: see the table of :func:`judged_scores`."""
    if adjusted_p >= ALPHA:
        return "confounded" if score.is_confounded else "not shown"

    # A void score is no detection: its status stands where it would be `detected`.
    status = str(score.record["status"])
    return "detected" if status == "ok" else status


def _outside_score(checkpoint: str, attack: str, guards: ScoreGuards) -> OutsideScore:
    """Return the uncorrected result of one attack of another tool on a checkpoint."""
    pooled = guards.pooled
    auc = pooled.estimate(checkpoint, attack)
    above_texts = pooled.above_texts(
        checkpoint, attack, sides_differ=guards.texts_differ
    )
    record: TableRecord = {
        "checkpoint": checkpoint,
        "variant": attack,
        "scored_rows": auc.n,
    }
    if auc.value is None or above_texts is None:
        reason = auc.note or "the best guess was not tested beside it"
        return OutsideScore({**record, "score": auc.value}, why_untested=reason)

    effect = _attack_effect(pooled, checkpoint, attack, auc)
    if effect.is_perhaps_reversed:
        _warn_of_sign(guards, checkpoint, attack, auc)
        record["note"] = render("mia.reversed", attack=attack)

    # Only scores that are higher for members can detect; others may be reversed. The
    # two-sided p is no smaller than a one-sided one, so it can stand for that.
    p_higher = 1.0
    if effect.p is not None and effect.value > 0:
        p_higher = effect.p
    is_confounded = above_texts.sides_differ and p_higher < ALPHA

    # The `score` of `above_texts` is the AUC of the examples that also have a best
    # guess, while `scored_rows` counts all. A detection must pass both tests, so the
    # larger p counts.
    tested_record = {
        **record,
        **above_texts.record,
        "p": max(p_higher, above_texts.p),
        "status": guards.status_of(attack).status,
    }
    return OutsideScore(tested_record, is_confounded=is_confounded)


class AttackEffect(NamedTuple):
    """How far an attack's AUC is from chance, or from that of the base if it has one.

    Attributes
    ----------
    value
        The AUC minus chance, or minus that of the base; above 0: members score higher.
    p
        Two-sided p of no effect; None: not tested.
    is_perhaps_reversed
        Whether members score so much lower (the whole interval is below chance, and
        below the base if it has one) that the sign of the scores may be wrong.
    """

    value: float
    p: float | None
    is_perhaps_reversed: bool


def _attack_effect(
    pooled: MembershipGroup, checkpoint: str, attack: str, auc: Estimate
) -> AttackEffect:
    """Return the effect of an attack on a checkpoint.

    Parameters
    ----------
    auc
        The attack's AUC on the checkpoint, which has a value.
    """
    is_below_chance = side_of(auc, CHANCE_AUC) == -1
    is_base_unscored = bool(pooled.reason_missing(BASE, attack))
    if is_base_unscored:
        return AttackEffect(
            value=(auc.value or 0.0) - CHANCE_AUC,
            p=pooled.p(checkpoint, attack),
            is_perhaps_reversed=is_below_chance,
        )

    # The AUC comes first, then the rates, which have no test.
    change = next(
        difference
        for difference in pooled.differences((checkpoint, attack), (BASE, attack))
        if difference.metric == "auc"
    )
    return AttackEffect(
        value=change.estimate.value or 0.0,
        p=change.p,
        is_perhaps_reversed=is_below_chance and side_of(change.estimate) == -1,
    )


def _warn_of_sign(
    guards: ScoreGuards, checkpoint: str, attack: str, auc: Estimate
) -> None:
    """Add the warning that the sign of an attack's scores may be wrong.

    The users of a tool can have named its scores without the minus that reverses them.
    """
    row = Row.of_estimate(
        auc,
        audit="mia",
        checkpoint=checkpoint,
        metric="auc",
        variant=attack,
        no_effect=CHANCE_AUC,
    )
    facts: dict[str, Fact] = {"auc": row, "attack": attack}
    guards.add(
        name="scores of other tools",
        says="outside",
        facts=facts,
        further=["outside_reversed"],
        checkpoint=checkpoint,
    )
