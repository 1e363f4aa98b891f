"""Name single rows as members, at a declared share of false ones.

A row's conformal p is the frequency with which a row of a held-out cluster looks at
least as familiar. Each held-out cluster counts once, whatever the number of its rows,
so p is valid for a row of a similar cluster. Rows are named by Benjamini and Hochberg's
procedure, whose bound on the expected share of false ones holds for p values on one
calibration set (Bates et al., 2023, "Testing for outliers with conformal p-values",
arXiv 2104.08279).

The procedure reckons with rows none of which was trained on. If some were, fewer can be
false, so that p is multiplied by the estimated share of the others (Liu et al., 2025,
"Provable Training Data Identification for Large Language Models", arXiv 2510.09717;
their estimate takes rows as independent, so ours is another one).

The steps of a report's named rows: :func:`standardised` scores, :func:`conformal_p` of
each row, :func:`simes` if one p is wanted for several, :func:`untrained_shares`, and
:func:`discoveries`. In shapes, ``n`` are rows of text; the larger a score, the more
familiar the row.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike

MOST_P = 0.05
"""Rows with a larger p are never named. If most rows are named, the procedure alone
would accept p up to the share, and name a held-out row as often.
"""

MIDDLE_P = 0.5
"""A row with this p or a larger one looks like held-out rows: of untrained rows at
least half do.
"""
_ROUNDING_OF_P = 1e-9
"""What lies below the middle by less is taken for it: p is rounded."""


def standardised(
    scores: ArrayLike,
    held_out: ArrayLike,
    task: ArrayLike,
    cluster: ArrayLike,
) -> np.ndarray:
    """Return scores on one scale for all tasks, standardised by held-out rows.

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
    Shape ``(n,)``: distance to the median of the task's held-out rows, in units of
    their median absolute deviation. A row's own cluster is left out, so that held-out
    rows are measured like trained ones. NaN if fewer than two rows are left, or all are
    equal.

    Examples
    --------
    Held-out rows of 1, 2 and 4 have the median 2 and the median deviation 1:

    >>> held_out = [True, True, True, False]
    >>> scaled = standardised([1.0, 2.0, 4.0, 5.0], held_out, [0] * 4, range(4))
    >>> scaled[-1].item()
    3.0
    """
    values = np.asarray(scores, np.float64)
    tasks = np.asarray(task)
    clusters = np.asarray(cluster)
    can_be_compared = np.asarray(held_out, bool) & np.isfinite(values)
    scaled = np.full(len(values), np.nan)

    for one_task in np.unique(tasks):
        is_in_task = tasks == one_task

        # Rows of one cluster are compared with the same held-out rows.
        for one_cluster in np.unique(clusters[is_in_task]):
            is_in_cluster = clusters == one_cluster
            comparison = values[can_be_compared & is_in_task & ~is_in_cluster]
            if len(comparison) < 2:
                continue

            median = np.median(comparison)
            deviation = np.median(np.abs(comparison - median))
            if deviation:
                rows = is_in_task & is_in_cluster
                scaled[rows] = (values[rows] - median) / deviation

    return scaled


def conformal_p(
    scores: ArrayLike, held_out: ArrayLike, cluster: ArrayLike
) -> np.ndarray:
    """Return the conformal p of each row: how often held-out rows look as familiar.

    Parameters
    ----------
    scores
        Shape ``(n,)``, the larger the more familiar.
    held_out, cluster
        Shape ``(n,)``, as in :func:`standardised`.

    Returns
    -------
    Shape ``(n,)``: p of trained rows, at least ``1 / (C + 1)`` with ``C`` held-out
    clusters. NaN for held-out rows and for rows without a score.

    Examples
    --------
    None, and one, of three held-out clusters is as familiar as the trained rows:

    >>> held_out = [True, True, True, False, False]
    >>> conformal_p([1.0, 2.0, 3.0, 4.0, 2.5], held_out, [0, 1, 2, 3, 4]).tolist()
    [nan, nan, nan, 0.25, 0.5]
    """
    values = np.asarray(scores, np.float64)
    is_held_out = np.asarray(held_out, bool)
    is_scored = np.isfinite(values)
    is_calibration = is_held_out & is_scored

    # Each held-out cluster weighs 1, however many rows it has.
    _, code, n_rows = np.unique(
        np.asarray(cluster)[is_calibration],
        return_inverse=True,
        return_counts=True,
    )
    n_clusters = len(n_rows)
    weight_of_row = 1 / n_rows[code]

    # Weight of the held-out rows that look less familiar than each row.
    calibration = values[is_calibration]
    order = np.argsort(calibration)
    cumulated = np.concatenate([[0.0], np.cumsum(weight_of_row[order])])
    n_below = np.searchsorted(calibration[order], values, side="left")
    weight_below = cumulated[n_below]  # (n,)

    # Weight of held-out rows that look as familiar or more; the row itself counts as
    # one more cluster of them.
    p = (1 + cumulated[-1] - weight_below) / (1 + n_clusters)
    return np.where(is_held_out | ~is_scored, np.nan, np.minimum(p, 1.0))


def simes(p: ArrayLike) -> float:
    """Return one p from several of a cluster, valid if they are positively dependent.

    ``p``: shape ``(n,)``. Source: Simes (1986), ``min_i p_(i) n / i`` with the i-th
    smallest p.

    Examples
    --------
    >>> simes([0.01, 0.5, 0.03])
    0.03
    """
    ordered = np.sort(np.asarray(p, np.float64))
    rank = np.arange(1, len(ordered) + 1)
    return float((ordered * len(ordered) / rank).min())


def untrained_shares(
    p: ArrayLike, cluster: ArrayLike, task: ArrayLike | None = None
) -> np.ndarray:
    """Return the estimated share of untrained rows, by which each p is multiplied.

    It is estimated over all rows and within the row's task, because later tasks are
    often remembered better, and both count half: the result is their harmonic mean.

    Parameters
    ----------
    p
        Shape ``(n,)``; a row with NaN is left out.
    cluster
        Shape ``(n,)``, labels: rows of one cluster depend on each other.
    task
        Shape ``(n,)``, labels; ``None``: all rows are of one.

    Returns
    -------
    Shape ``(n,)``, the same number for rows of one task; NaN where p is. It can be
    above 1, where more rows look unfamiliar than would by chance: only so is the bound
    on false ones that of :func:`discoveries`.

    Notes
    -----
    Of ``n`` rows, ``m`` with a p of at least 1/2, the estimate is ``(b + m) / (n / 2)``
    with the rows ``b`` of the largest cluster. With ``b = 1`` it is that of Storey,
    Taylor and Siegmund (2004), for rows that are independent. A whole cluster of
    untrained rows may look familiar at once, and ``m`` is too small then: ``b`` makes
    up for one such cluster. Any mean of the reciprocals of such estimates keeps the
    bound, because each of them does for the rows that it is of.

    Examples
    --------
    Two of eight independent rows have a p above 1/2; without training, four would:

    >>> p = [0.01, 0.02, 0.02, 0.1, 0.2, 0.4, 0.6, 0.9]
    >>> untrained_shares(p, range(8))[0].item()
    0.75
    """
    values = np.asarray(p, np.float64)
    clusters = np.asarray(cluster)
    is_tested = np.isfinite(values)
    shares = np.full(len(values), np.nan)
    if not is_tested.any():
        return shares

    overall = _untrained_share(values[is_tested], clusters[is_tested])
    shares[is_tested] = overall
    if task is None:
        return shares

    tasks = np.asarray(task)
    for one_task in np.unique(tasks[is_tested]):
        rows = is_tested & (tasks == one_task)
        of_task = _untrained_share(values[rows], clusters[rows])
        shares[rows] = 2 / (1 / overall + 1 / of_task)
    return shares


def _untrained_share(p: np.ndarray, cluster: np.ndarray) -> float:
    """Return the estimate of :func:`untrained_shares` over rows; never 0."""
    _, n_rows = np.unique(cluster, return_counts=True)
    n_like_held_out = n_rows.max() + (p > MIDDLE_P - _ROUNDING_OF_P).sum()
    return float(n_like_held_out / (len(p) * (1 - MIDDLE_P)))


def discoveries(
    p: ArrayLike, *, share: float, untrained: ArrayLike = 1.0
) -> np.ndarray:
    """Return a mask of the rows that are named (Benjamini and Hochberg 1995).

    A row with a p above :data:`MOST_P` is never named.

    Parameters
    ----------
    p
        Shape ``(n,)``; NaN is never named.
    share
        Largest expected share of false ones among the named rows.
    untrained
        Shape ``(n,)`` or a number: the share of untrained rows, as
        :func:`untrained_shares` estimates it. 1 reckons with no trained row.

    Returns
    -------
    Shape ``(n,)``, bool.

    Examples
    --------
    >>> discoveries([0.001, 0.02, 0.3, float("nan")], share=0.1).tolist()
    [True, True, False, False]

    If half of the rows were trained on, p may be twice as large:

    >>> p = [0.001, 0.04, 0.2, 0.4]
    >>> discoveries(p, share=0.05).tolist()
    [True, False, False, False]
    >>> discoveries(p, share=0.05, untrained=0.5).tolist()
    [True, True, False, False]
    """
    values = np.asarray(p, np.float64)
    is_tested = np.isfinite(values)
    is_named = np.zeros(len(values), bool)

    if is_tested.any():
        scaled = np.minimum(values * np.asarray(untrained, np.float64), 1.0)  # (n,)
        adjusted = scipy.stats.false_discovery_control(scaled[is_tested])
        is_named[is_tested] = adjusted <= share
    return is_named & (values <= MOST_P)
