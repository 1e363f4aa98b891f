"""Findings on ranks of canaries against chance, at both ends of the ranks.

The upper end is memory: canaries rank ahead of chance, or it is not shown that they do
(:func:`ahead_finding`). The lower end is suppression: they rank behind chance
(:func:`suppression_finding`). Which of the two is reported, and whether chance is a
valid null, is decided in :mod:`~spark_audit.audits.canary.findings`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.canary_finding import canary_finding, finding_row
from spark_audit.audits.canary.chance_tests import CanaryTest
from spark_audit.results import Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats import canary_ranks
from spark_audit.stats.estimate import Bound, Power


def ahead_finding(
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
        Trained canaries of the checkpoint, one line per canary and tested part.
    overall_test
        The clearest test of all canaries; ``value`` is a mean exposure, bits.
    significant_test
        The test that the claim rests on: ``overall_test`` if it is significant, else
        that of canaries in most rows; ``None``: neither is.
    mean_exposure
        The figure that the overall test concerns, with its interval.
    """
    of_part = trained[trained["part"] == overall_test.part]
    facts = _facts_of_ranks(of_part, overall_test)

    further = ["first_by_chance"]
    n_tied = ranks.n_tied(of_part)
    if n_tied:
        further.append("tied_one" if n_tied == 1 else "tied")

    n_candidates = ranks.n_candidates_of(trained)
    chance_mean, _ = canary_ranks.null_moments(n_candidates)

    # The claim rests on canaries in most rows; its facts describe all canaries, but for
    # the test.
    if significant_test is not None and significant_test is not overall_test:
        facts["most_rows"] = significant_test.row("exposure_mean")
        facts["p"] = significant_test.p
        facts["over"] = significant_test.n_tests
        return canary_finding(
            overall_test.checkpoint,
            "memory",
            "most_rows",
            facts,
            further=["in_most_rows", "over_all", *further],
            unit="bits",
            value=significant_test.value,
            no_effect=chance_mean,
            p=significant_test.p,
        )

    is_memory = significant_test is not None
    return Finding(
        audit="canary",
        checkpoint=overall_test.checkpoint,
        claim="memory" if is_memory else "nothing_shown",
        says="canary.memory" if is_memory else "canary.nothing",
        further=[f"canary.{key}" for key in further],
        metric="exposure_mean",
        variant=overall_test.part,
        unit="bits",
        no_effect=chance_mean,
        value=overall_test.value,
        low=mean_exposure.low,
        high=mean_exposure.high,
        family="primary",
        p=overall_test.p,
        power=[_power_of_exposure(trained, overall_test)],
        bounds=[_bound_of_exposure(overall_test, n_candidates, null=chance_mean)],
        facts=facts,
    )


def _power_of_exposure(trained: pd.DataFrame, overall_test: CanaryTest) -> Power:
    """Return the inputs for the smallest detectable mean exposure."""
    # It is that of the part with the fewest resolved canaries, since only the results
    # show which part is the clearest.
    n_rankable = ranks.resolved(trained).groupby(trained["part"]).sum()  # (parts,)
    return Power(
        test="exposure",
        n=max(1, int(n_rankable.min())),
        size=ranks.n_candidates_of(trained),
        n_tests=overall_test.n_tests,
    )


def _bound_of_exposure(
    overall_test: CanaryTest, n_candidates: int, *, null: float
) -> Bound:
    """Return the inputs for the mean exposure that could still be there."""
    # The mean exposure is largest if all canaries rank first.
    return Bound(
        test="exposure",
        value=overall_test.value,
        no_effect=null,
        worst_value=float(np.log2(n_candidates)),
        n=overall_test.n,
        size=n_candidates,
        n_tests=overall_test.n_tests,
    )


def _facts_of_ranks(of_part: pd.DataFrame, overall_test: CanaryTest) -> dict[str, Fact]:
    """Return the facts of sentences on the ranks of all canaries of one part.

    Parameters
    ----------
    of_part
        Trained canaries of the tested part, one line per canary.
    """
    n_canaries = overall_test.n
    n_candidates = ranks.n_candidates_of(of_part)

    # The value by chance of the mean exposure, and the band around it.
    chance_mean, _ = canary_ranks.null_moments(n_candidates)
    chance = canary_ranks.null_mean([n_candidates] * n_canaries)
    chance_low, chance_high = chance.band()

    top_1 = ranks.hits_of(of_part, k=1)
    return {
        "exposure_mean": overall_test.row(
            "exposure_mean",
            no_effect=chance_mean,
            no_effect_low=chance_low,
            no_effect_high=chance_high,
        ),
        "p": overall_test.p,
        "over": overall_test.n_tests,
        "top1_rate": finding_row(
            checkpoint=overall_test.checkpoint,
            part=overall_test.part,
            metric="top1_rate",
            n_canaries=n_canaries,
            value=top_1.rate,
            low=top_1.low,
            high=top_1.high,
        ),
        # Ties count in part.
        "first": round(top_1.hits, 2),
        "canaries": n_canaries,
        "candidates": n_candidates,
        "tied": ranks.n_tied(of_part),
    }


def suppression_finding(
    suppressed: CanaryTest, n_candidates: int, *, is_kind: bool
) -> Finding:
    """Return the finding that canaries rank further back than chance.

    It is ``behind_chance`` (the canaries betray their rows), or ``sunk`` (confounded)
    if held-out canaries rank low, too.

    Parameters
    ----------
    suppressed
        The test of the lower end, which is significant; ``value`` is the mean exposure
        from the last rank, bits.
    is_kind
        Whether all strings of this kind rank low, held-out canaries too.
    """
    name = suppressed.checkpoint
    if is_kind:
        return canary_finding(name, "confounded", "sunk", further=["less_likely_kind"])

    chance_mean, _ = canary_ranks.null_moments(n_candidates)
    return canary_finding(
        name,
        "betrays",
        "behind_chance",
        suppressed.facts("lower_tail_exposure", no_effect=chance_mean),
        further=["from_last_rank"],
        p=suppressed.p,
    )
