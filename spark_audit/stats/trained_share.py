"""Estimate what share of rows was trained on, from how familiar they look.

Half of the rows that nobody trained on lie above the median of held-out rows of their
task. If more rows do, the surplus was trained on: rows that were trained on and are not
remembered are not in it, so the share is at least that large. Its idea, a share that is
estimated from rows that look like held-out ones, is Storey's (2002, "A direct approach
to false discovery rates"). What is named uses the estimate of
:func:`~spark_audit.stats.conformal.untrained_shares`, which errs to the safe side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.stats.bootstrap import draw_weights, row_chunks
from spark_audit.stats.estimate import Estimate

REPLICATES = 999
"""Resamples of clusters for the interval."""
ROUNDING_OF_SUMS = 1e-9
"""What lies above half of the weight by less is taken for half: sums are rounded."""


def trained_share(
    scores: ArrayLike,
    held_out: ArrayLike,
    task: ArrayLike,
    cluster: ArrayLike,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Estimate:
    """Return the share of the rows to test that look more familiar than held-out ones.

    It is a lower bound of the share that was trained on. The interval is that of the
    percentiles of a bootstrap over clusters, of both sides.

    Parameters
    ----------
    scores
        Shape ``(n,)``, the larger the more familiar; NaN where a row has none.
    held_out
        Shape ``(n,)``, bool: never trained on. The others are tested.
    task, cluster
        Shape ``(n,)``, labels. A row is compared with held-out rows of its task, of
        which each cluster counts once.

    Returns
    -------
    Estimate
        Between 0 and 1; ``n`` counts tested rows. It is not estimable without a task
        that has rows on both sides.

    Examples
    --------
    Of six rows five are above the median of held-out ones, and three would be by
    chance:

    >>> held_out = [True] * 5 + [False] * 6
    >>> scores = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 2]
    >>> share = trained_share(scores, held_out, [0] * 11, range(11))
    >>> round(share.value, 2)
    0.67
    """
    values = np.asarray(scores, np.float64)
    is_held_out = np.asarray(held_out, bool)
    tasks = np.asarray(task)
    is_scored = np.isfinite(values)
    names_of_clusters, code = np.unique(np.asarray(cluster), return_inverse=True)
    n_clusters = len(names_of_clusters)
    if not is_scored.any():
        return Estimate.missing("no row has a score", clusters=n_clusters)

    # The first number of each array is of the data, the others are of resamples.
    weights = draw_weights(n_clusters, replicates=replicates, seed=seed)
    column = weights.column[code]  # (n,)
    of_data = np.ones((1, weights.drawn.shape[1]), weights.drawn.dtype)
    drawn = np.concatenate([of_data, weights.drawn])  # (1 + B, M)
    n_tested = np.zeros(1 + replicates)
    n_like_held_out = np.zeros(1 + replicates)

    for one_task in np.unique(tasks[is_scored]):
        is_in_task = is_scored & (tasks == one_task)
        comparison = np.flatnonzero(is_in_task & is_held_out)
        tested = np.flatnonzero(is_in_task & ~is_held_out)
        if not len(comparison) or not len(tested):
            continue

        comparison = comparison[np.argsort(values[comparison])]
        n_below = np.searchsorted(values[comparison], values[tested], side="left")
        _, inverse, n_rows = np.unique(
            code[comparison], return_inverse=True, return_counts=True
        )
        weight_of_row = 1 / n_rows[inverse]

        for chunk in row_chunks(1 + replicates, len(comparison) + len(tested)):
            of_comparison = drawn[chunk][:, column[comparison]] * weight_of_row
            below = np.cumsum(of_comparison, axis=1)  # (chunk, comparison)
            below = np.concatenate([np.zeros((len(below), 1)), below], axis=1)
            total = below[:, -1:]
            is_like_held_out = below[:, n_below] <= total / 2 + ROUNDING_OF_SUMS

            # A resample may have no held-out row of the task.
            of_tested = drawn[chunk][:, column[tested]] * (total > 0)
            n_tested[chunk] += of_tested.sum(axis=1)
            n_like_held_out[chunk] += (of_tested * is_like_held_out).sum(axis=1)

    if not n_tested[0]:
        return Estimate.missing("no task has rows on both sides", clusters=n_clusters)
    has_both_sides = n_tested > 0
    shares = 1 - 2 * n_like_held_out[has_both_sides] / n_tested[has_both_sides]
    shares = shares.clip(0, 1)
    low, high = np.percentile(shares[1:], [2.5, 97.5]).tolist()
    return Estimate(
        value=float(shares[0]),
        low=low,
        high=high,
        interval="percentile",
        n=int(n_tested[0]),
        clusters=n_clusters,
    )
