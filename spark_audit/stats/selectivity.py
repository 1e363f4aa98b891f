"""Delta_sel, its contrasts, and what regression to the mean would give by itself.

``delta_sel = NLL_PII - NLL_control`` over spans matched on a *reference* model (SPARK,
difficulty-matched selectivity). Matched on one model and measured on another, it is
not zero without any effect on PII. With PII harder than other text by ``gap`` on the
reference, and with the checkpoint's NLL following the reference's with slope ``beta``
inside each group, groups drifting alike, exact matching gives

    E[delta_sel] = (1 - beta) * gap                                         (R1)

(the bias that Daw and Hatfield 2018 describe for matching on a pre-period outcome).
R1 holds at every matched value, so spans that found no control do not change it: the
gap is that of *all* spans. It is one mechanism: it supposes that identifiers and other
text drift by the same number of nats. Drift that depends on how likely a token is, or
on its class, gives other values, often of the other sign. So R1 is printed beside a
figure; it is neither subtracted nor the end of a range, and no test is made against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.errors import NotEstimableError
from spark_audit.results import Estimate
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.intervals import Estimand, ratio

UNLIKE = 0.1
"""Share of a contrast that the drift of other text may differ by between two runs."""
UNKNOWN = 0.5
"""Share of a contrast that the interval of that difference may reach to."""


class Estimands(NamedTuple):
    """One effect, averaged over tokens, over spans, and over sources."""

    pooled: Estimand
    span_weighted: Estimand
    source_weighted: Estimand


class Slope(NamedTuple):
    """OLS slope, its cluster-robust standard error (CR1), number of windows."""

    beta: float
    se: float
    n: int


@dataclass(frozen=True)
class Windows:
    """Window means on the reference model: what regression to the mean depends on.

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
        gap are then taken within cells, as matching is. Without them an example that
        is hard on both models lifts the slope and hides part of the bias.
    """

    pool: np.ndarray
    pool_clusters: np.ndarray
    spans: np.ndarray
    span_tokens: np.ndarray
    span_clusters: np.ndarray
    n_clusters: int
    pool_cells: np.ndarray | None = None
    span_cells: np.ndarray | None = None

    def __post_init__(self) -> None:
        if len(self.pool) != len(self.pool_clusters):
            raise ValueError("pool and pool_clusters differ in length")
        if not len(self.spans) == len(self.span_tokens) == len(self.span_clusters):
            raise ValueError("spans, span_tokens and span_clusters differ in length")
        if (self.pool_cells is None) != (self.span_cells is None):
            raise ValueError("pool_cells and span_cells are given together or not")
        if self.pool_cells is not None and self.span_cells is not None:
            cells = np.concatenate([self.pool_cells, self.span_cells])
            clusters = np.concatenate([self.pool_clusters, self.span_clusters])
            if len(cells) != len(self.pool) + len(self.spans):
                raise ValueError("cells and windows differ in length")
            pairs = np.unique(np.stack([cells, clusters], axis=1), axis=0)
            if len(pairs) != len(np.unique(cells)):
                raise ValueError("a cell lies in more than one cluster")


def unlike_drift(
    contrast: float, drift: float, low: float | None, high: float | None
) -> bool:
    """Whether two runs drifted so unequally that no contrast of theirs says anything.

    True where the drift of low-sensitivity text differs between them by more than a
    tenth of the contrast (:data:`UNLIKE`), and its paired interval excludes 0 (or it
    has none), or where that interval reaches half of the contrast (:data:`UNKNOWN`):
    too little text to tell. Text that nobody meant to change moves in ordinary
    fine-tuning; where it moves unequally, identifiers and equally hard text do too.

    Parameters
    ----------
    contrast
        DiD, nats per token.
    drift, low, high
        NLL of low-sensitivity text on the one minus that on the other, nats per token,
        with its interval, ``None`` where there is none.
    """
    if low is None or high is None:
        return abs(drift) > UNLIKE * abs(contrast)
    clear = (low > 0 or high < 0) and abs(drift) > UNLIKE * abs(contrast)
    return clear or max(-low, high) > UNKNOWN * abs(contrast)


def delta_sel(
    pii_sum: ArrayLike,
    control_sum: ArrayLike,
    n_tokens: ArrayLike,
    clusters: ArrayLike,
    *,
    n_clusters: int | None = None,
) -> Estimand:
    """Token-pooled Delta_sel: mean NLL of PII tokens minus that of control tokens.

    Parameters
    ----------
    pii_sum, control_sum
        Shape ``(s,)``: summed NLL of each matched span and of its control, nats. With
        differences between two checkpoints here, the result is their contrast.
    n_tokens
        Shape ``(s,)``: tokens of each span, and as many of its control.
    clusters
        Shape ``(s,)``: cluster codes, below ``n_clusters`` if given.
    """
    apart, tokens = _spans(pii_sum, control_sum, n_tokens)
    sums = cluster_sums(np.stack([apart, tokens], axis=1), clusters, n_clusters)
    return Estimand(sums, ratio, round(float(tokens.sum())))


def estimands(
    pii_sum: ArrayLike,
    control_sum: ArrayLike,
    n_tokens: ArrayLike,
    clusters: ArrayLike,
    *,
    n_clusters: int | None = None,
) -> Estimands:
    """Delta_sel averaged over tokens (SPARK's), over spans, and over sources.

    They differ when the effect depends on size. Over sources: the mean over clusters
    of each cluster's mean over its spans. Parameters as in :func:`delta_sel`.
    """
    apart, tokens = _spans(pii_sum, control_sum, n_tokens)
    columns = np.stack([apart / tokens, np.ones(len(apart))], axis=1)
    effects, spans = cluster_sums(columns, clusters, n_clusters).T
    held = spans > 0
    means = np.divide(effects, spans, out=np.zeros_like(effects), where=held)
    return Estimands(
        delta_sel(pii_sum, control_sum, n_tokens, clusters, n_clusters=n_clusters),
        Estimand(np.stack([effects, spans], axis=1), ratio, len(apart)),
        Estimand(np.stack([means, held], axis=1), ratio, int(held.sum())),
    )


def rtm_slope(
    reference: ArrayLike,
    checkpoint: ArrayLike,
    clusters: ArrayLike,
    *,
    cells: ArrayLike | None = None,
) -> Slope:
    """OLS slope of window-mean NLL on a checkpoint on that on the reference.

    Parameters
    ----------
    reference, checkpoint
        Shape ``(m,)``: mean NLL of the non-PII windows of a pool, nats.
    clusters
        Shape ``(m,)``: cluster codes.
    cells
        Shape ``(m,)``: take the slope within these strata (see :class:`Windows`).

    Raises
    ------
    NotEstimableError
        With fewer than 3 windows or 2 clusters, or when the reference does not vary.
    """
    x = np.asarray(reference, dtype=np.float64)
    y = np.asarray(checkpoint, dtype=np.float64)
    codes = np.asarray(clusters)
    used = len(np.unique(codes))
    if not np.isfinite(x).all() or not np.isfinite(y).all():
        raise NotEstimableError("a window's NLL is NaN or infinite")
    if len(x) < 3 or used < 2:
        raise NotEstimableError("a slope needs 3 windows in 2 clusters")
    strata = np.zeros(len(x), dtype=np.int64) if cells is None else np.asarray(cells)
    x, y = x - _cell_means(x, strata)[strata], y - _cell_means(y, strata)[strata]
    squares = float(x @ x)
    if squares <= 1e-12 * len(x):
        raise NotEstimableError("the pool's windows do not vary on the reference model")
    beta = float(x @ y) / squares
    scores = cluster_sums(x * (y - beta * x), codes)
    scale = used / (used - 1) * (len(x) - 1) / (len(x) - 2)
    return Slope(beta, float(np.sqrt(scale * np.sum(scores**2))) / squares, len(x))


def rtm_bias(
    windows: Windows, checkpoint: ArrayLike, baseline: ArrayLike | None = None
) -> Estimand | Estimate:
    """R1 for a checkpoint's Delta_sel, or for its contrast with a baseline.

    ``(1 - beta) * gap`` or ``(beta_baseline - beta_checkpoint) * gap``: both are
    ``-slope * gap`` with the slope of the change in NLL (from the reference or the
    baseline) on the reference's NLL. Slope and gap are re-computed without each
    cluster, so the interval holds the uncertainty of both. An estimate where there is
    none, with the reason.

    Parameters
    ----------
    windows
        The reference model's window means.
    checkpoint, baseline
        Shape ``(m,)``: mean NLL of the pool's windows on these models, nats.
    """
    x, spans = np.asarray(windows.pool, float), np.asarray(windows.spans, float)
    tokens = np.asarray(windows.span_tokens, float)
    change = np.asarray(checkpoint, float) - (
        x if baseline is None else np.asarray(baseline, float)
    )
    if windows.pool_cells is None or windows.span_cells is None:
        cells, span_cells = np.zeros(len(x), int), np.zeros(len(spans), int)
    else:
        cells, span_cells = windows.pool_cells, windows.span_cells
    # A span whose cell has no window has no candidate: Delta_sel never sees it.
    tokens = np.where(np.isin(span_cells, cells), tokens, 0.0)
    size = 1 + max(cells.max(initial=0), span_cells.max(initial=0))
    centre = _cell_means(x, cells, size)
    x, spans = x - centre[cells], spans - centre[span_cells]
    change = change - _cell_means(change, cells, size)[cells]
    moments = np.stack([np.ones_like(x), x, change, x * x, x * change], axis=1)
    pairs = np.stack([tokens, tokens * spans], axis=1)
    count = windows.n_clusters
    sums = np.hstack(
        [
            cluster_sums(moments, windows.pool_clusters, count),
            cluster_sums(pairs, windows.span_clusters, count),
        ]
    )
    if not tokens.any():
        return _no_bias("no span shares a cell with a window of the pool", sums)
    if np.isfinite(x).all() and float(x @ x) <= 1e-12 * len(x):
        reason = "the pool's windows do not vary on the reference model"
        return _no_bias(reason, sums)
    return Estimand(sums, _bias, len(x))


def _bias(sums: np.ndarray) -> np.ndarray:
    """R1 from summed ``n, x, y, xx, xy`` of the pool and ``tokens, x`` of the spans."""
    n, x, y, xx, xy, tokens, span = np.moveaxis(sums, -1, 0)
    spread = xx - x * x / n
    slope = (xy - x * y / n) / np.where(spread > 1e-12 * n, spread, np.nan)
    return np.asarray(-slope * (span / tokens - x / n))


def _no_bias(reason: str, sums: np.ndarray) -> Estimate:
    return Estimate.missing(reason, clusters=int(sums.any(axis=1).sum()))


def _cell_means(
    values: np.ndarray, cells: np.ndarray, size: int | None = None
) -> np.ndarray:
    """Mean of the values in each cell; 0 for a cell without a value."""
    counts = cluster_sums(np.ones(len(values)), cells, size)
    means: np.ndarray = cluster_sums(values, cells, size) / np.maximum(counts, 1)
    return means


def _spans(
    pii_sum: ArrayLike, control_sum: ArrayLike, n_tokens: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """PII minus control, and tokens, of each span in float64."""
    pii, control, tokens = (
        np.asarray(values, dtype=np.float64)
        for values in (pii_sum, control_sum, n_tokens)
    )
    if not pii.shape == control.shape == tokens.shape:
        raise ValueError("pii_sum, control_sum and token counts differ in shape")
    if np.any(tokens <= 0):
        raise ValueError("a span or control without tokens")
    return pii - control, tokens
