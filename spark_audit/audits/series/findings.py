"""Findings of the audit of series: whether all stages reveal trained rows.

The AUC of the series must exceed two values: chance, and the bar. That is what the best
guess without any checkpoint reaches, or chance where this guess is no better.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.mia.above_texts import AboveTexts
from spark_audit.audits.mia.estimates import MembershipGroup
from spark_audit.audits.series.staged_rows import LAST_STAGE, SERIES
from spark_audit.results import Claim, Finding, Row
from spark_audit.results.findings import Fact

NO_TEXTS = "the texts alone could not be tested: too few groups of rows"

Figures: TypeAlias = dict[tuple[str, str], Row]
"""Rows of one group by metric and variant."""


class SeriesResult(NamedTuple):
    """All rows of a series, their figures, and the p of no gain over the last stage.

    ``gain_p`` is two-sided, not corrected over series; 1 where there is no test.
    """

    group: MembershipGroup
    figures: Figures
    gain_p: float


class SeriesVerdict(NamedTuple):
    """The claim of a series, and the keys of its sentences, without ``series.``."""

    claim: Claim
    says: str
    remarks: tuple[str, ...]


def series_finding(
    name: str, result: SeriesResult, *, gain_p: float, n_series: int
) -> Finding:
    """Return the finding on whether a series reveals rows and adds to its last stage.

    Parameters
    ----------
    gain_p
        p of no gain in AUC over the last stage, corrected over ``n_series``.
    """
    # Two tests must hold: against chance, and against the bar.
    auc = result.figures["auc", SERIES]
    above = result.group.above_texts(name, SERIES)
    p_of_chance = result.group.p(name, SERIES)
    if above is None or p_of_chance is None:
        reason = NO_TEXTS
        if auc.value is None:
            reason = auc.note
        return Finding.not_tested(
            "series", "series.missing", checkpoint=name, reason=reason
        )

    # Find out whether the series adds to its last stage.
    gain = result.figures["auc_gain", ""]
    is_gain = gain_p < ALPHA and (gain.value or 0.0) > 0

    is_member = result.group.facts["member"].astype(bool)
    facts: dict[str, Fact] = {
        **above.facts(name, SERIES, audit="series"),
        "last": result.figures["auc", LAST_STAGE],
        "gain": gain,
        "gain_p": gain_p,
        "adds": is_gain,
        "series": n_series,
        "members": int(is_member.sum()),
        "others": int((~is_member).sum()),
    }

    verdict = _verdict(above, p_of_chance, is_gain=is_gain)
    return above.finding(
        auc,
        verdict.claim,
        f"series.{verdict.says}",
        further=[f"series.{key}" for key in verdict.remarks],
        facts=facts,
        p=max(p_of_chance, above.p),
        power=above.power(),
        bounds=above.bounds(),
    )


def _verdict(above: AboveTexts, p_of_chance: float, *, is_gain: bool) -> SeriesVerdict:
    """Return the verdict on a series; the first match wins.

    ================  =============  ===============================================
    sentence          claim          condition
    ================  =============  ===============================================
    membership_added  membership     trained rows look familiar, beyond the best
                                     guess without checkpoints, and the series adds
                                     to its last stage
    membership        membership     the same, and it is not shown that it adds
    confounded        confounded     the sides can be told apart, in whichever
                                     direction, but their texts differ
    nothing_shown     nothing_shown  otherwise
    ================  =============  ===============================================

    Parameters
    ----------
    p_of_chance
        p of an AUC of 0.5, that of chance.
    """
    # Two-sided: held-out rows may be the more familiar ones where texts differ.
    is_beside_chance = p_of_chance < ALPHA
    is_beyond_best_guess = above.p < ALPHA

    # Remarks on the bar, and on what the series adds.
    on_bar = "beyond_chance" if above.is_bar_chance else "beyond_texts"
    on_gain = "adds" if is_gain else "adds_nothing"

    if is_beside_chance and is_beyond_best_guess:
        says = "membership_added" if is_gain else "membership"
        return SeriesVerdict("membership", says, ("pairs", on_bar, on_gain))

    if is_beside_chance and above.sides_differ:
        return SeriesVerdict("confounded", "confounded", ("pairs", on_bar))

    return SeriesVerdict("nothing_shown", "nothing_shown", ("pairs", on_bar, on_gain))
