"""The rise of exposures since a base model that does not rank canaries by chance.

If the base's ranks are not uniform, chance is not the value without memory. But the
base saw no canary, so a rise of exposures since the base can be memory.
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
    control_test: CanaryTest,
    comparisons: Sequence[HeldOutComparison],
) -> Finding:
    """Return the finding on the change of exposures since the base.

    ==========  =============  ======================================================
    sentence    claim          condition, first match wins
    ==========  =============  ======================================================
    kind_risen  confounded     canaries in most rows rose, held-out ones did as well,
                               and trained ones do not rank clearly ahead of these
    risen       memory         canaries in most rows rose
    not_risen   nothing_shown  otherwise
    ==========  =============  ======================================================

    Parameters
    ----------
    canaries
        Canaries of all checkpoints.
    control_test
        The positive control of one checkpoint and part: the test of canaries in most
        rows, which decides here.
    comparisons
        Ranks of trained next to held-out canaries of the checkpoint, the clearest
        first.
    """
    name = control_test.checkpoint
    of_part = _of_part(canaries.frame, control_test.part)
    trained = ranks.trained_canaries(of_part)

    # The smallest effect and the bound are those of the canaries that p is of.
    in_most_rows = _of_part(canaries.control_canaries, control_test.part)

    # Each (canaries,), bits; above 0 is more exposed than at the base model.
    rises = ranks.exposure_rises(trained, name)
    rises_in_most_rows = ranks.exposure_rises(in_most_rows, name)

    # Means over canaries, each its own cluster.
    mean_rise = ratio_estimate(rises, np.ones(len(rises)))
    mean_in_most_rows = ratio_estimate(
        rises_in_most_rows, np.ones(len(rises_in_most_rows))
    )

    # The sentence states the mean rise of all canaries; only those in most rows are
    # tested.
    row = Row.of_estimate(
        mean_rise,
        audit="canary",
        checkpoint=name,
        metric="exposure_rise",
        variant=control_test.part,
        unit="bits",
    )
    facts: Mapping[str, Fact] = {
        "rise": row,
        "p": control_test.p,
        "over": control_test.n_tests,  # tests that p is corrected over
    }
    further = ["on_most_rows"]

    if control_test.is_significant:
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
                p=control_test.p,
            )
        return canary_finding(
            name, "memory", "risen", facts, further=further, p=control_test.p
        )

    # Without a rise, state the detectable rise and the one that could still be there.
    bounds = t_bound(
        mean_in_most_rows.value,
        mean_in_most_rows.high,
        df=mean_in_most_rows.df,
        n_tests=control_test.n_tests,
    )
    return canary_finding(
        name,
        "nothing_shown",
        "not_risen",
        facts,
        further=further,
        unit="bits",
        p=control_test.p,
        power=_power_of_rise(mean_in_most_rows, control_test),
        bounds=bounds,
    )


def _of_part(frame: pd.DataFrame, part: str) -> pd.DataFrame:
    """Return the lines of a frame of canaries that are of one part."""
    return frame[frame["part"] == part]


def _power_of_rise(mean_rise: Estimate, control_test: CanaryTest) -> list[Power]:
    """Return the inputs for the smallest detectable rise; without a spread none."""
    if not mean_rise.se:
        return []

    # A one-sided test at a level has the power of a two-sided one at twice that level:
    # so p is corrected over half of the tests, and the smallest p of n canaries that
    # all rise counts as 2 * 2^-n.
    power = Power(
        test="sign-flip",
        n=mean_rise.n,
        se=mean_rise.se * SIGNED_RANK_SE,
        df=mean_rise.n - 1,
        least_p=2.0 ** (1 - mean_rise.n),
        n_tests=control_test.n_tests / 2,
    )
    return [power]
