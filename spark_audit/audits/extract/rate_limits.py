"""Inputs of what a comparison of rates could have missed, in percentage points.

Two questions are answered once the tests of the whole report are counted: what is the
smallest difference that the tests would have detected (``Power``,
:func:`spark_audit.stats.power.smallest`), and what is the largest that could still be
there (``Bound``, :func:`spark_audit.stats.at_most.at_most`)? Frames are those of
:mod:`~spark_audit.audits.extract.rates`; each function says to which of its
differences it belongs. Above 0 is a leak.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.extract.rates import (
    NO_DIFFERENCE,
    POINTS_OF_WHOLE,
    SPLITS,
    counts_of_clusters,
    hits_next_to_base,
    is_scored_beside_base,
    limits_p,
    points,
    rate_difference,
    weighted_sums,
)
from spark_audit.stats.at_most import rate_side, t_bound
from spark_audit.stats.estimate import Bound, Estimate, Power, RateSide, side_of
from spark_audit.stats.intervals import rate_estimate, ratio_estimate

MIN_ENUMERATED_P = 1e-7
"""Stop enumerating once p is below this value: no report asks for less."""


def hits_power(compared: pd.DataFrame, base: Estimate = NO_DIFFERENCE) -> Power:
    """Return the inputs for the smallest difference that both tests detect.

    The inputs (``ps``) are the p of 1, 2, ... trained clusters with a hit, at the
    observed number of held-out clusters with one. Each cluster counts as one
    identifier. Each p is the larger one of Fisher's test and of the interval of the
    difference less that of the base (``comparison_p`` of ``rates.py``).

    Parameters
    ----------
    compared
        From :func:`~spark_audit.audits.extract.rates.comparable`.
    base
        The difference at the base model, from
        :func:`~spark_audit.audits.extract.rates.base_difference`.
    """
    return hits_power_of_counts(counts_of_clusters(compared), base)


def hits_power_of_counts(counts: np.ndarray, base: Estimate = NO_DIFFERENCE) -> Power:
    """Return what :func:`hits_power` does, from numbers of clusters.

    Parameters
    ----------
    counts
        Shape ``(2, 2)``. First axis: trained, held-out. Second axis: clusters with a
        hit, and without one. The hits of trained ones are not looked at.
    base
        As for :func:`hits_power`.
    """
    n_trained, n_held_out = counts.sum(axis=1).tolist()
    held_out_hits = int(counts[1, 0])
    held_out_rate = _rate_of_clusters(held_out_hits, n_held_out)

    ps: list[float] = []
    for trained_hits in range(1, n_trained + 1):
        if ps and ps[-1] < MIN_ENUMERATED_P:
            break

        # Fisher's test must point to trained spans, too.
        if trained_hits * n_held_out <= held_out_hits * n_trained:
            ps.append(1.0)
            continue

        # Test by the interval first: if it claims nothing, Fisher's test is not needed.
        trained_rate = _rate_of_clusters(trained_hits, n_trained)
        difference = rate_difference(trained_rate, held_out_rate)
        beyond_base = rate_difference(difference, base)
        if side_of(beyond_base) != 1:
            ps.append(1.0)
            continue

        table = np.array(
            [
                [trained_hits, n_trained - trained_hits],
                [held_out_hits, n_held_out - held_out_hits],
            ]
        )
        fisher_p = float(scipy.stats.fisher_exact(table).pvalue)
        ps.append(max(limits_p(beyond_base), fisher_p))

    # A rate up to that of held-out spans plus the base's difference is no evidence.
    null = held_out_hits / n_held_out + (base.value or 0.0)
    return Power(
        test="hits",
        n=n_trained,
        ps=ps,
        largest_effect=POINTS_OF_WHOLE,
        tolerance=POINTS_OF_WHOLE * null,
    )


def _rate_of_clusters(n_hits: int, n_clusters: int) -> Estimate:
    """Return the rate of clusters with a hit; each cluster is one trial."""
    has_hit = np.arange(n_clusters) < n_hits  # (clusters,), bool: the first ones have
    return rate_estimate(has_hit, np.ones(n_clusters))


def rates_bound(compared: pd.DataFrame) -> list[Bound]:
    """Return the inputs of the largest difference that could still be there, in points.

    It is that of trained and held-out spans, less that of the base where it was scored.

    Parameters
    ----------
    compared
        From :func:`~spark_audit.audits.extract.rates.comparable`.
    """
    # Rates whose signed sum is the difference: each split of the checkpoint, then of
    # the base.
    sides = _rate_sides(compared, "greedy_sure", sign=1)
    if is_scored_beside_base(compared):
        sides += _rate_sides(compared, "base_sure", sign=-1)
    return _bound_of(sides)


def _rate_sides(
    compared: pd.DataFrame, hit_column: str, *, sign: int
) -> list[RateSide]:
    """Return the rates of both splits, as those of ``split_difference``.

    A split without trials has none.

    Parameters
    ----------
    sign
        1 or -1: whether the bound adds or subtracts the difference of trained minus
        held-out spans.
    """
    # Trained spans add to the difference, held-out ones subtract from it.
    sides = []
    for split, split_sign in zip(SPLITS, (sign, -sign), strict=True):
        hits, trials = weighted_sums(compared, hit_column, split)
        side = rate_side(hits, trials, sign=split_sign)
        if side is not None:
            sides.append(side)
    return sides


def base_bound(spans: pd.DataFrame, difference: Estimate) -> list[Bound]:
    """Return the inputs of the largest difference from the base, in points.

    Parameters
    ----------
    spans
        Of one checkpoint, from
        :func:`~spark_audit.audits.extract.rates.by_checkpoint`.
    difference
        From :func:`~spark_audit.audits.extract.rates.difference_from_base`.
    """
    if difference.value is None:
        return []

    # As in `difference_from_base`: with a standard error the limit is Student's t.
    hits = hits_next_to_base(spans[spans["split"] == "train"])
    if ratio_estimate(hits.gain, hits.trials).se is not None:
        n_clusters = int(np.count_nonzero(hits.trials))
        return t_bound(
            POINTS_OF_WHOLE * difference.value,
            points(difference.high),
            df=n_clusters - 1,
            worst_value=POINTS_OF_WHOLE,
        )

    # Where all clusters agree, the exact limits of both rates stand in for it.
    sides = [
        rate_side(hits.checkpoint, hits.trials, sign=1),
        rate_side(hits.base, hits.trials, sign=-1),
    ]
    return _bound_of([side for side in sides if side is not None])


def _bound_of(sides: Sequence[RateSide]) -> list[Bound]:
    """Return the bound of the signed sum of some rates, in points; none without any."""
    if not sides:
        return []
    value = POINTS_OF_WHOLE * sum(side.sign * side.share for side in sides)
    return [
        Bound(test="rates", value=value, rates=list(sides), worst_value=POINTS_OF_WHOLE)
    ]
