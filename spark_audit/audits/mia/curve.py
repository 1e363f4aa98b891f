"""The ROC curves of membership scores, as a table of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from spark_audit.audits.mia import estimates, score_tables
from spark_audit.results.audit_result import TableRecord
from spark_audit.stats.clustered_tpr import effective_clusters, tpr_by_task

POINTS_OF_CURVE = 20
"""Points of a ROC curve in the report."""

MAX_FPR_OF_CURVE = 0.99
"""Largest budget of false positives at which a ROC curve has a point."""


ABOVE_ROUNDING = 1 + 1e-9
"""Factor of a budget, so that rounding does not lose its last false positive."""


def curve_table(
    pooled: estimates.MembershipGroup, names: Sequence[str]
) -> Iterator[TableRecord]:
    """Yield points of the ROC curves, with the band of a random score.

    The smallest budget of false positives is one held-out cluster of the task with the
    fewest, which is the smallest that the rows resolve; the largest is
    :data:`MAX_FPR_OF_CURVE`. Points are evenly spaced on a logarithmic scale. A rate is
    the mean over tasks, as in the rows.

    Yields
    ------
    ``checkpoint``, ``variant`` (the score), ``fpr`` and ``tpr`` (shares from 0 to 1),
    and ``chance_low`` and ``chance_high``, the 95% band of ``tpr``.
    """
    for name, attack in product(names, score_tables.DECLARED_SCORES):
        if pooled.reason_missing(name, attack):
            continue

        scored, (values,) = pooled.scored_examples((name, attack))
        n_others = effective_clusters(scored.design)[:, 1]  # (tasks,)
        fewest_others = int(n_others.min()) if len(n_others) else 0
        # A single cluster of non-members allows no budget below 1.
        if fewest_others < 2:
            continue

        # One false positive in the smallest task.
        least_fpr = 1 / fewest_others * ABOVE_ROUNDING
        fprs = np.geomspace(least_fpr, MAX_FPR_OF_CURVE, POINTS_OF_CURVE)
        for fpr in fprs.tolist():
            band = pooled.chance(name, attack, fpr)
            if not band:
                continue
            rates = [tpr.value for tpr in tpr_by_task(scored.design, values, fpr)]
            yield {
                "checkpoint": name,
                "variant": attack,
                "fpr": fpr,
                "tpr": float(np.mean(rates)),
                "chance_low": band["null_low"],
                "chance_high": band["null_high"],
            }
