"""Resampling over clusters: bootstrap weights, sign flips, adjusted p values.

The unit that is resampled is the cluster (a source with all its rows). Statistics are
functions of per-cluster sums, so a resample is a row of integer weights, and B
resamples of K statistics are one matrix product. The same weights or signs for every
checkpoint and metric make their differences paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_REPLICATES_CHUNK = 1 << 20
"""Elements of one intermediate array; it limits memory and changes no result."""

BLOCKS = 8192
"""If there are more clusters, this many blocks of clusters are drawn instead
**[ours]**.
"""


@dataclass(frozen=True)
class Weights:
    """How often each cluster occurs in each resample.

    If there are too many clusters for a matrix in memory, they are dealt to blocks by
    chance and blocks are drawn. The standard error over thousands of blocks is that
    over clusters to 1 %.

    Attributes
    ----------
    drawn
        Shape ``(B, M)``: how often each block or cluster occurs in each resample.
    column
        Shape ``(C,)``: the column of each cluster in ``drawn``.
    """

    drawn: np.ndarray
    column: np.ndarray

    def __len__(self) -> int:
        return len(self.drawn)

    def block_sums(self, sums: np.ndarray) -> np.ndarray:
        """Return sums over the clusters that are drawn together.

        From shape ``(C, ...)`` to ``(M, ...)``.
        """
        return cluster_sums(sums, self.column, self.drawn.shape[1])

    def totals(self, sums: np.ndarray) -> np.ndarray:
        """Return sums over the clusters of each resample.

        From shape ``(C, ...)`` to ``(B, ...)``.
        """
        return weighted_sums(self.drawn, self.block_sums(sums))


def draw_weights(
    n_clusters: int, *, replicates: int = 9999, seed: int | np.random.Generator
) -> Weights:
    """Return bootstrap weights: how often each cluster occurs in each resample.

    Weights are int16. Every row sums to the number of drawn clusters, or to
    :data:`BLOCKS` if there are more clusters.

    Notes
    -----
    Indices are drawn as ``rng.integers(0, C, (B, C))`` and counted by row, which is
    how ``scipy.stats.bootstrap`` draws: with the same generator the resamples are the
    same.

    Examples
    --------
    Three resamples of four clusters:

    >>> weights = draw_weights(4, replicates=3, seed=0)
    >>> weights.drawn.shape, weights.drawn.sum(axis=1).tolist()
    ((3, 4), [4, 4, 4])
    """
    rng = np.random.default_rng(seed)
    width = min(n_clusters, BLOCKS)

    weights = np.empty((replicates, width), dtype=np.int16)
    for rows in row_chunks(replicates, width):
        chunk = weights[rows]
        drawn = rng.integers(0, width, chunk.shape)

        # Give each row its own range of numbers, so that one count serves all rows.
        drawn += np.arange(len(chunk))[:, None] * width
        counts = np.bincount(drawn.ravel(), minlength=chunk.size)
        chunk[:] = counts.reshape(chunk.shape)

    return Weights(drawn=weights, column=block_of_cluster(n_clusters))


def draw_in_strata(
    strata: np.ndarray, *, replicates: int, seed: int | np.random.Generator
) -> Weights:
    """Return bootstrap weights of clusters, drawn within strata of constant size.

    Parameters
    ----------
    strata
        Shape ``(C,)``: codes.

    Examples
    --------
    Two clusters of one stratum, three of the other:

    >>> strata = np.array([0, 0, 1, 1, 1])
    >>> weights = draw_in_strata(strata, replicates=2, seed=0)
    >>> weights.totals(np.eye(2)[strata]).tolist()
    [[2.0, 3.0], [2.0, 3.0]]
    """
    rng = np.random.default_rng(seed)
    column = np.zeros(len(strata), dtype=np.int64)
    drawn = [np.zeros((replicates, 0), np.int16)]
    width = 0

    for stratum in np.unique(strata):
        clusters = np.flatnonzero(strata == stratum)
        weights = draw_weights(len(clusters), replicates=replicates, seed=rng)

        # The columns of this stratum follow those of the strata before it.
        column[clusters] = width + weights.column
        width += weights.drawn.shape[1]
        drawn.append(weights.drawn)

    return Weights(drawn=np.concatenate(drawn, axis=1), column=column)


def block_of_cluster(n_clusters: int) -> np.ndarray:
    """Return the block of each cluster, shape ``(C,)``, dealt with a fixed seed.

    Up to :data:`BLOCKS` clusters, each is a block by itself.
    """
    if n_clusters <= BLOCKS:
        return np.arange(n_clusters)

    shuffled = np.random.default_rng(n_clusters).permutation(n_clusters)
    return shuffled % BLOCKS


def row_chunks(rows: int, width: int) -> Iterator[slice]:
    """Yield blocks of rows of about ``_REPLICATES_CHUNK`` elements."""
    step = max(1, _REPLICATES_CHUNK // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def cluster_sums(
    values: ArrayLike, clusters: ArrayLike, n_clusters: int | None = None
) -> np.ndarray:
    """Return sums of values by cluster code, in float64.

    Parameters
    ----------
    values
        Shape ``(n,)`` or ``(n, K)``.
    clusters
        Shape ``(n,)``, integer codes from 0.
    n_clusters
        Number C of clusters; one more than the largest code if not given.

    Returns
    -------
    Shape ``(C,)`` or ``(C, K)``; a cluster without a row has sum 0.

    Examples
    --------
    >>> cluster_sums([1.0, 2.0, 4.0], [0, 2, 0]).tolist()
    [5.0, 0.0, 2.0]
    """
    table = np.asarray(values, dtype=np.float64)
    codes = np.asarray(clusters)
    count = n_clusters
    if count is None:
        count = int(codes.max(initial=-1)) + 1

    # One cell per cluster and column, so that a single count sums them all.
    n_columns = math.prod(table.shape[1:])
    cells = codes[:, None].astype(np.int64) * n_columns + np.arange(n_columns)
    sums = np.bincount(cells.ravel(), table.ravel(), minlength=count * n_columns)
    return sums.reshape((count, *table.shape[1:]))


def weighted_sums(drawn: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return ``drawn @ sums`` in float64, computed by blocks of rows.

    Parameters
    ----------
    drawn
        Shape ``(B, M)``: weights or signs.
    sums
        Shape ``(M,)`` or ``(M, K)``.

    Returns
    -------
    Shape ``(B,)`` or ``(B, K)``.

    Examples
    --------
    >>> weighted_sums(np.array([[2, 0], [1, 1]]), np.array([0.5, 3.0])).tolist()
    [1.0, 3.5]
    """
    totals = np.empty((len(drawn), *sums.shape[1:]))
    for rows in row_chunks(*drawn.shape):
        totals[rows] = drawn[rows].astype(np.float64) @ sums
    return totals


def median_replicates(
    weights: Weights, values: ArrayLike, clusters: ArrayLike
) -> np.ndarray:
    """Return the median of the pooled values in every resample.

    Parameters
    ----------
    values, clusters
        Shape ``(n,)``: observations and their cluster codes.

    Returns
    -------
    Shape ``(B,)``; NaN marks a resample without an observation.

    Notes
    -----
    The values of a cluster count as often as it was drawn, without being repeated in
    memory. Sorted observations form about ``sqrt(n)`` blocks of equal size. Counts per
    block find the block of the median, and counts within it the place. A resample thus
    needs about ``2 sqrt(n)`` counts instead of ``n``.

    Examples
    --------
    Clusters with the values 1, 2 and 9; the second resample has the last one thrice:

    >>> weights = Weights(drawn=np.array([[1, 1, 1], [0, 0, 3]]), column=np.arange(3))
    >>> median_replicates(weights, [1.0, 2.0, 9.0], [0, 1, 2]).tolist()
    [2.0, 9.0]
    """
    pooled = np.asarray(values, dtype=np.float64)
    codes = weights.column[np.asarray(clusters)]
    drawn = weights.drawn
    medians = np.full(len(drawn), np.nan)

    n = len(pooled)
    if not n:
        return medians

    order = np.argsort(pooled, kind="stable")
    pooled = pooled[order]
    codes = codes[order]
    n_columns = drawn.shape[1]  # of drawn: clusters, or blocks of many clusters
    width = math.isqrt(n)  # observations of a block
    n_blocks = -(-n // width)

    # Number of observations of each cluster before each block, and in all blocks.
    cells = codes * (n_blocks + 1) + 1 + np.arange(n) // width
    counts = np.bincount(cells, minlength=n_columns * (n_blocks + 1))
    before = counts.reshape(n_columns, -1).cumsum(axis=1)  # (columns, blocks + 1)

    # Up to 2^24, counts are exact in 32 bits, which takes half the time.
    is_small = before[:, -1].max() * n_columns < 1 << 24
    exact = np.float32 if is_small else np.float64

    # The cluster of each observation, by block. The last block is filled with a cluster
    # that no resample draws.
    padding = (0, n_blocks * width - n)
    column_of = np.pad(codes, padding, constant_values=n_columns)
    column_of = column_of.reshape(n_blocks, width)

    for rows in row_chunks(len(drawn), n_columns + 2 * n_blocks + 2 * width):
        n_before = drawn[rows].astype(exact) @ before.astype(exact)  # (b, blocks + 1)
        size = n_before[:, -1]  # (b,), observations of each resample
        chunk = np.pad(drawn[rows], ((0, 0), (0, 1)))
        resample = np.arange(len(chunk))

        # The lower and the upper middle observation; an odd number has only one.
        middle = []
        for target in (np.floor((size - 1) / 2), np.floor(size / 2)):
            # Its block is the first that does not end before it.
            is_passed = n_before[:, 1:-1] <= target[:, None]  # (b, blocks - 1)
            block = np.count_nonzero(is_passed, axis=1)  # (b,)

            # Its place in the block, counted in the same way.
            times_drawn = chunk[resample[:, None], column_of[block]]  # (b, width)
            n_within = times_drawn.cumsum(axis=1, dtype=np.int32)
            n_ahead = (target - n_before[resample, block]).astype(np.int32)
            offset = np.count_nonzero(n_within <= n_ahead[:, None], axis=1)
            middle.append(pooled[np.minimum(block * width + offset, n - 1)])

        lower, upper = middle
        medians[rows] = np.where(size > 0, (lower + upper) / 2, np.nan)

    return medians
