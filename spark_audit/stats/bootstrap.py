"""Resampling over clusters: bootstrap weights, sums, and medians of resamples.

The unit that is resampled is the cluster (a source with all its rows). Statistics are
functions of per-cluster sums, so a resample is a row of integer weights, and B
resamples of K statistics are one matrix product. The same weights for every checkpoint
and metric make their differences paired. Sign-flip tests over clusters stand in
:mod:`~spark_audit.stats.sign_flips`.

In shapes, ``B`` are resamples, ``C`` clusters, ``n`` observations, and ``M`` the
columns of the weights: clusters, or blocks of clusters if there are too many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_REPLICATES_CHUNK = 1 << 20
"""Elements of one intermediate array; it limits memory and changes no result."""

BLOCKS = 8192
"""If there are more clusters, this many blocks of clusters are drawn instead
**[ours]**.
"""

MAX_EXACT_IN_FLOAT32 = 1 << 24
"""Whole numbers below this are exact in 32 bits."""


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

    Weights are int16. Every row sums to the number of clusters, or to :data:`BLOCKS`
    if there are more clusters.

    Parameters
    ----------
    n_clusters
        Number C of clusters.
    replicates
        Number B of resamples.

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
        chunk = weights[rows]  # (rows, width), a view that is filled below
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
    column = np.zeros(len(strata), dtype=np.int64)  # (C,)
    drawn_by_stratum = [np.zeros((replicates, 0), np.int16)]
    n_columns = 0

    for stratum in np.unique(strata):
        clusters = np.flatnonzero(strata == stratum)
        weights = draw_weights(len(clusters), replicates=replicates, seed=rng)

        # The columns of this stratum follow those of the strata before it.
        column[clusters] = n_columns + weights.column
        n_columns += weights.drawn.shape[1]
        drawn_by_stratum.append(weights.drawn)

    return Weights(drawn=np.concatenate(drawn_by_stratum, axis=1), column=column)


def block_of_cluster(n_clusters: int) -> np.ndarray:
    """Return the block of each cluster, shape ``(C,)``, dealt with a fixed seed.

    Up to :data:`BLOCKS` clusters, each is a block by itself.
    """
    if n_clusters <= BLOCKS:
        return np.arange(n_clusters)

    shuffled = np.random.default_rng(n_clusters).permutation(n_clusters)
    return shuffled % BLOCKS


def row_chunks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows that have about ``_REPLICATES_CHUNK`` elements together.

    Parameters
    ----------
    rows
        Number of rows of the whole array.
    width
        Elements of one row.
    """
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
    if n_clusters is None:
        n_clusters = int(codes.max(initial=-1)) + 1

    # Number the cells of the result, so that a single count sums them all.
    n_columns = math.prod(table.shape[1:])  # 1 for shape (n,)
    cells = codes[:, None].astype(np.int64) * n_columns + np.arange(n_columns)
    sums = np.bincount(cells.ravel(), table.ravel(), minlength=n_clusters * n_columns)
    return sums.reshape((n_clusters, *table.shape[1:]))


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
    memory. Sorted observations form about ``sqrt(n)`` bins of equal size. Counts per
    bin find the bin of the median, and counts within it the observation. A resample
    thus needs about ``2 sqrt(n)`` counts instead of ``n``.

    Examples
    --------
    Clusters with the values 1, 2 and 9; the second resample has the last one thrice:

    >>> weights = Weights(drawn=np.array([[1, 1, 1], [0, 0, 3]]), column=np.arange(3))
    >>> median_replicates(weights, [1.0, 2.0, 9.0], [0, 1, 2]).tolist()
    [2.0, 9.0]
    """
    pooled = np.asarray(values, dtype=np.float64)
    columns = weights.column[np.asarray(clusters)]  # (n,)
    medians = np.full(len(weights), np.nan)
    if not len(pooled):
        return medians

    n_columns = weights.drawn.shape[1]
    bins = _sorted_bins(pooled, columns, n_columns)
    n_bins, width = bins.columns.shape

    # Small counts are exact in 32 bits, which takes half the time. A resample draws M
    # columns, so this is the most that it can count.
    largest_count = bins.n_before[:, -1].max() * n_columns
    is_exact = largest_count < MAX_EXACT_IN_FLOAT32
    count_type: np.dtype[Any] = np.dtype(np.float32 if is_exact else np.float64)
    n_before_by_column = bins.n_before.astype(count_type)  # (M, bins + 1)

    for rows in row_chunks(len(weights), n_columns + 2 * n_bins + 2 * width):
        drawn = weights.drawn[rows]  # (b, M)
        n_before = drawn.astype(count_type) @ n_before_by_column  # (b, bins + 1)
        size = n_before[:, -1]  # (b,), observations of each resample

        # The lower and the upper middle observation; an odd number has only one.
        lower = _values_at(np.floor((size - 1) / 2), bins, drawn, n_before)
        upper = _values_at(np.floor(size / 2), bins, drawn, n_before)
        medians[rows] = np.where(size > 0, (lower + upper) / 2, np.nan)

    return medians


class SortedBins(NamedTuple):
    """Observations in rising order, cut into bins of ``width``.

    Attributes
    ----------
    values
        Shape ``(n,)``, rising.
    columns
        Shape ``(bins, width)``: the column of the weights that draws an observation.
        The last bin is filled with the column M, which no resample draws.
    n_before
        Shape ``(M, bins + 1)``: observations of each column before each bin, and
        last in all bins.
    """

    values: np.ndarray
    columns: np.ndarray
    n_before: np.ndarray


def _sorted_bins(values: np.ndarray, columns: np.ndarray, n_columns: int) -> SortedBins:
    """Return observations in about ``sqrt(n)`` bins; n is at least 1.

    ``values``, ``columns``: shape ``(n,)``.
    """
    order = np.argsort(values, kind="stable")
    values = values[order]
    columns = columns[order]

    n = len(values)
    width = math.isqrt(n)
    n_bins = -(-n // width)  # n / width, rounded up

    # Count observations by column and bin. Bin k is counted at k + 1, so that the
    # cumulated counts are those before each bin.
    bin_of_value = np.arange(n) // width
    cells = columns * (n_bins + 1) + 1 + bin_of_value
    counts = np.bincount(cells, minlength=n_columns * (n_bins + 1))
    n_before = counts.reshape(n_columns, -1).cumsum(axis=1)

    padding = (0, n_bins * width - n)
    padded = np.pad(columns, padding, constant_values=n_columns)
    return SortedBins(
        values=values,
        columns=padded.reshape(n_bins, width),
        n_before=n_before,
    )


def _values_at(
    rank: np.ndarray, bins: SortedBins, drawn: np.ndarray, n_before: np.ndarray
) -> np.ndarray:
    """Return the observation of each resample at a rank, shape ``(b,)``.

    Parameters
    ----------
    rank
        Shape ``(b,)``: from 0, among the observations of the resample in rising order.
    drawn
        Shape ``(b, M)``: weights of these resamples.
    n_before
        Shape ``(b, bins + 1)``: observations of each resample before each bin.
    """
    resample = np.arange(len(drawn))
    _, width = bins.columns.shape

    # Its bin is the first that does not end before it.
    is_passed = n_before[:, 1:-1] <= rank[:, None]  # (b, bins - 1)
    bin_of_rank = np.count_nonzero(is_passed, axis=1)  # (b,)

    # Count within the bin in the same way; the column that fills it is drawn 0 times.
    with_filler = np.pad(drawn, ((0, 0), (0, 1)))  # (b, M + 1)
    columns = bins.columns[bin_of_rank]  # (b, width)
    times_drawn = with_filler[resample[:, None], columns]
    n_up_to = times_drawn.cumsum(axis=1, dtype=np.int32)
    rank_in_bin = (rank - n_before[resample, bin_of_rank]).astype(np.int32)
    offset = np.count_nonzero(n_up_to <= rank_in_bin[:, None], axis=1)

    # An empty resample runs past the end; its median is replaced by NaN.
    index = np.minimum(bin_of_rank * width + offset, len(bins.values) - 1)
    at_rank: np.ndarray = bins.values[index]
    return at_rank
