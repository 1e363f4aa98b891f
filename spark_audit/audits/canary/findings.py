"""Findings of the canary audit: which claims the ranks of canaries allow.

A planted canary is ranked among strings that could have been planted in its place.
Without memory its rank is uniform (chance). A rank further ahead is memory. A rank
further back betrays the canary, too: a model that was made to forget pushes down its
training data. Both ends are compared with chance and with held-out canaries. Exposure
is a rank in bits: values above chance mean ranks further ahead. Canaries "in most rows"
are those of the highest doses: they stand in the largest number of train rows.

:func:`findings` is called once per report, after the positive control and the tests of
the base model (:class:`~spark_audit.audits.canary.ranks.RankedCanaries`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.canary_finding import canary_finding
from spark_audit.audits.canary.epsilon import epsilon_finding
from spark_audit.audits.canary.held_out import (
    HeldOutComparison,
    clearest_difference,
    held_out_comparisons,
)
from spark_audit.audits.canary.ranks import CanaryTest, RankedCanaries
from spark_audit.audits.canary.since_base import rise_finding
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.findings import Fact
from spark_audit.stats import canary_ranks
from spark_audit.stats.estimate import Bound, Power

Facts: TypeAlias = "Mapping[str, Fact]"

GROUPS_OF_TESTS = ("ends", "in_most_rows", "epsilon")
"""Tests that can claim memory of every checkpoint: on both ends of the ranks, on
canaries in most rows, and bounds of epsilon."""


def findings(
    canaries: RankedCanaries, bounds: Sequence[TableRecord], rows: Iterable[Row]
) -> Iterator[Finding]:
    """Yield the findings on every checkpoint, and one on parts without a control.

    Parameters
    ----------
    bounds
        Lower bounds of epsilon, from
        :func:`spark_audit.audits.canary.epsilon.epsilon_table`.
    rows
        Figures of this audit.
    """
    # If no part is sensitive, the finding on each checkpoint says so.
    if canaries.sensitive_parts and canaries.insensitive_parts:
        parts = {
            "insensitive": canaries.insensitive_parts,
            "sensitive": sorted(canaries.sensitive_parts),
        }
        yield canary_finding(
            "", "not_tested", "partly_insensitive", parts, further=["control_in_part"]
        )

    mean_exposures = {
        (row.checkpoint, row.of): row
        for row in rows
        if row.metric == "exposure_mean" and row.group == "pooled"
    }
    trained = ranks.trained_canaries(canaries.frame)
    for name in dict.fromkeys(trained["checkpoint"]):
        yield from _findings_on(name, canaries, bounds, mean_exposures)


def _findings_on(
    name: str,
    canaries: RankedCanaries,
    bounds: Sequence[TableRecord],
    mean_exposures: Mapping[tuple[str, str], Row],
) -> Iterator[Finding]:
    """Yield the findings on one checkpoint; the first match wins.

    ==========================================  =====================================
    condition                                   findings
    ==========================================  =====================================
    all parts are tied                          ``not_resolvable`` alone
    the control found no part that is ranked    ``insensitive``
    base model                                  ``base_knows``; none if its ranks are
                                                uniform
    the base's ranks are not uniform            ``risen``, ``kind_risen`` or
                                                ``not_risen``
    any other                                   :func:`_findings_by_chance`, and the
                                                bound of epsilon
    ==========================================  =====================================

    Parameters
    ----------
    bounds
        Lower bounds of epsilon of all checkpoints.
    mean_exposures
        Figures of all canaries, by checkpoint and part.
    """
    frame = canaries.frame[canaries.frame["checkpoint"] == name]

    # Report the parts without any rank, and leave them out below.
    tied_parts = {
        part for checkpoint, part in canaries.unresolved if checkpoint == name
    }
    if tied_parts:
        tied_facts: Facts = {"parts": sorted(tied_parts), "reason": ranks.TIED}
        yield canary_finding(
            name, "not_tested", "not_resolvable", tied_facts, status="not_resolvable"
        )

    ranked_parts = set(ranks.trained_canaries(frame)["part"]) - tied_parts
    if not ranked_parts:
        return

    # Every sentence on a checkpoint states the number of its held-out canaries.
    n_held_out = ranks.held_out_canaries(frame)["canary_id"].nunique()
    facts: Facts = {"never_inserted": n_held_out}
    tested_parts = ranked_parts & canaries.sensitive_parts

    if not tested_parts:
        yield _insensitive(name, canaries, facts)
    elif name == BASE and canaries.is_uniform:
        # The base saw no canary: its ranks only show whether chance is a valid null.
        return
    elif name == BASE:
        yield canary_finding(name, "confounded", "base_knows", further=["only_changes"])
    elif not canaries.is_uniform:
        # Chance is no valid null here, but the base is: the rise since it is the only
        # test.
        yield _rise_since_base(name, tested_parts, canaries, facts)
    else:
        yield from _findings_on_memory(
            name, tested_parts, canaries, bounds, mean_exposures, facts
        )


def _insensitive(name: str, canaries: RankedCanaries, facts: Facts) -> Finding:
    """Return the finding that no ranked part has a positive control.

    Its p is the smallest one of the checkpoint's own control tests.
    """
    ps = [test.p for test in canaries.control_tests if test.checkpoint == name]
    return canary_finding(
        name,
        "not_tested",
        "insensitive",
        facts,
        further=["control_in_no_checkpoint"],
        p=min(ps, default=None),
    )


def _rise_since_base(
    name: str, parts: Collection[str], canaries: RankedCanaries, facts: Facts
) -> Finding:
    """Return the finding on the rise of exposures since the base, in some parts."""
    control_test = next(
        test
        for test in canaries.control_tests
        if test.checkpoint == name and test.part in parts
    )
    frame = canaries.frame[canaries.frame["checkpoint"] == name]
    comparisons = held_out_comparisons(frame[frame["part"].isin(parts)])
    rise = rise_finding(canaries.frame, control_test, comparisons)
    return _corrected(rise, 1, facts)


def _findings_on_memory(
    name: str,
    parts: Collection[str],
    canaries: RankedCanaries,
    bounds: Sequence[TableRecord],
    mean_exposures: Mapping[tuple[str, str], Row],
    facts: Facts,
) -> Iterator[Finding]:
    """Yield the findings of ranks against chance, and on the bound of epsilon.

    Four groups of tests can claim: :data:`GROUPS_OF_TESTS`, and (if there are any)
    those on held-out canaries. p is corrected over the groups (Bonferroni).

    Parameters
    ----------
    parts
        The parts that are tested.
    bounds, mean_exposures
        As for :func:`_findings_on`.
    facts
        Facts of every finding on the checkpoint.
    """
    frame = canaries.frame[canaries.frame["checkpoint"] == name]
    comparisons = held_out_comparisons(frame[frame["part"].isin(parts)])
    n_groups = len(GROUPS_OF_TESTS)
    if comparisons:
        n_groups += 1

    facts_by_chance: Facts = {"supposed": canaries.is_draw_assumed, **facts}
    remarks = ["supposed"] if canaries.is_draw_assumed else []
    by_chance = _findings_by_chance(frame, parts, comparisons, canaries, mean_exposures)
    for finding in by_chance:
        yield _corrected(finding, n_groups, facts_by_chance, further=remarks)

    # The bounds use only canaries that this package drew, so nothing is assumed here.
    bound_finding = epsilon_finding(name, bounds, ranks.n_candidates_of(frame))
    if bound_finding is not None:
        yield _corrected(bound_finding, n_groups, facts)


def _corrected(
    finding: Finding, n_groups: int, facts: Facts, *, further: Sequence[str] = ()
) -> Finding:
    """Return a finding whose p is corrected over groups of tests (Bonferroni).

    Parameters
    ----------
    n_groups
        Number of groups of tests on the checkpoint that can claim.
    facts, further
        Facts and keys of remarks (without ``canary.``) that are added.
    """
    p = finding.p
    if p is not None:
        p = min(1.0, n_groups * p)

    # The smallest effect and the bound must include the correction, too.
    power = [replace(test, over=test.over * n_groups) for test in finding.power]
    bounds = [replace(bound, over=bound.over * n_groups) for bound in finding.bounds]

    update = {
        "p": p,
        "power": power,
        "bounds": bounds,
        "facts": {**finding.facts, **facts},
        "further": [*finding.further, *(f"canary.{key}" for key in further)],
    }
    return finding.model_copy(update=update)


def _findings_by_chance(
    frame: pd.DataFrame,
    parts: Collection[str],
    comparisons: Sequence[HeldOutComparison],
    canaries: RankedCanaries,
    mean_exposures: Mapping[tuple[str, str], Row],
) -> Iterator[Finding]:
    """Yield the findings of ranks against chance and against held-out canaries.

    Up to three findings, in this order:

    1. The upper end: trained canaries rank ahead of chance (memory), or they do not. If
       held-out ones rank ahead too, chance is no valid null. The finding is ``lifted``
       then, unless trained ones are clearly ahead of them.
    2. The lower end, where trained canaries rank clearly behind chance.
    3. Trained next to held-out canaries, if they differ. If they do not, this is said
       only if no other test found anything, since a test against chance shows more than
       a few held-out canaries can.

    Parameters
    ----------
    frame
        Canaries of one checkpoint.
    parts
        The parts that are tested.
    comparisons
        From :func:`held_out_comparisons`, the clearest first.
    mean_exposures
        Figures of all canaries, by checkpoint and part.
    """
    trained = ranks.trained_canaries(frame)
    remembered, suppressed = ranks.two_ended(trained, parts)
    name = remembered.checkpoint
    ahead_of_held_out = clearest_difference(comparisons, ahead=True)
    behind_held_out = clearest_difference(comparisons, ahead=False)

    # If held-out canaries left chance, all strings of this kind moved.
    shifts = canaries.shifts_of_kind[name]
    has_kind_moved_ahead = "ahead" in shifts
    has_kind_moved_behind = "behind" in shifts

    # The upper end: memory of all canaries, or only of those in most rows.
    significant_test: CanaryTest | None = remembered
    if not remembered.is_significant:
        significant_test = _significant_control(canaries, name)

    if significant_test is None or not has_kind_moved_ahead:
        of_parts = trained[trained["part"].isin(parts)]
        mean_exposure = mean_exposures[name, remembered.part]
        yield _against_chance(of_parts, remembered, significant_test, mean_exposure)
    elif ahead_of_held_out is None:
        p = comparisons[0].p if comparisons else significant_test.p
        yield canary_finding(
            name, "confounded", "lifted", further=["likelier_kind"], p=p
        )

    # The lower end: canaries that were pushed down betray their rows, too.
    if suppressed.is_significant:
        is_kind = has_kind_moved_behind and behind_held_out is None
        n_candidates = ranks.n_candidates_of(frame)
        yield _suppression(suppressed, n_candidates, is_kind=is_kind)

    # Trained canaries next to held-out ones.
    if ahead_of_held_out is not None:
        yield _difference(ahead_of_held_out, "memory", "ahead", p=ahead_of_held_out.p)
    elif behind_held_out is not None and not suppressed.is_significant:
        yield _difference(behind_held_out, "confounded", "behind", p=None)
    elif not (remembered.is_significant or suppressed.is_significant):
        yield _no_difference(name, comparisons)


def _difference(
    comparison: HeldOutComparison, claim: Claim, says: str, *, p: float | None
) -> Finding:
    """Return the finding that planted and held-out canaries rank differently.

    Parameters
    ----------
    p
        That of the comparison if the claim is a test, else ``None``.
    """
    return canary_finding(
        comparison.checkpoint,
        claim,
        says,
        comparison.rank_facts,
        further=["ranks_of"],
        p=p,
    )


def _significant_control(canaries: RankedCanaries, name: str) -> CanaryTest | None:
    """Return the clearest significant test of the canaries in most rows, if any."""
    for test in canaries.control_tests:
        if test.checkpoint == name and test.is_significant:
            return test
    return None


def _suppression(
    suppressed: CanaryTest, n_candidates: int, *, is_kind: bool
) -> Finding:
    """Return the finding that canaries rank further back than chance.

    Parameters
    ----------
    suppressed
        The test of the lower end, which is significant.
    is_kind
        Whether held-out canaries rank low, too, as all strings of this kind then do.
    """
    name = suppressed.checkpoint
    if is_kind:
        return canary_finding(name, "confounded", "sunk", further=["less_likely_kind"])

    chance_mean, _ = canary_ranks.null_moments(n_candidates)
    return canary_finding(
        name,
        "betrays",
        "behind_chance",
        suppressed.facts("lower_tail_exposure", null=chance_mean),
        further=["from_last_rank"],
        p=suppressed.p,
    )


def _no_difference(name: str, comparisons: Sequence[HeldOutComparison]) -> Finding:
    """Return the finding of no difference from held-out canaries, or of none."""
    if not comparisons:
        return canary_finding(name, "not_tested", "no_held_out")

    clearest = comparisons[0]
    return canary_finding(
        name,
        "nothing_shown",
        "no_difference",
        clearest.rank_facts,
        further=["ranks_of"],
        unit="ranks",
        power=[replace(clearest.power, over=clearest.over)],
    )


def _against_chance(
    trained: pd.DataFrame,
    overall_test: CanaryTest,
    significant_test: CanaryTest | None,
    mean_exposure: Row,
) -> Finding:
    """Return the finding on whether canaries rank ahead of chance.

    ==========  =============  =====================================================
    sentence    claim          condition
    ==========  =============  =====================================================
    most_rows   memory         only canaries in most rows are significantly ahead
    memory      memory         all canaries are
    nothing     nothing_shown  neither
    ==========  =============  =====================================================

    Parameters
    ----------
    trained
        Trained canaries of the checkpoint, one row per canary and part.
    overall_test
        The clearest test of all canaries.
    significant_test
        The test that the claim rests on: ``overall_test`` if it is significant, else
        that of canaries in most rows; ``None``: neither is.
    mean_exposure
        The figure that the overall test concerns.
    """
    name = overall_test.checkpoint
    of_part = trained[trained["part"] == overall_test.part]
    n_candidates = ranks.n_candidates_of(trained)
    n_canaries = overall_test.n

    chance_mean, _ = canary_ranks.null_moments(n_candidates)
    chance = canary_ranks.null_mean([n_candidates] * n_canaries)
    facts = _facts_of_ranks(
        of_part,
        overall_test,
        n_candidates=n_candidates,
        chance_mean=chance_mean,
        chance_band=chance.band(),
    )

    further = ["first_by_chance"]
    n_tied = ranks.n_tied(of_part)
    if n_tied:
        further.append("tied_one" if n_tied == 1 else "tied")

    # The claim rests on canaries in most rows; its facts describe all canaries.
    if significant_test is not None and significant_test is not overall_test:
        facts["most_rows"] = significant_test.row("exposure_mean")
        facts["p"] = significant_test.p
        facts["over"] = significant_test.over
        return canary_finding(
            name,
            "memory",
            "most_rows",
            facts,
            further=["in_most_rows", "over_all", *further],
            unit="bits",
            value=significant_test.value,
            null=chance_mean,
            p=significant_test.p,
        )

    # The smallest effect is that of the part with the fewest resolved canaries, since
    # only the results show which part is the clearest.
    n_rankable = ranks.resolved(trained).groupby(trained["part"]).sum()  # (parts,)
    power = Power(
        test="exposure",
        n=max(1, int(n_rankable.min())),
        size=n_candidates,
        over=overall_test.over,
    )

    # The mean exposure is largest if all canaries rank first.
    bound = Bound(
        test="exposure",
        value=overall_test.value,
        null=chance_mean,
        most=float(np.log2(n_candidates)),
        n=n_canaries,
        size=n_candidates,
        over=overall_test.over,
    )

    is_memory = significant_test is not None
    return Finding(
        audit="canary",
        checkpoint=name,
        claim="memory" if is_memory else "nothing_shown",
        says="canary.memory" if is_memory else "canary.nothing",
        further=[f"canary.{key}" for key in further],
        metric="exposure_mean",
        of=overall_test.part,
        unit="bits",
        null=chance_mean,
        value=overall_test.value,
        low=mean_exposure.low,
        high=mean_exposure.high,
        family="primary",
        p=overall_test.p,
        power=[power],
        bounds=[bound],
        facts=facts,
    )


def _facts_of_ranks(
    of_part: pd.DataFrame,
    overall_test: CanaryTest,
    *,
    n_candidates: int,
    chance_mean: float,
    chance_band: tuple[float, float],
) -> dict[str, Fact]:
    """Return the facts of sentences on the ranks of all canaries of one part.

    Parameters
    ----------
    of_part
        Trained canaries of the tested part, one row per canary.
    chance_band
        Lower and upper end of mean exposures by chance.
    """
    chance_low, chance_high = chance_band
    first = ranks.hits_of(of_part, k=1)
    return {
        "exposure_mean": overall_test.row(
            "exposure_mean",
            null=chance_mean,
            null_low=chance_low,
            null_high=chance_high,
        ),
        "p": overall_test.p,
        "over": overall_test.over,
        "top1_rate": ranks.row_of(
            overall_test.checkpoint,
            overall_test.part,
            "top1_rate",
            overall_test.n,
            value=first.rate,
            low=first.low,
            high=first.high,
        ),
        "first": round(first.hits, 2),
        "canaries": overall_test.n,
        "candidates": n_candidates,
        "tied": ranks.n_tied(of_part),
    }


def contrast_findings(
    contrasts: Sequence[Contrast], canaries: RankedCanaries
) -> Iterator[Finding]:
    """Yield findings on the change of exposure of whole canaries from each baseline.

    ==================  =============  ==============================================
    sentence            claim          condition, first match wins
    ==================  =============  ==============================================
    change_unknown      nothing_shown  the change cannot be estimated
    change_no_interval  nothing_shown  it has no interval
    rose, fell          moved          its interval and its test agree that it is not 0
    no_change           nothing_shown  otherwise
    ==================  =============  ==============================================
    """
    # A change of exposure means nothing if the positive control was not found.
    if "full" not in canaries.sensitive_parts:
        return

    for contrast in contrasts:
        is_exposure = contrast.metric == "exposure_mean" and contrast.of == "full"
        if not is_exposure or contrast.status == "not_resolvable":
            continue

        facts: dict[str, Fact] = {"baseline": contrast.baseline, "change": contrast}
        claim: Claim = "nothing_shown"
        if contrast.value is None:
            says = "change_unknown"
            facts["reason"] = contrast.note
        elif contrast.ends is None:
            says = "change_no_interval"
            facts["reason"] = contrast.note
        elif contrast.moved:
            claim = "moved"
            says = "rose" if contrast.value > 0 else "fell"
        else:
            says = "no_change"
        yield Finding.on(contrast, claim, f"canary.{says}", facts=facts)
