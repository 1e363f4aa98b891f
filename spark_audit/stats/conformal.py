"""Rows that are named as members one by one, at a declared share of false ones.

A row's conformal p is how often a row of a held-out cluster looks at least as familiar.
Each held-out cluster counts once, whatever the number of its rows, so p is valid for a
row of a cluster like them. Rows are named by Benjamini and Hochberg's procedure, whose
bound on the expected share of false ones holds for p values on one calibration set
(Bates et al., 2023, "Testing for outliers with conformal p-values", arXiv 2104.08279).
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike


def standardised(
    scores: ArrayLike, held_out: ArrayLike, task: ArrayLike, cluster: ArrayLike
) -> np.ndarray:
    """Scores on one scale for all tasks: by each task's held-out rows.

    Parameters
    ----------
    scores
        Shape ``(n,)``, NaN where a row has none.
    held_out
        Shape ``(n,)``, bool: never trained on.
    task, cluster
        Shape ``(n,)``, labels.

    Returns
    -------
    Shape ``(n,)``: distance to the median of the task's held-out rows in units of their
    median absolute deviation, a row's own cluster left out so that held-out rows are
    measured as trained ones are; NaN where fewer than two rows are left, or all alike.
    """
    x, held = np.asarray(scores, np.float64), np.asarray(held_out, bool)
    tasks, clusters = np.asarray(task), np.asarray(cluster)
    found = np.full(len(x), np.nan)
    known = held & np.isfinite(x)
    for name in np.unique(tasks):
        own = tasks == name
        for each in np.unique(clusters[own]):
            others = x[known & own & (clusters != each)]
            if len(others) < 2:
                continue
            middle = np.median(others)
            if spread := np.median(np.abs(others - middle)):
                rows = own & (clusters == each)
                found[rows] = (x[rows] - middle) / spread
    return found


def conformal_p(
    scores: ArrayLike, held_out: ArrayLike, cluster: ArrayLike
) -> np.ndarray:
    """How often a held-out row looks at least as familiar as each row.

    Parameters
    ----------
    scores
        Shape ``(n,)``, the larger the more familiar.
    held_out, cluster
        As in :func:`standardised`.

    Returns
    -------
    Shape ``(n,)``: p of trained rows, at least ``1 / (C + 1)`` of ``C`` held-out
    clusters; NaN for held-out rows, and for those without a score.
    """
    x, held = np.asarray(scores, np.float64), np.asarray(held_out, bool)
    known = held & np.isfinite(x)
    _, code, count = np.unique(
        np.asarray(cluster)[known], return_inverse=True, return_counts=True
    )
    order = np.argsort(x[known])
    weight = np.concatenate([[0.0], np.cumsum(1 / count[code[order]])])
    below = weight[np.searchsorted(x[known][order], x, side="left")]
    p = (1 + weight[-1] - below) / (1 + len(count))
    return np.where(held | ~np.isfinite(x), np.nan, np.minimum(p, 1.0))


def simes(p: ArrayLike) -> float:
    """Return one p of several of one cluster, valid where they go together.

    Shape ``(n,)``. Source: Simes (1986).
    """
    ordered = np.sort(np.asarray(p, np.float64))
    return float((ordered * len(ordered) / np.arange(1, len(ordered) + 1)).min())


MOST_P = 0.05
"""Nobody is named above it: where most are named, the procedure alone would reach p up
to the share, and name a stranger as often."""


def discoveries(p: ArrayLike, *, share: float) -> np.ndarray:
    """Those that are named: Benjamini and Hochberg (1995) at a share of false ones.

    And none whose own p is above :data:`MOST_P`.

    Parameters
    ----------
    p
        Shape ``(n,)``; NaN is never named.

    Returns
    -------
    Shape ``(n,)``, bool.
    """
    values = np.asarray(p, np.float64)
    known = np.isfinite(values)
    found = np.zeros(len(values), bool)
    if known.any():
        found[known] = scipy.stats.false_discovery_control(values[known]) <= share
    return found & (values <= MOST_P)
