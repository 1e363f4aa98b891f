"""Findings of the canary audit: which claims the ranks of canaries allow.

A planted canary is ranked among strings that could have been planted in its place.
Without memory its rank is uniform (chance). A rank further ahead is memory. A rank
further back betrays the canary, too: a model that was made to forget pushes down its
training data. Both ends are compared with chance
(:mod:`~spark_audit.audits.canary.against_chance`) and with held-out canaries
(:mod:`~spark_audit.audits.canary.held_out`). Exposure is a rank in bits: values above
chance mean ranks further ahead. Canaries "in most rows" are those of the highest doses:
they stand in the largest number of train rows.

:func:`findings` is called once per report, after the positive control and the tests of
the base model (:mod:`~spark_audit.audits.canary.ranked_canaries`). A new finding is
yielded where the table of its function says when, and has its sentence in
``sentences/en/canary.toml``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import pandas as pd

from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.against_chance import (
    ahead_finding,
    suppression_finding,
)
from spark_audit.audits.canary.canary_finding import canary_finding
from spark_audit.audits.canary.chance_tests import CanaryTest, clearest_ends
from spark_audit.audits.canary.epsilon import epsilon_finding
from spark_audit.audits.canary.held_out import (
    HeldOutComparison,
    clearest_difference,
    held_out_comparisons,
)
from spark_audit.audits.canary.ranked_canaries import RankedCanaries
from spark_audit.audits.canary.since_base import rise_finding
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.findings import Fact

Facts: TypeAlias = "Mapping[str, Fact]"

MeanExposures: TypeAlias = Mapping[tuple[str, str], Row]
"""Mean exposure of all trained canaries, by checkpoint and part."""

GROUPS_OF_TESTS = ("ends", "in_most_rows", "epsilon")
"""Tests that can claim memory of every checkpoint: on both ends of the ranks, on
canaries in most rows, and bounds of epsilon. Their number corrects p."""


@dataclass(frozen=True, eq=False)
class CheckpointCanaries:
    """The canaries of one checkpoint, of which some parts can be tested.

    Attributes
    ----------
    name
        The checkpoint.
    frame
        Its canaries, trained or not, of all parts.
    parts
        The parts that are tested: those with ranks, whose positive control was found.
    facts
        Facts of every finding on it.
    """

    name: str
    frame: pd.DataFrame
    parts: Collection[str]
    facts: Facts

    @cached_property
    def comparisons(self) -> list[HeldOutComparison]:
        """Return trained next to held-out canaries by tested part, clearest first."""
        is_tested = self.frame["part"].isin(self.parts)
        return held_out_comparisons(self.frame[is_tested])


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
        (row.checkpoint, row.variant): row
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
    mean_exposures: MeanExposures,
) -> Iterator[Finding]:
    """Yield the findings on one checkpoint.

    Parts of which all canaries are tied have the finding ``not_resolvable``. For the
    other parts, the first match wins:

    ==========================================  =====================================
    condition                                   findings
    ==========================================  =====================================
    there are none                              none
    none has a positive control                 ``insensitive``
    base model                                  ``base_knows``; none if its ranks are
                                                uniform
    the base's ranks are not uniform            ``risen``, ``kind_risen`` or
                                                ``not_risen``
    any other                                   :func:`_findings_on_memory`
    ==========================================  =====================================

    Parameters
    ----------
    bounds
        Lower bounds of epsilon of all checkpoints.
    """
    frame = canaries.frame[canaries.frame["checkpoint"] == name]
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
    tested = CheckpointCanaries(
        name=name,
        frame=frame,
        parts=ranked_parts & canaries.sensitive_parts,
        facts={"never_inserted": n_held_out},
    )

    if not tested.parts:
        yield _insensitive(tested, canaries)
    elif name == BASE and canaries.is_base_uniform:
        # The base saw no canary: its ranks only show whether chance is a valid null.
        return
    elif name == BASE:
        yield canary_finding(name, "confounded", "base_knows", further=["only_changes"])
    elif not canaries.is_base_uniform:
        # Chance is no valid null here, but the base is: the rise since it is the only
        # test.
        yield _rise_since_base(tested, canaries)
    else:
        yield from _findings_on_memory(tested, canaries, bounds, mean_exposures)


def _insensitive(tested: CheckpointCanaries, canaries: RankedCanaries) -> Finding:
    """Return the finding that no ranked part has a positive control.

    Its p is the smallest one of the checkpoint's own control tests.
    """
    own_tests = [
        test for test in canaries.control_tests if test.checkpoint == tested.name
    ]
    return canary_finding(
        tested.name,
        "not_tested",
        "insensitive",
        tested.facts,
        further=["control_in_no_checkpoint"],
        p=min((test.p for test in own_tests), default=None),
    )


def _rise_since_base(tested: CheckpointCanaries, canaries: RankedCanaries) -> Finding:
    """Return the finding on the rise of exposures since the base, in tested parts."""
    # Control tests are sorted by p, so the first one is the clearest.
    control_test = next(
        test
        for test in canaries.control_tests
        if test.checkpoint == tested.name and test.part in tested.parts
    )
    finding = rise_finding(canaries, control_test, tested.comparisons)

    # It is the only group of tests that can claim.
    return _corrected(finding, 1, tested.facts)


def _findings_on_memory(
    tested: CheckpointCanaries,
    canaries: RankedCanaries,
    bounds: Sequence[TableRecord],
    mean_exposures: MeanExposures,
) -> Iterator[Finding]:
    """Yield the findings of ranks against chance, and on the bound of epsilon.

    Four groups of tests can claim: :data:`GROUPS_OF_TESTS`, and (if there are any)
    those on held-out canaries. p is corrected over the groups (Bonferroni).
    """
    n_groups = len(GROUPS_OF_TESTS)
    if tested.comparisons:
        n_groups += 1

    facts_by_chance: Facts = {"supposed": canaries.is_draw_assumed, **tested.facts}
    remarks = ["supposed"] if canaries.is_draw_assumed else []
    for finding in _findings_by_chance(tested, canaries, mean_exposures):
        yield _corrected(finding, n_groups, facts_by_chance, further=remarks)

    # The bounds use only canaries that this package drew, so nothing is assumed here.
    n_candidates = ranks.n_candidates_of(tested.frame)
    bound_finding = epsilon_finding(tested.name, bounds, n_candidates)
    if bound_finding is not None:
        yield _corrected(bound_finding, n_groups, tested.facts)


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
    power = [replace(test, n_tests=test.n_tests * n_groups) for test in finding.power]
    bounds = [
        replace(bound, n_tests=bound.n_tests * n_groups) for bound in finding.bounds
    ]

    update = {
        "p": p,
        "power": power,
        "bounds": bounds,
        "facts": {**finding.facts, **facts},
        "further": [*finding.further, *(f"canary.{key}" for key in further)],
    }
    return finding.model_copy(update=update)


def _findings_by_chance(
    tested: CheckpointCanaries, canaries: RankedCanaries, mean_exposures: MeanExposures
) -> Iterator[Finding]:
    """Yield the findings of ranks against chance and against held-out canaries.

    Up to three findings, in this order; p is corrected within each group of tests only:

    1. The upper end: trained canaries rank ahead of chance (memory), or they do not. If
       held-out ones rank ahead, too, chance is no valid null: the finding is ``lifted``
       then, or left to the third one if trained ones are clearly ahead of them.
    2. The lower end, only where trained canaries rank clearly behind chance.
    3. Trained next to held-out canaries, if they differ. If they do not, this is said
       only if no other test found anything, since a test against chance shows more than
       a few held-out canaries can.
    """
    name = tested.name
    trained = ranks.trained_canaries(tested.frame)
    remembered, suppressed = clearest_ends(trained, tested.parts)
    ahead_of_held_out = clearest_difference(tested.comparisons, ahead=True)
    behind_held_out = clearest_difference(tested.comparisons, ahead=False)

    # If held-out canaries left chance, all strings of this kind moved.
    shifts = canaries.shifts_of_kind[name]
    has_kind_moved_ahead = "ahead" in shifts
    has_kind_moved_behind = "behind" in shifts

    # The upper end: memory of all canaries, or only of those in most rows.
    significant_test: CanaryTest | None = remembered
    if not remembered.is_significant:
        significant_test = _significant_control(canaries, name)

    if significant_test is None or not has_kind_moved_ahead:
        yield ahead_finding(
            trained[trained["part"].isin(tested.parts)],
            remembered,
            significant_test,
            mean_exposures[name, remembered.part],
        )
    elif ahead_of_held_out is None:
        # The clearest comparison is the evidence that trained ones are not ahead.
        p = tested.comparisons[0].p if tested.comparisons else significant_test.p
        yield canary_finding(
            name, "confounded", "lifted", further=["likelier_kind"], p=p
        )

    # The lower end: canaries that were pushed down betray their rows, too.
    if suppressed.is_significant:
        yield suppression_finding(
            suppressed,
            ranks.n_candidates_of(tested.frame),
            is_kind=has_kind_moved_behind and behind_held_out is None,
        )

    # Trained canaries next to held-out ones.
    if ahead_of_held_out is not None:
        yield _difference(ahead_of_held_out, "memory", "ahead", p=ahead_of_held_out.p)
    elif behind_held_out is not None and not suppressed.is_significant:
        yield _difference(behind_held_out, "confounded", "behind", p=None)
    elif not (remembered.is_significant or suppressed.is_significant):
        yield _no_difference(name, tested.comparisons)


def _significant_control(canaries: RankedCanaries, name: str) -> CanaryTest | None:
    """Return the clearest significant test of the canaries in most rows, if any."""
    # Control tests are sorted by p.
    for test in canaries.control_tests:
        if test.checkpoint == name and test.is_significant:
            return test
    return None


def _difference(
    comparison: HeldOutComparison, claim: Claim, says: str, *, p: float | None
) -> Finding:
    """Return the finding that trained and held-out canaries rank differently.

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


def _no_difference(name: str, comparisons: Sequence[HeldOutComparison]) -> Finding:
    """Return the finding that no difference was found, or that nobody was held out."""
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
        power=[replace(clearest.power, n_tests=clearest.n_tests)],
    )


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
    # A change of exposure means nothing if the positive control was not found. `full`
    # is the part that is a whole canary.
    if "full" not in canaries.sensitive_parts:
        return

    for contrast in contrasts:
        is_exposure = contrast.metric == "exposure_mean" and contrast.variant == "full"
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
