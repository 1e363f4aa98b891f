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

_REPLICATES_CHUNK = 1 << 17
"""Elements of one intermediate array; it limits memory and changes no result.

Arrays that fit into a core's cache take half the time of larger ones.
"""

LEAST_ROWS_OF_PRODUCT = 128
"""Least rows of a matrix product: with fewer, its other factor is read too often."""

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


def row_chunks(rows: int, width: int, *, least: int = 1) -> Iterator[slice]:
    """Yield slices of rows that have about ``_REPLICATES_CHUNK`` elements together.

    Parameters
    ----------
    rows
        Number of rows of the whole array.
    width
        Elements of one row.
    least
        Least rows of a slice.
    """
    step = max(least, _REPLICATES_CHUNK // max(1, width))
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
    for rows in row_chunks(*drawn.shape, least=LEAST_ROWS_OF_PRODUCT):
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
    memory. Distinct values form bins of about equal size. Counts per bin find the bin
    of the median, and counts within it the value. A resample thus needs about ``2
    sqrt(n)`` counts instead of ``n``.

    Examples
    --------
    Clusters with the values 1, 2 and 9; the second resample has the last one thrice:

    >>> weights = Weights(drawn=np.array([[1, 1, 1], [0, 0, 3]]), column=np.arange(3))
    >>> median_replicates(weights, [1.0, 2.0, 9.0], [0, 1, 2]).tolist()
    [2.0, 9.0]
    """
    pooled = np.asarray(values, dtype=np.float64)
    columns = weights.column[np.asarray(clusters)]  # (n,)
    if not len(pooled):
        return np.full(len(weights), np.nan)

    bins = ValueBins.of(pooled, columns, n_columns=weights.drawn.shape[1])
    target = _median_targets(weights.drawn, bins)
    at_rank = _values_at(target, bins, weights.drawn)  # (2, B)
    return np.where(target.is_empty, np.nan, at_rank.mean(axis=0))


@dataclass(frozen=True, eq=False)
class ValueBins:
    """The distinct values of observations in rising order, in bins of ``width``.

    Attributes
    ----------
    values
        Shape ``(V,)``: the distinct values, rising.
    width
        Values of a bin; the last bin may have fewer.
    value_index, columns
        Shape ``(n,)``: which value each observation has, rising, and the column of the
        weights that draws it.
    n_before
        Shape ``(M, bins + 1)``: observations of each column before each bin, and
        last in all bins.
    count_type
        Type of counts in a resample. Small counts are exact in 32 bits, which takes
        half the time.
    """

    values: np.ndarray
    width: int
    value_index: np.ndarray
    columns: np.ndarray
    n_before: np.ndarray
    count_type: np.dtype[Any]

    @classmethod
    def of(
        cls, observations: np.ndarray, columns: np.ndarray, *, n_columns: int
    ) -> ValueBins:
        """Return about ``sqrt(V)`` bins; there is at least one observation.

        ``observations``, ``columns``: shape ``(n,)``.
        """
        values, value_index = np.unique(observations, return_inverse=True)
        width = math.isqrt(len(values))
        n_bins = -(-len(values) // width)  # V / width, rounded up

        # Count observations by column and bin. Bin k is counted at k + 1, so that the
        # cumulated counts are those before each bin.
        bin_of_observation = value_index // width
        cells = columns * (n_bins + 1) + 1 + bin_of_observation
        counts = np.bincount(cells, minlength=n_columns * (n_bins + 1))
        n_before = counts.reshape(n_columns, -1).cumsum(axis=1)

        # A resample draws M columns, so this is the most that it can count.
        largest_count = n_before[:, -1].max() * n_columns
        is_exact = largest_count < MAX_EXACT_IN_FLOAT32

        in_order = np.argsort(value_index, kind="stable")
        return cls(
            values=values,
            width=width,
            value_index=value_index[in_order],
            columns=columns[in_order],
            n_before=n_before,
            count_type=np.dtype(np.float32 if is_exact else np.float64),
        )

    def n_up_to(self, bin_index: int) -> np.ndarray:
        """Return observations of each column up to each value of one bin.

        Only those of this bin count. Shape ``(M, width)``.
        """
        first_value = bin_index * self.width
        start, end = self.value_index.searchsorted(
            [first_value, first_value + self.width]
        )
        value_in_bin = self.value_index[start:end] - first_value
        cells = self.columns[start:end] * self.width + value_in_bin
        n_columns = len(self.n_before)
        counts = np.bincount(cells, minlength=n_columns * self.width)
        n_up_to: np.ndarray = counts.reshape(n_columns, -1).cumsum(axis=1)
        return n_up_to


class MedianTargets(NamedTuple):
    """Where the lower and the upper middle observation of each resample stand.

    An odd number of observations has only one middle, which is both.

    Attributes
    ----------
    bin_index
        Shape ``(2, B)``: the bin of each of the two.
    rank_in_bin
        Shape ``(2, B)``: their ranks among the observations of this bin, from 0.
    is_empty
        Shape ``(B,)``: whether the resample has no observation.
    """

    bin_index: np.ndarray
    rank_in_bin: np.ndarray
    is_empty: np.ndarray


def _median_targets(drawn: np.ndarray, bins: ValueBins) -> MedianTargets:
    """Return the bin of the middle observations of each resample.

    ``drawn``: shape ``(B, M)``.
    """
    n_resamples, n_columns = drawn.shape
    bin_index = np.empty((2, n_resamples), np.int64)
    rank_in_bin = np.empty((2, n_resamples), bins.count_type)
    is_empty = np.empty(n_resamples, dtype=bool)
    n_before_by_column = bins.n_before.astype(bins.count_type)  # (M, bins + 1)

    width = n_columns + 2 * n_before_by_column.shape[1]
    for rows in row_chunks(n_resamples, width, least=LEAST_ROWS_OF_PRODUCT):
        n_before = drawn[rows].astype(bins.count_type) @ n_before_by_column
        resample = np.arange(len(n_before))
        size = n_before[:, -1]  # (b,), observations of each resample
        is_empty[rows] = size == 0

        for i, rank in enumerate([np.floor((size - 1) / 2), np.floor(size / 2)]):
            # Its bin is the first that does not end before it.
            is_passed = n_before[:, 1:-1] <= rank[:, None]  # (b, bins - 1)
            bin_of_rank = np.count_nonzero(is_passed, axis=1)  # (b,)
            bin_index[i, rows] = bin_of_rank
            rank_in_bin[i, rows] = rank - n_before[resample, bin_of_rank]

    return MedianTargets(bin_index, rank_in_bin, is_empty)


def _values_at(target: MedianTargets, bins: ValueBins, drawn: np.ndarray) -> np.ndarray:
    """Return the lower and the upper middle value of each resample, shape ``(2, B)``.

    ``drawn``: shape ``(B, M)``.
    """
    n_resamples, n_columns = drawn.shape
    bin_index = target.bin_index.ravel()  # (2 B,)
    rank_in_bin = target.rank_in_bin.ravel()  # (2 B,)
    values = np.empty(2 * n_resamples)

    # All middles of one bin are looked up together.
    for index in np.unique(bin_index).tolist():
        n_up_to_by_column = bins.n_up_to(index).astype(bins.count_type)  # (M, width)
        middles = np.flatnonzero(bin_index == index)

        width = n_columns + 2 * bins.width
        for chunk in row_chunks(len(middles), width, least=LEAST_ROWS_OF_PRODUCT):
            middle = middles[chunk]  # (b,)
            resample = middle % n_resamples
            n_up_to = drawn[resample].astype(bins.count_type) @ n_up_to_by_column
            is_passed = n_up_to <= rank_in_bin[middle, None]  # (b, width)
            value_in_bin = np.count_nonzero(is_passed, axis=1)

            # An empty resample runs past the end; its median is replaced by NaN.
            value_index = index * bins.width + value_in_bin
            last = len(bins.values) - 1
            values[middle] = bins.values[np.minimum(value_index, last)]

    return values.reshape(2, n_resamples)
