"""Variants of Delta_sel, and what it would be without any effect on identifiers.

What is measured is ``delta_sel = NLL_PII - NLL_control`` over spans matched on a
*reference* model. Matched on one model and measured on another, it is not zero without
any effect on PII. With PII harder than other text by ``gap`` on the
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

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Estimand, ratio

UNLIKE = 0.1
"""Share of a contrast that the drift of other text may differ by between two runs."""

MAX_DRIFT_INTERVAL_SHARE = 0.5
"""Share of a contrast that the interval of that difference may reach to."""


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
    """Whether two runs drifted so unequally that no contrast of theirs says anything.

    True where the drift of low-sensitivity text differs between them by more than a
    tenth of the contrast (:data:`UNLIKE`), and its paired interval excludes 0 (or it
    has none), or where that interval reaches half of the contrast
    (:data:`MAX_DRIFT_INTERVAL_SHARE`): too little text to tell. Text that nobody meant
    to change moves in ordinary fine-tuning; where it moves unequally, identifiers and
    equally hard text do too.

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
    return clear or max(-low, high) > MAX_DRIFT_INTERVAL_SHARE * abs(contrast)


def reweighted(
    pii_sum: ArrayLike,
    control_sum: ArrayLike,
    n_tokens: ArrayLike,
    clusters: ArrayLike,
    *,
    n_clusters: int | None = None,
) -> dict[str, Estimand]:
    """Delta_sel averaged over spans, and over sources, by the name of the variant.

    It differs from that over tokens (SPARK's) when the effect depends on size. Over
    sources: the mean over clusters of each cluster's mean over its spans.

    Parameters
    ----------
    pii_sum, control_sum
        Shape ``(s,)``: summed NLL of each matched span and of its control, nats.
    n_tokens
        Shape ``(s,)``: tokens of each span, and as many of its control.
    clusters
        Shape ``(s,)``: cluster codes, below ``n_clusters`` if given.
    """
    apart = np.subtract(pii_sum, control_sum) / np.asarray(n_tokens)
    columns = np.stack([apart, np.ones(len(apart))], axis=1)
    spans = cluster_sums(columns, clusters, n_clusters)
    held = spans[:, 1] > 0
    means = np.divide(spans[:, 0], spans[:, 1], out=np.zeros(len(spans)), where=held)
    return {
        "span-weighted": Estimand(spans, ratio, len(apart)),
        "source-weighted": Estimand(
            np.stack([means, held], axis=1), ratio, int(held.sum())
        ),
    }


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
    cells, span_cells = windows.pool_cells, windows.span_cells
    before = windows.pool if baseline is None else np.asarray(baseline)
    # A span whose cell has no window has no candidate: Delta_sel never sees it.
    tokens = np.where(np.isin(span_cells, cells), windows.span_tokens, 0.0)
    size = 1 + max(cells.max(initial=0), span_cells.max(initial=0))
    columns = np.stack([np.ones(len(cells)), windows.pool, checkpoint - before], axis=1)
    ones, *sums = cluster_sums(columns, cells, size).T
    centre, drift = sums / np.maximum(ones, 1)
    x, spans = windows.pool - centre[cells], windows.spans - centre[span_cells]
    change = columns[:, 2] - drift[cells]
    moments = np.stack([columns[:, 0], x, change, x * x, x * change], axis=1)
    pairs = np.stack([tokens, tokens * spans], axis=1)
    of_pool = cluster_sums(moments, windows.pool_clusters, windows.n_clusters)
    of_spans = cluster_sums(pairs, windows.span_clusters, windows.n_clusters)
    table = np.hstack([of_pool, of_spans])
    clusters = int(table.any(axis=1).sum())
    if not tokens.any():
        reason = "no span shares a cell with a window of the pool"
        return Estimate.missing(reason, clusters=clusters)
    if np.isfinite(x).all() and float(x @ x) <= 1e-12 * len(x):
        reason = "the pool's windows do not vary on the reference model"
        return Estimate.missing(reason, clusters=clusters)
    return Estimand(table, _bias, len(x))


def slope(sums: np.ndarray) -> np.ndarray:
    """Slope of the change on the reference's NLL, from what :func:`rtm_bias` sums."""
    n, x, y, xx, xy = np.moveaxis(sums[..., :5], -1, 0)
    spread = xx - x * x / n
    steep = (xy - x * y / n) / np.where(spread > 1e-12 * n, spread, np.nan)
    return np.asarray(steep)


def _bias(sums: np.ndarray) -> np.ndarray:
    """R1 from summed ``n, x, y, xx, xy`` of the pool and ``tokens, x`` of the spans."""
    gap = sums[..., 6] / sums[..., 5] - sums[..., 1] / sums[..., 0]
    return np.asarray(-slope(sums) * gap)
