"""Findings of the canary audit: what the ranks of canaries are taken to mean."""

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
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.findings import Fact
from spark_audit.stats import canary_ranks
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.intervals import ratio_estimate

Facts: TypeAlias = "Mapping[str, Fact]"

SIGNED_RANK_SE = float(np.sqrt(np.pi / 3))
"""Standard error of the signed-rank test, as a multiple of that of Student's t.

On normal differences its efficiency is 3 / pi (Hodges and Lehmann 1956).
"""


def _among(
    finding: Finding, n_groups: int, facts: Facts, *, further: Sequence[str] = ()
) -> Finding:
    """Return a finding with p corrected over groups of tests that could claim.

    Parameters
    ----------
    n_groups
        Groups of tests of its checkpoint (Bonferroni).
    facts, further
        Added to those of the finding; keys without ``canary.``.
    """
    # What p is corrected over, the smallest effect and the limit must allow for too.
    power = [replace(test, over=test.over * n_groups) for test in finding.power]
    bounds = [replace(bound, over=bound.over * n_groups) for bound in finding.bounds]
    p = finding.p
    if p is not None:
        p = min(1.0, n_groups * p)

    update = {
        "p": p,
        "power": power,
        "bounds": bounds,
        "facts": {**finding.facts, **facts},
        "further": [*finding.further, *(f"canary.{key}" for key in further)],
    }
    return finding.model_copy(update=update)


def findings(
    canaries: RankedCanaries, bounds: Sequence[TableRecord], rows: Iterable[Row]
) -> Iterator[Finding]:
    """Yield the findings on every checkpoint.

    Parameters
    ----------
    bounds
        Lower bounds of epsilon, from
        :func:`spark_audit.audits.canary.epsilon.epsilon_table`.
    rows
        Rows of the report.
    """
    # Where no part is sensitive, each checkpoint says so by itself.
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
    """Yield the findings on one checkpoint.

    ==========================================  =====================================
    first match wins                            finding
    ==========================================  =====================================
    all parts are tied                          ``not_resolvable`` alone
    the control found no part that is ranked    ``insensitive``
    base model                                  ``base_knows``, unless it is uniform
    the base's ranks are not uniform            the rise since the base
    any other                                   ranks against chance, and epsilon
    ==========================================  =====================================
    """
    frame = canaries.frame[canaries.frame["checkpoint"] == name]

    # Parts without any rank are said to be so, and left out of what follows.
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

    # Every sentence on a checkpoint has the number of its held-out canaries.
    n_held_out = ranks.held_out_canaries(frame)["canary_id"].nunique()
    facts: Facts = {"never_inserted": n_held_out}
    control_tests = [test for test in canaries.control_tests if test.checkpoint == name]
    tested_parts = ranked_parts & canaries.sensitive_parts

    if not tested_parts:
        yield canary_finding(
            name,
            "not_tested",
            "insensitive",
            facts,
            further=["control_in_no_checkpoint"],
            p=min((test.p for test in control_tests), default=None),
        )
        return

    # The base saw no canary: its ranks tell only whether chance is a null.
    if name == BASE:
        if not canaries.is_uniform:
            yield canary_finding(
                name, "confounded", "base_knows", further=["only_changes"]
            )
        return

    comparisons = held_out_comparisons(frame[frame["part"].isin(tested_parts)])
    if not canaries.is_uniform:
        # Chance is no null, but the base itself is one.
        control_test = next(t for t in control_tests if t.part in tested_parts)
        rise = _rise_since_base(canaries.frame, control_test, comparisons)
        yield _among(rise, 1, facts)
        return

    # Tests that could claim: both ends, those in most rows, bounds of epsilon, and
    # held-out canaries where there are any.
    n_groups = 3 + bool(comparisons)
    facts_by_chance: Facts = {"supposed": canaries.is_draw_assumed, **facts}
    remarks = []
    if canaries.is_draw_assumed:
        remarks.append("supposed")
    by_chance = _findings_by_chance(
        frame, tested_parts, comparisons, canaries, mean_exposures
    )
    for claimed in by_chance:
        yield _among(claimed, n_groups, facts_by_chance, further=remarks)

    # The table holds canaries of our own draw only: nothing is assumed of it.
    n_candidates = ranks.n_candidates_of(frame)
    bound_finding = epsilon_finding(name, bounds, n_candidates)
    if bound_finding is not None:
        yield _among(bound_finding, n_groups, facts)


def _findings_by_chance(
    frame: pd.DataFrame,
    parts: Collection[str],
    comparisons: Sequence[HeldOutComparison],
    canaries: RankedCanaries,
    mean_exposures: Mapping[tuple[str, str], Row],
) -> Iterator[Finding]:
    """Yield both ends of the ranks, against chance and against held-out canaries.

    Parameters
    ----------
    frame
        Canaries of one checkpoint.
    parts
        The parts that are tested.
    comparisons
        From :func:`held_out_comparisons`, the clearest first.
    mean_exposures
        Pooled rows of the report, by checkpoint and part.
    """
    trained = ranks.trained_canaries(frame)
    remembered, suppressed = ranks.two_ended(trained, parts)
    name = remembered.checkpoint
    shifts = canaries.shifts_of_kind[name]
    ahead = clearest_difference(comparisons, ahead=True)
    behind = clearest_difference(comparisons, ahead=False)

    # Memory of all canaries, or of those in most rows.
    significant_test: CanaryTest | None = remembered
    if not remembered.is_significant:
        significant_test = _significant_control(canaries, name)

    if significant_test is None or "ahead" not in shifts:
        of_parts = trained[trained["part"].isin(parts)]
        mean_exposure = mean_exposures[name, remembered.part]
        yield _against_chance(of_parts, remembered, significant_test, mean_exposure)
    elif ahead is None:
        # Held-out canaries rank high too, so that only a difference from these tells.
        p = comparisons[0].p if comparisons else significant_test.p
        yield canary_finding(
            name, "confounded", "lifted", further=["likelier_kind"], p=p
        )

    # Suppression: canaries that were pushed down give their rows away as well.
    is_told = remembered.is_significant
    if suppressed.is_significant:
        is_kind = "behind" in shifts and behind is None
        n_candidates = ranks.n_candidates_of(frame)
        yield _suppression(suppressed, n_candidates, is_kind=is_kind)
        is_told = True

    # Planted canaries next to held-out ones.
    if ahead is not None:
        yield canary_finding(
            name,
            "memory",
            "ahead",
            ahead.rank_facts,
            further=["ranks_of"],
            p=ahead.p,
        )
        is_told = True
    elif behind is not None and not suppressed.is_significant:
        yield canary_finding(
            name, "confounded", "behind", behind.rank_facts, further=["ranks_of"]
        )
        is_told = True

    # A test against chance tells more than so few held-out canaries can.
    if not is_told:
        yield _no_difference(name, comparisons)


def _significant_control(canaries: RankedCanaries, name: str) -> CanaryTest | None:
    """Return the clearest significant test of the canaries in most rows, if any."""
    for test in canaries.control_tests:
        if test.checkpoint == name and test.is_significant:
            return test
    return None


def _suppression(
    suppressed: CanaryTest, n_candidates: int, *, is_kind: bool
) -> Finding:
    """Return that canaries rank further back than chance.

    Parameters
    ----------
    suppressed
        The test of the lower end, which is significant.
    is_kind
        Whether held-out canaries rank as low, so that strings of this kind do.
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
    """Return that held-out canaries show no difference, or that there are none."""
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
    """Return whether canaries are remembered, by all of them or those in most rows.

    Parameters
    ----------
    trained
        Trained canaries of the checkpoint, one row per canary and part.
    overall_test
        The clearest test of all canaries.
    significant_test
        ``overall_test``, else that of canaries in most rows; None: neither is.
    mean_exposure
        The figure that the overall test is on.
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
    if n_tied := ranks.n_tied(of_part):
        further.append("tied_one" if n_tied == 1 else "tied")

    # The claim rests on those in most rows; all canaries stand in its facts.
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

    # The smallest effect is that of the part with the fewest canaries that can be
    # ranked: which part is the clearest is known only afterwards.
    n_rankable = ranks.resolved(trained).groupby(trained["part"]).sum()  # (parts,)
    power = Power(
        test="exposure",
        n=max(1, int(n_rankable.min())),
        size=n_candidates,
        over=overall_test.over,
    )

    # No mean exposure is above that of canaries that all rank first.
    bound = Bound(
        test="exposure",
        value=overall_test.value,
        null=chance_mean,
        most=float(np.log2(n_candidates)),
        n=n_canaries,
        size=n_candidates,
        over=overall_test.over,
    )

    claim: Claim = "nothing_shown"
    says = "nothing"
    if significant_test is not None:
        claim = "memory"
        says = "memory"

    return Finding(
        audit="canary",
        checkpoint=name,
        claim=claim,
        says=f"canary.{says}",
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
    """Return the facts of sentences on the ranks of all canaries.

    Parameters
    ----------
    of_part
        Trained canaries of the part that the test is of, one row per canary.
    chance_band
        Ends of the band of mean exposures that chance gives.
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


def _rise_since_base(
    frame: pd.DataFrame,
    control_test: CanaryTest,
    comparisons: Sequence[HeldOutComparison],
) -> Finding:
    """Return what a checkpoint adds to a base that does not rank by chance.

    Parameters
    ----------
    frame
        Ranked canaries of all checkpoints.
    control_test
        The test of canaries in most rows.
    comparisons
        From :func:`held_out_comparisons`, the clearest first.
    """
    name = control_test.checkpoint
    of_part = frame[frame["part"] == control_test.part]
    trained = ranks.trained_canaries(of_part)
    in_most_rows = trained[trained["dose"] == trained["dose"].max()]

    # Each (canaries,), bits; above 0 is more exposed than at the base model.
    rises = ranks.exposure_rises(trained, name)
    rises_in_most_rows = ranks.exposure_rises(in_most_rows, name)

    mean_rise = ratio_estimate(rises, np.ones(len(rises)))
    mean_in_most_rows = ratio_estimate(
        rises_in_most_rows, np.ones(len(rises_in_most_rows))
    )

    # The sentence states the mean of all; the test is on those in most rows.
    row = Row.of_estimate(
        mean_rise,
        audit="canary",
        checkpoint=name,
        metric="exposure_rise",
        of=control_test.part,
        unit="bits",
    )
    facts: Facts = {"rise": row, "p": control_test.p, "over": control_test.over}
    further = ["on_most_rows"]

    if control_test.is_significant:
        # Where held-out canaries rose as well, strings of this kind became likelier.
        rises_of_held_out = ranks.exposure_rises(ranks.held_out_canaries(of_part), name)
        has_kind_risen = ranks.p_risen(rises_of_held_out) <= 1 - ranks.CONFIDENCE
        if has_kind_risen and clearest_difference(comparisons, ahead=True) is None:
            return canary_finding(
                name,
                "confounded",
                "kind_risen",
                facts,
                further=["likelier_kind", *further],
                p=control_test.p,
            )
        return canary_finding(
            name, "memory", "risen", facts, further=further, p=control_test.p
        )

    # No rise: what would have been detected, and what could still be there.
    power = []
    if mean_in_most_rows.se:
        # A one-sided test of those in most rows: half of two sides.
        test = Power(
            test="sign-flip",
            n=mean_in_most_rows.n,
            se=mean_in_most_rows.se * SIGNED_RANK_SE,
            df=mean_in_most_rows.n - 1,
            least_p=2.0 ** (1 - mean_in_most_rows.n),
            over=control_test.over / 2,
        )
        power.append(test)

    bounds = t_bound(
        mean_in_most_rows.value,
        mean_in_most_rows.high,
        df=mean_in_most_rows.df,
        over=control_test.over,
    )
    return canary_finding(
        name,
        "nothing_shown",
        "not_risen",
        facts,
        further=further,
        unit="bits",
        p=control_test.p,
        power=power,
        bounds=bounds,
    )


def contrast_findings(
    contrasts: Sequence[Contrast], canaries: RankedCanaries
) -> Iterator[Finding]:
    """Yield how exposure of whole canaries changed against each baseline."""
    # Without its positive control, a change of the exposure means nothing.
    if "full" not in canaries.sensitive_parts:
        return

    for contrast in contrasts:
        is_exposure = contrast.metric == "exposure_mean" and contrast.of == "full"
        if not is_exposure or contrast.status == "not_resolvable":
            continue

        facts: dict[str, Fact] = {"baseline": contrast.baseline, "change": contrast}
        claim: Claim = "nothing_shown"
        says = "no_change"
        # Without an interval no change can be judged.
        if contrast.value is None:
            says = "change_unknown"
            facts["reason"] = contrast.note
        elif contrast.ends is None:
            says = "change_no_interval"
            facts["reason"] = contrast.note
        elif contrast.moved:
            claim = "moved"
            says = "rose" if contrast.value > 0 else "fell"
        yield Finding.on(contrast, claim, f"canary.{says}", facts=facts)
