"""Ranks of trained canaries next to those of held-out (never inserted) ones.

Held-out canaries are drawn like the trained ones. Their ranks are uniform unless
training moved all strings of their kind. Trained ones that rank further ahead are
therefore remembered, whatever happened to the kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.canary_finding import finding_row
from spark_audit.audits.canary.chance_tests import CanaryTest, adjusted
from spark_audit.results import Row
from spark_audit.results.findings import Fact
from spark_audit.stats import canary_ranks
from spark_audit.stats.estimate import Power

SHARE_BY_CHANCE = 0.5
"""Share of pairs (one canary of each side) in which the trained one ranks ahead,
without memory."""


@dataclass(frozen=True, kw_only=True)
class HeldOutComparison(CanaryTest):
    """Ranks of trained canaries of one part next to those of held-out ones.

    ``value`` is the share of pairs (one canary of each side) in which the trained one
    ranks ahead. ``p`` is two-sided (Mann-Whitney), and ``n`` counts the trained
    canaries.

    Attributes
    ----------
    trained_mean, held_out_mean
        Mean rank of trained and of held-out canaries; 1 is the likeliest.
    power
        Inputs for the smallest detectable difference of the mean ranks, without the
        correction over parts.
    """

    trained_mean: Row
    held_out_mean: Row
    power: Power

    @property
    def rank_facts(self) -> Mapping[str, Fact]:
        """Return the facts of a sentence on both mean ranks."""
        return {
            "trained": self.trained_mean,
            "held_out": self.held_out_mean,
            "p": self.p,
            "over": self.n_tests,
        }


def held_out_comparisons(frame: pd.DataFrame) -> list[HeldOutComparison]:
    """Return a comparison of each part of one checkpoint, the smallest p first.

    Parts that lack trained or held-out canaries are left out. p is corrected (Holm)
    over the parts.

    Parameters
    ----------
    frame
        Canaries of one checkpoint, from :func:`spark_audit.audits.canary.ranks.ranked`.
    """
    comparisons = []
    for name, part, of_part in ranks.by_part(frame):
        trained_ranks = ranks.trained_canaries(of_part)["mid_rank"]  # (trained,)
        held_out_ranks = ranks.held_out_canaries(of_part)["mid_rank"]  # (held out,)
        n_trained = len(trained_ranks)
        n_held_out = len(held_out_ranks)
        if n_trained == 0 or n_held_out == 0:
            continue

        comparison = HeldOutComparison(
            checkpoint=name,
            part=part,
            n=n_trained,
            value=_share_ahead(trained_ranks, held_out_ranks),
            p=_p_of_difference(trained_ranks, held_out_ranks),
            trained_mean=_mean_rank(name, part, trained_ranks),
            held_out_mean=_mean_rank(name, part, held_out_ranks),
            power=_power_of_ranks(
                n_trained, n_held_out, n_candidates=ranks.n_candidates_of(of_part)
            ),
        )
        comparisons.append(comparison)
    return sorted(adjusted(comparisons), key=lambda test: test.p)


def _share_ahead(
    trained_ranks: pd.Series[float], held_out_ranks: pd.Series[float]
) -> float:
    """Return the share of pairs whose trained canary ranks ahead; ties count half."""
    # U counts the pairs whose first member, the trained canary, has the larger rank and
    # so ranks behind.
    u = scipy.stats.mannwhitneyu(trained_ranks, held_out_ranks).statistic
    return float(1 - u / (len(trained_ranks) * len(held_out_ranks)))


def _p_of_difference(
    trained_ranks: pd.Series[float], held_out_ranks: pd.Series[float]
) -> float:
    """Return the two-sided p of Mann and Whitney's test."""
    # If all ranks are equal there is no difference; SciPy gives NaN from 1.18 on.
    if pd.concat([trained_ranks, held_out_ranks]).nunique() == 1:
        return 1.0
    return float(scipy.stats.mannwhitneyu(trained_ranks, held_out_ranks).pvalue)


def _mean_rank(name: str, part: str, side_ranks: pd.Series[float]) -> Row:
    """Return the mean rank of one side as a row."""
    return finding_row(
        checkpoint=name,
        part=part,
        metric="rank_mean",
        n_canaries=len(side_ranks),
        value=float(side_ranks.mean()),
        unit="ranks",
    )


def _power_of_ranks(n_trained: int, n_held_out: int, *, n_candidates: int) -> Power:
    """Return the inputs for the smallest detectable difference of mean ranks."""
    # Without memory the ranks of both sides are uniform.
    _, sd_of_rank = canary_ranks.null_moments(n_candidates, of="rank")

    # The smallest p is that of the two extreme orders, in which one side is wholly
    # ahead of the other, among all orders of both sides.
    n_orders = float(scipy.special.comb(n_trained + n_held_out, n_trained))
    return Power(
        test="t",
        se=sd_of_rank * np.sqrt(1 / n_trained + 1 / n_held_out),
        least_p=min(1.0, 2 / n_orders),
        # All trained canaries rank first; the mean of a uniform rank is (N + 1) / 2.
        largest_effect=(n_candidates - 1) / 2,
    )


def clearest_difference(
    comparisons: Sequence[HeldOutComparison], *, ahead: bool
) -> HeldOutComparison | None:
    """Return the clearest significant comparison in one direction, if any.

    Parameters
    ----------
    comparisons
        From :func:`held_out_comparisons`, sorted by p.
    ahead
        Whether trained canaries rank ahead of held-out ones, or else behind.
    """
    for comparison in comparisons:
        is_ahead = comparison.value > SHARE_BY_CHANCE
        if comparison.is_significant and is_ahead == ahead:
            return comparison
    return None
