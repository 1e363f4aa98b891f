"""Rises of exposures since the base, for a base whose ranks are not uniform.

If the base's ranks are not uniform, chance is not the value without memory. But the
base saw no canary, so a rise of exposures since the base can be memory.

The test is of the trained canaries of the highest doses, which training read most
often: "canaries that occur in most rows" in the sentences. They are the positive
control of the audit, too
(:attr:`~spark_audit.audits.canary.ranked_canaries.RankedCanaries.control_tests`). A
*part* is what is ranked of a canary: the whole sentence, or an identifier in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.canary_finding import canary_finding
from spark_audit.audits.canary.chance_tests import CanaryTest, p_risen
from spark_audit.audits.canary.held_out import HeldOutComparison, clearest_difference
from spark_audit.audits.canary.ranked_canaries import RankedCanaries
from spark_audit.results import Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Estimate, Power
from spark_audit.stats.intervals import ratio_estimate

SIGNED_RANK_SE = float(np.sqrt(np.pi / 3))
"""Standard error of the signed-rank test, as a multiple of that of Student's t.

On normal differences its efficiency is 3 / pi (Hodges and Lehmann 1956).
"""


def rise_finding(
    canaries: RankedCanaries,
    highest_dose_test: CanaryTest,
    comparisons: Sequence[HeldOutComparison],
) -> Finding:
    """Return the finding on the change of exposures since the base.

    ==========  =============  ======================================================
    sentence    claim          condition, first match wins
    ==========  =============  ======================================================
    kind_risen  confounded     canaries of the highest doses rose, held-out ones did as
                               well, and trained ones are not clearly ahead of these
    risen       memory         canaries of the highest doses rose
    not_risen   nothing_shown  otherwise
    ==========  =============  ======================================================

    Parameters
    ----------
    canaries
        Canaries of all checkpoints.
    highest_dose_test
        The test that decides: of the rises of the canaries of the highest doses, of one
        checkpoint and part.
    comparisons
        Ranks of trained next to held-out canaries of the checkpoint, the clearest
        first.
    """
    name = highest_dose_test.checkpoint
    part = highest_dose_test.part
    of_part = _of_part(canaries.frame, part)

    # The sentence states the mean rise of all trained canaries.
    trained = ranks.trained_canaries(of_part)
    row = Row.of_estimate(
        _mean_rise(trained, name),
        audit="canary",
        checkpoint=name,
        metric="exposure_rise",
        variant=part,
        unit="bits",
    )
    facts: Mapping[str, Fact] = {
        "rise": row,
        "p": highest_dose_test.p,
        "over": highest_dose_test.n_tests,  # tests that p is corrected over
    }
    further = ["on_most_rows"]

    # A finding that a rise was detected has neither a smallest effect nor a bound.
    if highest_dose_test.is_significant:
        # If held-out canaries rose as well, all strings of this kind became likelier.
        held_out = ranks.held_out_canaries(of_part)
        p_held_out = p_risen(ranks.exposure_rises(held_out, name))
        has_kind_risen = p_held_out <= 1 - ranks.CONFIDENCE
        is_ahead = clearest_difference(comparisons, ahead=True) is not None
        if has_kind_risen and not is_ahead:
            return canary_finding(
                name,
                "confounded",
                "kind_risen",
                facts,
                further=["likelier_kind", *further],
                p=highest_dose_test.p,
            )
        return canary_finding(
            name, "memory", "risen", facts, further=further, p=highest_dose_test.p
        )

    # Without a rise, state the smallest detectable one and the largest that could still
    # be there (both in bits), of the canaries that p is of.
    of_highest_doses = _of_part(canaries.control_canaries, part)
    tested_rise = _mean_rise(of_highest_doses, name)
    bounds = t_bound(
        tested_rise.value,
        tested_rise.high,
        df=tested_rise.df,
        n_tests=highest_dose_test.n_tests,
    )
    return canary_finding(
        name,
        "nothing_shown",
        "not_risen",
        facts,
        further=further,
        unit="bits",
        p=highest_dose_test.p,
        power=_power_of_rise(tested_rise, n_tests=highest_dose_test.n_tests),
        bounds=bounds,
    )


def _of_part(frame: pd.DataFrame, part: str) -> pd.DataFrame:
    """Return the lines of a frame of canaries that are of one part."""
    return frame[frame["part"] == part]


def _mean_rise(canaries: pd.DataFrame, checkpoint: str) -> Estimate:
    """Return the mean rise of exposures since the base, bits, over canaries.

    Above 0, a checkpoint exposes the canaries more than the base does.

    Parameters
    ----------
    canaries
        Canaries of one part and all checkpoints.
    """
    rises = ranks.exposure_rises(canaries, checkpoint)  # (canaries,), bits

    # Each canary is its own cluster, with the weight 1.
    return ratio_estimate(rises, np.ones(len(rises)))


def _power_of_rise(tested_rise: Estimate, *, n_tests: int) -> list[Power]:
    """Return the inputs for the smallest detectable rise; without a spread none.

    Parameters
    ----------
    tested_rise
        Mean rise of the canaries that are tested, bits.
    n_tests
        Tests that p is corrected over.
    """
    if not tested_rise.se:
        return []

    n_canaries = tested_rise.n

    # The test is one-sided, but a `Power` is of a two-sided test. A one-sided test has
    # the power of a two-sided one at twice its level:
    # - The level is divided by half as many tests.
    # - If all n canaries rise, p is 2^-n, which counts twice.
    least_p = 2 * 2.0**-n_canaries
    power = Power(
        test="sign-flip",
        n=n_canaries,
        se=tested_rise.se * SIGNED_RANK_SE,
        df=n_canaries - 1,
        least_p=least_p,
        n_tests=n_tests / 2,
    )
    return [power]
