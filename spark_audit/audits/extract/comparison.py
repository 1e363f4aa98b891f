"""Compare the rate of reproduced identifiers with held-out ones, or with the base.

A rate alone may be guessing. Each checkpoint therefore has one finding that compares
the identifiers of its trained rows: with identifiers never trained on
(:func:`_comparison_of_splits`), or else with the base model on the same rows
(:func:`_comparison_with_base`). A difference is trained minus the other, a share of
identifiers; above 0 is a leak.

A row of the frame ``spans`` is one identifier in one row of the data, as one
checkpoint reproduces it.

The keys of ``facts`` (``back``, ``past_base``, ``against`` and the others) are
explained in a table at the top of
:mod:`~spark_audit.audits.extract.comparison_facts`. A new outcome gets a row in the
table of the function that decides it (:func:`_verdict_on_splits`,
:func:`_verdict_on_base`), a branch in the same order, and a sentence of its name in
``sentences/en/extract.toml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from spark_audit.audits.extract.comparison_facts import (
    guess_rate_remark,
    lucky_guess_remark,
    other_row_facts,
    other_row_remarks,
    reproduced_hits,
    share_fact,
    why_not_compared,
)
from spark_audit.audits.extract.difference_finding import difference_finding
from spark_audit.audits.extract.guessing import (
    GuessTest,
    beyond_guessing,
    counted_identifiers,
    dose_p,
)
from spark_audit.audits.extract.rate_limits import base_bound, hits_power, rates_bound
from spark_audit.audits.extract.rates import (
    Facts,
    base_difference,
    comparable,
    comparison_p,
    difference_from_base,
    is_scored_beside_base,
    rate_difference,
    row_of,
    split_difference,
)
from spark_audit.names import BASE
from spark_audit.results import Claim, Finding, Row
from spark_audit.stats.estimate import (
    Bound,
    Estimate,
    Power,
    is_significant,
    side_of,
)


class ExtractVerdict(NamedTuple):
    """The outcome of a comparison.

    Attributes
    ----------
    claim
        What is claimed.
    says
        Key of the sentence, without ``extract.`` in front.
    further
        Keys of the remarks that follow it, in their order, alike.
    """

    claim: Claim
    says: str
    further: Sequence[str]


def comparison_finding(spans: pd.DataFrame, rate: Row, *, seed: int) -> Finding:
    """Return the finding that compares the trained identifiers of a checkpoint.

    If the base was scored, its difference of the splits is subtracted: it shows how far
    the two splits differ without training.

    ====================================  ========================================
    first match wins                      finding
    ====================================  ========================================
    the difference of the splits has a    :func:`_comparison_of_splits`
    value (held-out ones are comparable)
    the base was scored, and this is not  :func:`_comparison_with_base`
    the base
    nothing is held out                   not_tested, ``no_control``
    otherwise                             not_tested, ``no_comparison``
    ====================================  ========================================

    Parameters
    ----------
    spans
        Of one checkpoint, from :func:`spark_audit.audits.extract.rates.by_checkpoint`.
    rate
        Its rate of reproduced identifiers of trained rows.
    """
    train = spans[spans["split"] == "train"]
    has_held_out = len(train) < len(spans)
    compared, is_alike = comparable(spans)
    difference = rate_difference(split_difference(compared), base_difference(compared))

    # Without any hit only an upper limit of the rate can be stated.
    is_none_reproduced = not train["greedy"].any()
    limit_remarks = []
    if is_none_reproduced and rate.high is not None:
        limit_remarks.append("limit")

    facts: Facts = {
        "rate": rate,
        "none_back": is_none_reproduced,
        "past_base": is_scored_beside_base(spans),
        "back": reproduced_hits(train),
    }
    control = "injected" if is_alike else "natural"
    can_compare_splits = difference.value is not None
    if can_compare_splits:
        return _comparison_of_splits(
            spans,
            compared,
            rate,
            {**facts, "against": control},
            difference,
            limit_remarks=limit_remarks,
            is_alike=is_alike,
        )

    # The base on the same rows replaces held-out identifiers.
    facts |= other_row_facts(train)
    if is_scored_beside_base(spans):
        facts |= share_fact(BASE, "before", train, "base_sure")
        facts["few_held_out"] = has_held_out
        if has_held_out:
            facts["lacking"] = why_not_compared(spans)
        return _comparison_with_base(
            spans, rate, facts, limit_remarks=limit_remarks, seed=seed
        )

    # Neither held-out identifiers nor the base: the difference is missing.
    says = "no_control"
    if has_held_out:
        facts["against"] = control
        says = "no_comparison"
    verdict = ExtractVerdict("not_tested", says, limit_remarks)
    return _finding(rate, verdict, facts, difference)


def _comparison_of_splits(
    spans: pd.DataFrame,
    compared: pd.DataFrame,
    rate: Row,
    facts: Facts,
    difference: Estimate,
    *,
    limit_remarks: Sequence[str],
    is_alike: bool,
) -> Finding:
    """Return the finding on trained next to held-out identifiers.

    Parameters
    ----------
    spans, compared
        All spans of one checkpoint, and the comparable ones
        (:func:`spark_audit.audits.extract.rates.comparable`).
    facts
        On all spans; those on the compared ones take their place.
    difference
        Rate of trained minus rate of held-out spans, less the same at the base.
    limit_remarks
        Keys of remarks on the upper limit, where none is reproduced.
    is_alike
        Whether both splits were drawn alike.
    """
    name = rate.checkpoint
    train = compared[compared["split"] == "train"]
    held_out = compared[compared["split"] == "test"]

    # The facts describe only the compared identifiers.
    facts = {
        **facts,
        **other_row_facts(train),
        "back": reproduced_hits(train),
        **share_fact(name, "unseen", held_out),
        **share_fact(BASE, "before", train, "base_sure"),
    }

    # The base was not trained on these rows, so its output proves no memory.
    p: float | None = None
    guess_facts: Facts = {}
    power: list[Power] = []
    bounds: list[Bound] = []
    if name != BASE:
        p, guess_facts = _split_test(spans, compared, difference)
        power = [hits_power(compared, base_difference(compared))]
        bounds = rates_bound(compared)
    facts |= guess_facts

    # Remarks state the two shares of the difference, and what the test allows for.
    remarks: list[str] = [share for share in ("unseen", "before") if share in facts]
    if is_scored_beside_base(spans):
        remarks.append("beyond_base")
    if guess_facts:
        remarks.append(lucky_guess_remark(facts))

    side = side_of(difference)
    if side is None:
        raise AssertionError("a difference of splits that has a value has an interval")
    verdict = _verdict_on_splits(
        name,
        side,
        p,
        remarks,
        limit_remarks=limit_remarks,
        remarks_on_other_rows=other_row_remarks(facts),
        is_controlled=is_alike or is_scored_beside_base(spans),
    )
    # A confounded difference has no smallest effect.
    if verdict.claim == "confounded":
        power = []
    return _finding(rate, verdict, facts, difference, p=p, power=power, bounds=bounds)


def _verdict_on_splits(
    name: str,
    side: int,
    p: float | None,
    remarks: Sequence[str],
    *,
    limit_remarks: Sequence[str],
    remarks_on_other_rows: Sequence[str],
    is_controlled: bool,
) -> ExtractVerdict:
    """Return the verdict on trained next to held-out identifiers.

    =============================================  ==================================
    first match wins                               claim and sentence
    =============================================  ==================================
    no side is significant                         nothing_shown, ``not_apart``
    the base itself                                confounded, ``splits_differ``
    not drawn alike, and no base                   confounded, ``kinds_differ``
    more trained ones                              ``verbatim``
    fewer trained ones                             ``betrays``
    =============================================  ==================================

    Parameters
    ----------
    name
        Name of the checkpoint.
    side
        Side of the interval of the difference: 1 if more trained ones are reproduced,
        -1 if fewer.
    p
        p of no difference; ``None``: the base, which is not tested.
    remarks
        Keys of the remarks that all sentences have.
    remarks_on_other_rows
        Keys of remarks on hits that other rows contain, or the cue gives there.
    is_controlled
        Whether only training can make the difference: both splits were drawn alike, or
        the difference at the base is subtracted.
    """
    if side == 0 or not _allows_claim(p):
        return ExtractVerdict("nothing_shown", "not_apart", [*remarks, *limit_remarks])
    if name == BASE:
        return ExtractVerdict("confounded", "splits_differ", remarks)
    if not is_controlled:
        further = ["word_for_word", *remarks, *remarks_on_other_rows]
        return ExtractVerdict("confounded", "kinds_differ", further)
    if side == 1:
        further = [*remarks, *remarks_on_other_rows]
        return ExtractVerdict("verbatim", "verbatim", further)
    return ExtractVerdict("betrays", "betrays", ["word_for_word", *remarks])


def _split_test(
    spans: pd.DataFrame, compared: pd.DataFrame, difference: Estimate
) -> GuessTest:
    """Return the p that trained identifiers are reproduced as often as held-out ones.

    Where they are reproduced more often, it may be the p of guessing instead, if that
    is smaller once corrected for two tests (Bonferroni): then the facts of guessing
    come with it, else none.

    Parameters
    ----------
    spans, compared, difference
        As for :func:`_comparison_of_splits`.
    """
    p = comparison_p(difference, compared)
    if side_of(difference) != 1:
        return GuessTest(p, {})

    guess_p, guess_facts = beyond_guessing(spans)
    if 2 * guess_p < p:
        return GuessTest(2 * guess_p, guess_facts)
    return GuessTest(p, {})


def _comparison_with_base(
    spans: pd.DataFrame,
    rate: Row,
    facts: Facts,
    *,
    limit_remarks: Sequence[str],
    seed: int,
) -> Finding:
    """Return the finding on trained identifiers next to the base and to guessing.

    Parameters
    ----------
    spans
        Of one checkpoint that is not the base; none of the held-out ones is comparable.
    facts
        ``lacking`` is the reason why the held-out identifiers, if any, are no control.
    limit_remarks
        Keys of remarks on the upper limit, where none is reproduced.
    """
    facts = {**facts, "against": "base", "past_base": False}
    difference, p = difference_from_base(spans, seed=seed)
    side = side_of(difference)

    # Without an interval, any hit beyond those of the base counts.
    has_hits_without_interval = side is None and bool(
        counted_identifiers(spans)["hit"].any()
    )
    is_above_base = side == 1 or has_hits_without_interval
    if is_above_base:
        # Two tests of memory, of which the clearer one counts (Bonferroni): more hits
        # than guessing gives, or a rate that grows with dose.
        guess_p, guess_facts = beyond_guessing(spans)
        growth_p = dose_p(spans, seed=seed)
        p = min(1.0, 2 * min(guess_p, growth_p))
        facts["grows"] = growth_p if growth_p < guess_p else None
        facts |= guess_facts

    verdict = _verdict_on_base(
        side, p, facts, limit_remarks=limit_remarks, is_above_base=is_above_base
    )
    return _finding(
        rate, verdict, facts, difference, p=p, bounds=base_bound(spans, difference)
    )


def _verdict_on_base(
    side: int | None,
    p: float | None,
    facts: Facts,
    *,
    limit_remarks: Sequence[str],
    is_above_base: bool,
) -> ExtractVerdict:
    """Return the verdict on trained identifiers next to the base and to guessing.

    Without held-out identifiers as a control, hits beyond the base are memory if there
    are more of them than guessing gives, or if their rate grows with dose.

    =============================================  ==================================
    first match wins                               claim and sentence
    =============================================  ==================================
    more than the base, beyond guessing or dose    verbatim, ``beyond_guessing``
    more than the base                             confounded, ``maybe_guessed``
    no interval, and nothing beyond the base       not_tested, ``no_comparison``
    no significant difference                      nothing_shown, ``not_apart``
    fewer than the base                            moved, ``fewer_than_base``
    =============================================  ==================================

    Parameters
    ----------
    side
        Side of the interval of the difference: 1 above the base, -1 below; ``None``:
        it has no interval.
    p
        Above the base, p of no memory; else p of no difference from the base.
    facts
        All facts of the finding.
    """
    # Remarks say why the base is the comparison, and how much it gives.
    why_base = "no_held_out"
    if "lacking" in facts:
        why_base = f"lacking_{facts['lacking']}"
    before = ["before"] if "before" in facts else []
    p_allows_claim = _allows_claim(p)

    # In the order of the table.
    if is_above_base:
        remarks = [*before, guess_rate_remark(facts), *other_row_remarks(facts)]
        if not p_allows_claim:
            return ExtractVerdict("confounded", "maybe_guessed", [why_base, *remarks])
        if facts["grows"] is not None:
            remarks = ["grows", *remarks]
        return ExtractVerdict("verbatim", "beyond_guessing", [why_base, *remarks])

    if side is None:
        further = [why_base, *limit_remarks]
        return ExtractVerdict("not_tested", "no_comparison", further)
    if side == 0 or not p_allows_claim:
        further = [why_base, *before, *limit_remarks]
        return ExtractVerdict("nothing_shown", "not_apart", further)
    return ExtractVerdict("moved", "fewer_than_base", [why_base, *before])


def _allows_claim(p: float | None) -> bool:
    """Return whether a p is small enough, or nothing is tested (``None``).

    The side of the interval then decides alone.
    """
    return p is None or is_significant(p)


def _finding(
    rate: Row,
    verdict: ExtractVerdict,
    facts: Facts,
    difference: Estimate,
    *,
    p: float | None = None,
    power: Sequence[Power] = (),
    bounds: Sequence[Bound] = (),
) -> Finding:
    """Return the finding of a comparison; it is primary if it has a p.

    Parameters
    ----------
    rate
        The rate of trained identifiers that are reproduced.
    difference
        The rate minus the rate that it is compared with, a share; above 0 is a leak.
    p
        Two-sided; ``None``: nothing is tested, so that the finding is exploratory.
    power, bounds
        The inputs of the smallest difference that the test detects, and of the largest
        that could still be there, in points.
    """
    key = f"extract.{verdict.says}"
    remarks = [f"extract.{remark}" for remark in verdict.further]
    # Without a comparison the finding has the figures of the rate itself.
    if difference.value is None:
        return Finding.on(
            rate, verdict.claim, key, facts=facts, further=remarks, p=p, power=power
        )

    # The claim is about the difference, not about the rate. It has the clusters of the
    # rate, by which shared files round or withhold it.
    with_clusters = replace(difference, clusters=rate.clusters)
    apart = row_of(with_clusters, checkpoint=rate.checkpoint, metric="apart")
    return difference_finding(
        rate,
        verdict.claim,
        key,
        difference,
        facts={**facts, "apart": apart},
        further=remarks,
        p=p,
        power=power,
        bounds=bounds,
    )
