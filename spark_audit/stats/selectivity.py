"""Variants of Delta_sel, and its value without any effect on identifiers.

The measured figure is ``delta_sel = NLL_PII - NLL_control`` over spans that are matched
on a *reference* model. Since it is matched on one model and measured on another, it is
not zero even without an effect on PII. With PII harder than other text by ``gap`` on
the reference, and with the checkpoint's NLL following the reference's with slope
``beta`` inside each group, groups drifting alike, exact matching gives

    E[delta_sel] = (1 - beta) * gap                                         (R1)

(the bias that Daw and Hatfield 2018 describe for matching on a pre-period outcome). R1
holds at every matched value, so spans that found no control do not change it: the gap
is that of *all* spans. R1 describes one mechanism, in which identifiers and other text
drift by the same number of nats. Drift that depends on the likelihood or the class of a
token gives other values, often with the other sign. R1 is therefore only printed beside
a figure. It is neither subtracted nor the end of a range, and nothing is tested against
it.

The audit ``matched`` reads this file: :func:`rtm_bias` gives R1, :func:`reweighted` the
variants of Delta_sel, and :func:`unlike_drift` says when a contrast of two runs means
nothing. All figures are in nats per token; Delta_sel is above 0 where identifiers are
less likely than their controls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Estimand, ratio

MAX_DRIFT_SHARE = 0.1
"""Largest difference of drift between two runs, as a share of their contrast."""

MAX_DRIFT_INTERVAL_SHARE = 0.5
"""Largest end of the interval of that difference, as a share of the contrast."""

CONSTANT_NLL = 1e-12
"""Mean squares of NLLs (nats squared) up to this size mean that windows do not vary."""


@dataclass(frozen=True)
class Windows:
    """Window means on the reference model, the inputs of regression to the mean.

    Parameters
    ----------
    pool
        Shape ``(m,)``: mean NLL of eligible non-overlapping non-PII windows, nats.
    pool_clusters
        Shape ``(m,)``: their cluster codes.
    spans
        Shape ``(s,)``: mean NLL of *all* PII spans, matched or not, nats.
    span_tokens
        Shape ``(s,)``: their lengths; Delta_sel is pooled over tokens.
    span_clusters
        Shape ``(s,)``: their cluster codes.
    n_clusters
        Number C of clusters.
    pool_cells, span_cells
        Shapes ``(m,)`` and ``(s,)``: integer codes of the strata that controls are
        looked for in (same example, same length), each inside one cluster. Slope and
        gap are taken within cells, as matching is: else an example that is hard on
        both models would lift the slope and hide part of the bias.
    """

    pool: np.ndarray
    pool_clusters: np.ndarray
    spans: np.ndarray
    span_tokens: np.ndarray
    span_clusters: np.ndarray
    n_clusters: int
    pool_cells: np.ndarray
    span_cells: np.ndarray


def unlike_drift(
    contrast: float, drift: float, low: float | None, high: float | None
) -> bool:
    """Return whether two runs drifted too unequally for a contrast to say anything.

    There are two such cases. The drift of low-sensitivity text differs by more than a
    tenth of the contrast (:data:`MAX_DRIFT_SHARE`), with a paired interval that
    excludes 0 or is missing. Or the interval reaches half of the contrast
    (:data:`MAX_DRIFT_INTERVAL_SHARE`), which means too little text to tell. Ordinary
    fine-tuning moves all text; if it moves other text unequally, it also moves
    identifiers and equally hard text unequally.

    Parameters
    ----------
    contrast
        DiD, nats per token.
    drift, low, high
        Difference of the NLL of low-sensitivity text between the runs, nats per token,
        with its interval; ``None``: no interval.

    Examples
    --------
    A contrast of 0.5 next to a clear drift of 0.1, and next to one of 0.01:

    >>> unlike_drift(0.5, 0.1, 0.05, 0.15), unlike_drift(0.5, 0.01, -0.02, 0.04)
    (True, False)
    """
    is_large = abs(drift) > MAX_DRIFT_SHARE * abs(contrast)
    if low is None or high is None:
        return is_large

    is_clear = low > 0 or high < 0
    is_unknown = max(-low, high) > MAX_DRIFT_INTERVAL_SHARE * abs(contrast)
    return (is_clear and is_large) or is_unknown


def reweighted(
    pii_sum: ArrayLike,
    control_sum: ArrayLike,
    n_tokens: ArrayLike,
    clusters: ArrayLike,
    *,
    n_clusters: int | None = None,
) -> dict[str, Estimand]:
    """Return Delta_sel averaged over spans, and over sources, by the variant's name.

    Both differ from the average over tokens (SPARK's) if the effect depends on size.
    The average over sources is the mean over clusters of each cluster's mean over
    spans.

    Parameters
    ----------
    pii_sum, control_sum
        Shape ``(s,)``: summed NLL of each matched span and of its control, nats.
    n_tokens
        Shape ``(s,)``: tokens of each span, and of its control.
    clusters
        Shape ``(s,)``: cluster codes, below ``n_clusters`` if given.

    Examples
    --------
    Two spans of one source differ from their controls by 1 and 3 nats a token, the
    one span of another source by 5:

    >>> variants = reweighted([1.0, 6.0, 5.0], [0.0, 0.0, 0.0], [1, 2, 1], [0, 0, 1])
    >>> [round(variants[name].estimate().value, 3) for name in sorted(variants)]
    [3.5, 3.0]
    """
    difference = np.subtract(pii_sum, control_sum) / np.asarray(n_tokens)  # (s,)
    n_spans = len(difference)

    columns = np.stack([difference, np.ones(n_spans)], axis=1)
    by_cluster = cluster_sums(columns, clusters, n_clusters)  # (C, 2)
    differences, counts = by_cluster.T

    # A cluster without a span has no mean and no weight.
    has_span = counts > 0
    means = np.divide(
        differences,
        counts,
        out=np.zeros(len(by_cluster)),
        where=has_span,
    )
    mean_and_weight = np.stack([means, has_span], axis=1)  # (C, 2)

    return {
        "span-weighted": Estimand(by_cluster, ratio, n_spans),
        "source-weighted": Estimand(mean_and_weight, ratio, int(has_span.sum())),
    }


def rtm_bias(
    windows: Windows,
    checkpoint: ArrayLike,
    baseline: ArrayLike | None = None,
) -> Estimand | Estimate:
    """Return R1 for a checkpoint's Delta_sel, or for its contrast with a baseline.

    If R1 cannot be computed, return an estimate with the reason.

    Parameters
    ----------
    windows
        The reference model's window means.
    checkpoint, baseline
        Shape ``(m,)``: mean NLL of the pool's windows on these models, nats.

    Notes
    -----
    ``(1 - beta) * gap`` or ``(beta_baseline - beta_checkpoint) * gap``: both are
    ``-slope * gap`` with the slope of the change in NLL (from the reference or the
    baseline) on the reference's NLL. Slope and gap are re-computed without each
    cluster, so the interval holds the uncertainty of both.

    Examples
    --------
    Four windows of 1 to 4 nats lost a fifth of their NLL, so beta is 0.8. The two
    spans of 5 nats are harder than the mean window by 2.5: (1 - 0.8) 2.5 = 0.5.

    >>> windows = Windows(
    ...     pool=np.array([1.0, 2.0, 3.0, 4.0]),
    ...     pool_clusters=np.array([0, 0, 1, 1]),
    ...     spans=np.array([5.0, 5.0]),
    ...     span_tokens=np.array([2.0, 2.0]),
    ...     span_clusters=np.array([0, 1]),
    ...     n_clusters=2,
    ...     pool_cells=np.zeros(4, int),
    ...     span_cells=np.zeros(2, int),
    ... )
    >>> bias = rtm_bias(windows, 0.8 * windows.pool)
    >>> round(bias.estimate().value, 6)
    0.5
    """
    before = windows.pool
    if baseline is not None:
        before = np.asarray(baseline)
    change = checkpoint - before  # (m,), nats

    # A span whose cell has no window cannot have a control, so it is no part of
    # Delta_sel and weighs nothing here.
    has_window = np.isin(windows.span_cells, windows.pool_cells)
    span_tokens = np.where(has_window, windows.span_tokens, 0.0)  # (s,)

    # All values are distances to the mean of the cell's windows, as matching is within
    # cells.
    nll_means, change_means = _means_of_cells(windows, change)  # each (cells,)
    pool_nll = windows.pool - nll_means[windows.pool_cells]  # (m,)
    pool_change = change - change_means[windows.pool_cells]  # (m,)
    span_nll = windows.spans - nll_means[windows.span_cells]  # (s,)

    # Sums by cluster, first of the pool, then of the spans.
    pool_moments = PoolMoments(
        n=np.ones(len(pool_nll)),
        x=pool_nll,
        y=pool_change,
        xx=pool_nll * pool_nll,
        xy=pool_nll * pool_change,
    )
    pool_sums = cluster_sums(
        np.stack(pool_moments, axis=1),
        windows.pool_clusters,
        windows.n_clusters,
    )  # (C, 5)
    span_sums = cluster_sums(
        np.stack([span_tokens, span_tokens * span_nll], axis=1),
        windows.span_clusters,
        windows.n_clusters,
    )  # (C, 2)
    sums = np.hstack([pool_sums, span_sums])  # (C, 7), as _bias takes them
    n_clusters = int(sums.any(axis=1).sum())

    if not span_tokens.any():
        reason = "no span shares a cell with a window of the pool"
        return Estimate.missing(reason, clusters=n_clusters)

    is_finite = np.isfinite(pool_nll).all()
    if is_finite and float(pool_nll @ pool_nll) <= CONSTANT_NLL * len(pool_nll):
        reason = "the pool's windows do not vary on the reference model"
        return Estimate.missing(reason, clusters=n_clusters)

    return Estimand(sums, _bias, len(pool_nll))


def _means_of_cells(windows: Windows, change: np.ndarray) -> np.ndarray:
    """Return means over each cell's windows, shape ``(2, cells)``.

    The means are of the NLL on the reference model and of the change; 0: an empty cell.
    ``change``: shape ``(m,)``, of the pool's windows.
    """
    last_pool_cell = windows.pool_cells.max(initial=0)
    last_span_cell = windows.span_cells.max(initial=0)
    n_cells = 1 + max(last_pool_cell, last_span_cell)

    columns = [np.ones(len(change)), windows.pool, change]
    sums = cluster_sums(np.stack(columns, axis=1), windows.pool_cells, n_cells)
    n_windows, nll, changes = sums.T  # each (cells,)
    means: np.ndarray = np.stack([nll, changes]) / np.maximum(n_windows, 1)
    return means


class PoolMoments(NamedTuple):
    """Moments of the pool's windows for a straight line ``y = a + slope x``.

    ``n``: 1 for each window; ``x``: its NLL on the reference model; ``y``: the change
    of its NLL. In this order they are the first columns of :func:`rtm_bias`'s sums.
    """

    n: np.ndarray
    x: np.ndarray
    y: np.ndarray
    xx: np.ndarray
    xy: np.ndarray


def slope(sums: np.ndarray) -> np.ndarray:
    """Return the slope of the change on the reference's NLL.

    Parameters
    ----------
    sums
        Shape ``(..., 5)`` or more columns: summed :class:`PoolMoments`, ``n, x, y, xx,
        xy``, first.

    Returns
    -------
    Shape ``(...)``; NaN where x does not vary.

    Examples
    --------
    The points (0, 1), (1, 3) and (2, 5):

    >>> slope(np.array([3.0, 3.0, 9.0, 5.0, 13.0])).item()
    2.0
    """
    n, x, y, xx, xy = np.moveaxis(sums[..., :5], -1, 0)  # each (...)

    # Sums of squares and products about the means; NaN where x is a constant.
    spread = xx - x * x / n
    spread = np.where(spread > CONSTANT_NLL * n, spread, np.nan)
    return np.asarray((xy - x * y / n) / spread)


def _bias(sums: np.ndarray) -> np.ndarray:
    """Return R1, ``-slope * gap``, from sums ``(..., 7)``; shape ``(...)``.

    The columns are :class:`PoolMoments` of the pool, then the spans' tokens, and their
    tokens times NLL.
    """
    pool = PoolMoments(*np.moveaxis(sums[..., :5], -1, 0))  # each (...)
    span_tokens = sums[..., 5]
    span_nll = sums[..., 6]

    # How much harder than the pool the spans are on the reference model.
    gap = span_nll / span_tokens - pool.x / pool.n
    return np.asarray(-slope(sums) * gap)
