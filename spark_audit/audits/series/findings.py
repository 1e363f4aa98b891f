"""Findings of the audit of series: whether all stages reveal trained rows.

The AUC of the series must exceed two values: chance, which is 0.5, and the bar. The bar
is the AUC of the best guess without checkpoints, but at least 0.5.
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
"""Rows of one group of examples: (metric, attack) -> figure; a gain has no attack."""


class SeriesResult(NamedTuple):
    """The pooled rows of a series, and the figures on them.

    Attributes
    ----------
    group
        All rows of the series, of whatever task, with their scores.
    figures
        AUC, rates and gains of these rows.
    raw_gain_p
        Two-sided p of no gain in AUC over the last stage, not corrected over series; 1
        where there is no test.
    """

    group: MembershipGroup
    figures: Figures
    raw_gain_p: float


class SeriesVerdict(NamedTuple):
    """The claim of a series, and the keys of its sentences, without ``series.``.

    ``says`` is the key of the first sentence, ``remarks`` are those that follow.
    """

    claim: Claim
    says: str
    remarks: tuple[str, ...]


def series_finding(
    name: str, result: SeriesResult, *, gain_p: float, n_series: int
) -> Finding:
    """Return the finding on whether a series reveals rows and adds to its last stage.

    Parameters
    ----------
    name
        Name of the series, which is the checkpoint of its rows.
    result
        Its pooled rows and their figures.
    gain_p
        p of no gain in AUC over the last stage, corrected over ``n_series``.
    n_series
        Series of the report that have figures.
    """
    # Two tests must hold: against chance, and against the bar.
    auc = result.figures["auc", SERIES]
    over_bar = result.group.above_texts(name, SERIES)
    p_of_chance = result.group.p(name, SERIES)
    if over_bar is None or p_of_chance is None:
        reason = NO_TEXTS
        if auc.value is None:
            reason = auc.note
        return Finding.not_tested(
            "series", "series.missing", checkpoint=name, reason=reason
        )

    # The series adds to its last stage if its AUC is significantly higher.
    gain = result.figures["auc_gain", ""]
    is_gain = gain_p < ALPHA and (gain.value or 0.0) > 0

    # Facts of the sentences; `beyond` and others of the bar come from `over_bar`.
    is_member = result.group.facts["member"].astype(bool)
    facts: dict[str, Fact] = {
        **over_bar.facts(name, SERIES, audit="series"),
        "last": result.figures["auc", LAST_STAGE],
        "gain": gain,
        "gain_p": gain_p,
        "adds": is_gain,
        "series": n_series,
        "members": int(is_member.sum()),
        "others": int((~is_member).sum()),
    }

    # `over_bar.p` covers chance, too, but only on the rows that have a score and a best
    # guess; `p_of_chance` is of all rows with a score. Both must hold.
    p = max(p_of_chance, over_bar.p)

    verdict = _verdict(over_bar, p_of_chance, is_gain=is_gain)
    return over_bar.finding(
        auc,
        verdict.claim,
        f"series.{verdict.says}",
        further=[f"series.{key}" for key in verdict.remarks],
        facts=facts,
        p=p,
        power=over_bar.power(),
        bounds=over_bar.bounds(),
    )


def _verdict(
    over_bar: AboveTexts, p_of_chance: float, *, is_gain: bool
) -> SeriesVerdict:
    """Return the verdict on a series; the first match wins.

    ================  =============  ===============================================
    sentence          claim          condition
    ================  =============  ===============================================
    membership_added  membership     trained rows look familiar, beyond the best
                                     guess without checkpoints, and the series adds
                                     to its last stage
    membership        membership     the same, and it is not shown that it adds
    confounded        confounded     the sides can be distinguished, in whichever
                                     direction, but their texts differ
    nothing_shown     nothing_shown  otherwise
    ================  =============  ===============================================

    Parameters
    ----------
    over_bar
        The AUC of the series compared with the bar.
    p_of_chance
        Two-sided p of an AUC of 0.5, that of chance.
    is_gain
        Whether the series is shown to add to its last stage.
    """
    # Two-sided: held-out rows may be the more familiar ones where texts differ.
    is_beside_chance = p_of_chance < ALPHA
    is_beyond_best_guess = over_bar.p < ALPHA

    # Remarks on the bar, and on what the series adds. They follow `pairs`, the sentence
    # with the AUC as a share of pairs.
    on_bar = "beyond_chance" if over_bar.is_bar_chance else "beyond_texts"
    on_gain = "adds" if is_gain else "adds_nothing"

    if is_beside_chance and is_beyond_best_guess:
        says = "membership_added" if is_gain else "membership"
        return SeriesVerdict("membership", says, ("pairs", on_bar, on_gain))

    # Where texts may explain the difference, a gain is no sign of memory either.
    if is_beside_chance and over_bar.sides_differ:
        return SeriesVerdict("confounded", "confounded", ("pairs", on_bar))

    return SeriesVerdict("nothing_shown", "nothing_shown", ("pairs", on_bar, on_gain))
