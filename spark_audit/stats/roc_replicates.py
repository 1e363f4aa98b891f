"""AUC and TPR of rows that come in clusters and tasks, in resamples of clusters.

All figures of a score are computed together: they need the same order of rows and the
same weights. From them follow the intervals of :mod:`~spark_audit.stats.clustered_roc`
and :mod:`~spark_audit.stats.clustered_tpr`, whose shapes these are: ``n`` rows, ``T``
tasks, ``B`` resamples, of which a lot has ``b``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.stats.bootstrap import Weights
from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.resamples import first_sums, resamples_of_rows
from spark_audit.stats.roc import checked


class RocReplicates(NamedTuple):
    """Figures averaged over tasks in every resample; NaN where one lacks a side.

    ``auc``: shape ``(B,)``. ``tpr``: shape ``(F, B)``, by budget of false positives.
    """

    auc: np.ndarray
    tpr: np.ndarray


def roc_replicates(
    design: Design,
    scores: ArrayLike,
    weights: Weights,
    *,
    budgets: Sequence[float] = (),
) -> RocReplicates:
    """Return the AUC, and the TPR at each budget, in every resample of clusters.

    Parameters
    ----------
    design
        Members, clusters and tasks of ``n`` rows.
    scores
        Shape ``(n,)``.
    weights
        ``B`` resamples, from :meth:`~spark_audit.stats.clustered_roc.Design.draw`.
    budgets
        ``F`` budgets of false positives, shares from 0 to 1.

    Examples
    --------
    All four clusters once, and only the member that is below a non-member:

    >>> design = Design.of([True, True, False, False], range(4))
    >>> weights = Weights(np.array([[1, 1, 1, 1], [0, 2, 1, 1]]), np.arange(4))
    >>> replicates = roc_replicates(
    ...     design, [4.0, 2.0, 3.0, 1.0], weights, budgets=[0.1]
    ... )
    >>> replicates.auc.tolist(), replicates.tpr.tolist()
    ([0.75, 0.5], [[0.5, 0.0]])
    """
    values = checked(scores)
    auc_total = np.zeros(len(weights))
    tpr_total = np.zeros((len(budgets), len(weights)))

    for members, others in design.tasks:
        # Sort both sides from the largest score down.
        members = members[np.argsort(-values[members], kind="stable")]
        others = others[np.argsort(-values[others], kind="stable")]

        # Number of members strictly above each non-member, and of those at least as
        # high, (others,).
        n_above = np.searchsorted(-values[members], -values[others], side="left")
        n_at_least = np.searchsorted(-values[members], -values[others], side="right")

        for lot, member_weights, other_weights in resamples_of_rows(
            weights, design.cluster, members, others
        ):
            # Weights count rows. Members above each non-member, (others, b), and
            # non-members down to each one, (others, b).
            first_members = first_sums(member_weights)  # (members + 1, b)
            above = first_members[n_above]
            at_least = first_members[n_at_least]
            others_down_to = first_sums(other_weights)[1:]

            n_members = first_members[-1]  # (b,)
            n_others = others_down_to[-1]  # (b,)
            lacks_side = (n_members == 0) | (n_others == 0)

            # A pair is ordered rightly if the member is above; a tie counts one half.
            twice_ordered = np.einsum("jb,jb->b", other_weights, above + at_least)
            n_pairs = np.where(lacks_side, np.nan, n_members * n_others)
            auc_total[lot] += twice_ordered / 2 / n_pairs

            resample = np.arange(len(n_members))
            for i, budget in enumerate(budgets):
                # The threshold is the first non-member that exceeds the budget; the
                # tolerance is that of roc.allowed.
                allowed = np.floor(budget * n_others + 1e-9)
                n_within = np.count_nonzero(others_down_to <= allowed, axis=0)
                threshold = np.minimum(n_within, len(others) - 1)  # (b,)

                hits = above[threshold, resample]  # (b,)
                rate = hits / np.maximum(n_members, 1)
                tpr_total[i, lot] += np.where(lacks_side, np.nan, rate)

    n_tasks = max(design.n_tasks, 1)
    return RocReplicates(auc=auc_total / n_tasks, tpr=tpr_total / n_tasks)


def tpr_replicates(
    design: Design, scores: ArrayLike, budgets: Sequence[float], weights: Weights
) -> np.ndarray:
    """Return the TPR at each budget, averaged over tasks, in every resample.

    Parameters
    ----------
    design, scores, weights
        As for :func:`roc_replicates`.
    budgets
        ``F`` budgets of false positives, shares from 0 to 1.

    Returns
    -------
    Shape ``(F, B)``; NaN where a resample lacks a side.

    Examples
    --------
    >>> design = Design.of([True, True, False, False], range(4))
    >>> weights = Weights(np.array([[1, 1, 1, 1], [0, 2, 1, 1]]), np.arange(4))
    >>> tpr_replicates(design, [4.0, 2.0, 3.0, 1.0], [0.1], weights).tolist()
    [[0.5, 0.0]]
    """
    return roc_replicates(design, scores, weights, budgets=budgets).tpr
