"""Resampling over clusters: bootstrap weights, sign flips, adjusted p values.

The unit that is resampled is the cluster (a source with all its rows). Statistics are
functions of per-cluster sums, so a resample is a row of integer weights, and B
resamples of K statistics are one matrix product. The same weights or signs for every
checkpoint and metric make their differences paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike

K = TypeVar("K")

_REPLICATES_CHUNK = 1 << 20
"""Elements of one intermediate array; it limits memory and changes no result."""

BLOCKS = 8192
"""If there are more clusters, this many blocks of clusters are drawn instead
**[ours]**.
"""

MAX_CLUSTERS_EXACT = 20
"""Up to this many clusters the sign-flip tests enumerate every pattern."""

NORMAL_DRAWS = 1 << 16
"""Draws of correlated normals."""

_TIE = 1e-12
"""Flipped sums that agree to this share of the largest possible sum are ties."""


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


@lru_cache(maxsize=16)
def _random_bits(n_clusters: int, replicates: int, seed: int) -> np.ndarray:
    """Return random signs of clusters as bits (1 for -1), at most 10 MB.

    All contrasts with the same number of clusters share them.
    """
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (replicates, n_clusters), dtype=np.int8)
    return np.packbits(bits, axis=1)  # (replicates, bytes)


def sign_flip(num: ArrayLike, *, replicates: int = 9999, seed: int) -> float:
    """Return the two-sided p that per-cluster sums are symmetric about zero.

    The statistic is ``|sum_c s_c num_c|``. The p value is exact (the share of all
    patterns) when at most :data:`MAX_CLUSTERS_EXACT` clusters are not zero, else ``(1 +
    hits) / (1 + replicates)``. A cluster whose sum is 0 changes nothing. With more than
    :data:`BLOCKS` clusters, blocks of clusters are flipped.

    Parameters
    ----------
    num
        Shape ``(C,)``: sums of a paired contrast, with its null value subtracted.

    Examples
    --------
    Four clusters agree; two of their 16 patterns are as extreme:

    >>> sign_flip([1.0, 2.0, 0.5, 1.0], seed=0)
    0.125
    """
    return float(sign_flips(np.c_[num], replicates=replicates, seed=seed)[0])


def sign_flips(num: ArrayLike, *, replicates: int = 9999, seed: int) -> np.ndarray:
    """Return :func:`sign_flip` of each column ``(C, K)``, shape ``(K,)``.

    Examples
    --------
    >>> sign_flips([[1.0, 1.0], [2.0, -2.0], [0.5, 0.5]], seed=0).tolist()
    [0.25, 1.0]
    """
    table = _finite(num)
    p = np.ones(table.shape[1])
    n_clusters = np.count_nonzero(table, axis=0)  # (K,)

    # Columns with equally many clusters share their signs.
    for count in np.unique(n_clusters[n_clusters > 0]):
        has_count = n_clusters == count
        columns = table.T[has_count]
        columns = columns[columns != 0].reshape(-1, count)  # (columns, clusters)

        if count <= MAX_CLUSTERS_EXACT:
            p[has_count] = [_exact_p(column) for column in columns]
        else:
            p[has_count] = _flip_p(columns.T, replicates, seed, is_family=False)

    return p


def _finite(num: ArrayLike) -> np.ndarray:
    table = np.asarray(num, dtype=np.float64)
    if not np.isfinite(table).all():
        raise ValueError("num holds NaN or an infinity")
    return table


def _exact_p(num: np.ndarray) -> float:
    """Return p among all patterns of signs of a column ``(C,)``.

    The sums of one half of the clusters are looked up among the sorted sums of the
    other half, so ``2^(C/2)`` look-ups replace ``2^C`` sums.
    """
    first = _all_sums(num[::2])
    second = np.sort(_all_sums(num[1::2]))
    threshold = _threshold(num)

    # Sums first + second at most -threshold, then those at least threshold.
    n_low = second.searchsorted(-threshold - first, side="right").sum()
    n_high = (len(second) - second.searchsorted(threshold - first)).sum()
    n_patterns = len(first) * len(second)
    return min(1.0, float((n_low + n_high) / n_patterns))


def _all_sums(num: np.ndarray) -> np.ndarray:
    """Return sums over clusters ``(C, ...)`` under all patterns, ``(2^C, ...)``."""
    sums = np.zeros((1, *num.shape[1:]))
    for cluster_sum in num:
        sums = np.concatenate([sums + cluster_sum, sums - cluster_sum])
    return sums


def _threshold(num: np.ndarray) -> np.ndarray:
    """Return the least sum that counts as at least as large as the observed one."""
    # Rounding changes a sum of C terms by far less than this share of its maximum.
    rounding = _TIE * np.abs(num).sum(axis=0)
    return np.asarray(np.abs(num.sum(axis=0)) - rounding)


def max_t(num: ArrayLike, *, replicates: int = 9999, seed: int) -> np.ndarray:
    """Return family-wise adjusted sign-flip p values (Westfall and Young's max-T).

    ``T_k = |sum_c s_c num_ck| / sqrt(sum_c num_ck^2)`` under signs that all columns
    share, so that the dependence between checkpoints is kept. Step-down: a column is
    compared only with those whose statistic is no larger. Exact up to
    :data:`MAX_CLUSTERS_EXACT` clusters.

    Parameters
    ----------
    num
        Shape ``(C, K)``: per-cluster sums of K contrasts. A column of zeros gets p = 1.

    Returns
    -------
    Shape ``(K,)``.

    Examples
    --------
    A contrast in which four clusters agree, and one with a single cluster that is not
    0:

    >>> max_t([[1.0, 0.0], [2.0, 0.0], [0.5, 0.0], [1.0, 3.0]], seed=0).tolist()
    [0.125, 1.0]
    """
    table = _finite(num)
    norm = np.sqrt((table**2).sum(axis=0))  # (K,)
    adjusted = np.ones(table.shape[1])

    is_used = norm > 0
    if is_used.any():
        scaled = table[:, is_used] / norm[is_used]
        scaled = scaled[scaled.any(axis=1)]  # clusters with data
        adjusted[is_used] = _flip_p(scaled, replicates, seed, is_family=True)
    return adjusted


def _flip_p(
    num: np.ndarray, replicates: int, seed: int, *, is_family: bool
) -> np.ndarray:
    """Return p of columns ``(C, K)``, adjusted if they are one family."""
    if len(num) > BLOCKS:
        num = cluster_sums(num, block_of_cluster(len(num)))

    # From the largest statistic to the smallest.
    order = np.argsort(-np.abs(num.sum(axis=0)), kind="stable")
    num = num[:, order]
    threshold = _threshold(num)

    is_exact = len(num) <= MAX_CLUSTERS_EXACT
    if is_exact:
        lots = _sums_of_all_patterns(num)
    else:
        lots = _sums_of_random_patterns(num, replicates, seed)

    hits = np.zeros(len(order))
    n_patterns = 0
    for sums in lots:  # (patterns of the lot, K)
        flipped = np.abs(sums)
        if is_family:
            # Column j becomes the maximum over the columns from j on.
            from_last = flipped[:, ::-1]
            flipped = np.maximum.accumulate(from_last, axis=1)[:, ::-1]
        hits += np.sum(flipped >= threshold, axis=0)
        n_patterns += len(sums)

    if is_exact:
        p = hits / n_patterns
    else:
        p = (1 + hits) / (1 + n_patterns)

    # Step-down: no p is smaller than that of a larger statistic.
    if is_family:
        p = np.maximum.accumulate(p)

    in_given_order = np.empty(len(order))
    in_given_order[order] = p
    return in_given_order


def _sums_of_all_patterns(num: np.ndarray) -> Iterator[np.ndarray]:
    """Yield sums over clusters ``(C, K)`` under all patterns of signs, in lots."""
    first = _all_sums(num[::2])
    for sums_of_second in _all_sums(num[1::2]):
        yield first + sums_of_second


def _sums_of_random_patterns(
    num: np.ndarray, replicates: int, seed: int
) -> Iterator[np.ndarray]:
    """Yield sums over clusters ``(C, K)`` under random signs, in lots of patterns."""
    bits = _random_bits(len(num), replicates, seed)
    for rows in row_chunks(replicates, max(num.shape)):
        is_flipped = np.unpackbits(bits[rows], axis=1, count=len(num))
        signs = 1 - 2 * is_flipped.view(np.int8)  # (patterns of the lot, C)
        yield weighted_sums(signs, num)


def holm(p: ArrayLike) -> np.ndarray:
    """Return Holm's (1979) step-down adjusted p values, shape ``(K,)``.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)  # K for the smallest p, 1 for the largest

    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(values[order] * factors).clip(max=1.0)
    return adjusted


def holm_by_key(p: Mapping[K, float | None]) -> dict[K, float]:
    """Return Holm's adjusted p values by key, without the keys that have no p.

    Examples
    --------
    >>> holm_by_key({"a": 0.01, "b": None, "c": 0.5})
    {'a': 0.02, 'c': 0.5}
    """
    tested = {key: value for key, value in p.items() if value is not None}
    adjusted = holm(list(tested.values())).tolist()
    return dict(zip(tested, adjusted, strict=True))


def correlated(
    p: ArrayLike, correlation: np.ndarray, *, significance: float = 0.0125
) -> tuple[np.ndarray, float]:
    """Return family-wise p values of correlated tests, and their effective number.

    The method is single-step max-T: how often the largest of K normal statistics with
    this correlation exceeds each observed one, from :data:`NORMAL_DRAWS` draws with a
    fixed seed. The result is never above Holm's p, which is also valid and not limited
    by the number of draws.

    Parameters
    ----------
    p
        Shape ``(K,)``: two-sided p values.
    correlation
        Shape ``(K, K)``: correlation of the statistics without any effect.
    significance
        Largest family-wise p that counts as a detection.

    Returns
    -------
    adjusted
        Shape ``(K,)``: family-wise p values.
    n_worth
        Effective number of independent tests, from 1 to K: a p of ``significance /
        n_worth`` is adjusted to ``significance``.

    Examples
    --------
    Two identical tests count as one:

    >>> adjusted, n_worth = correlated([0.03, 0.03], np.ones((2, 2)))
    >>> adjusted.round(2).tolist(), round(n_worth, 1)
    ([0.03, 0.03], 1.0)
    """
    values = np.asarray(p, dtype=np.float64)

    # Draw normal statistics with this correlation through its eigenvectors.
    variances, axes = np.linalg.eigh(correlation)
    draws = np.random.default_rng(0).standard_normal((NORMAL_DRAWS, len(values)))
    statistics = draws * np.sqrt(np.maximum(variances, 0.0)) @ axes.T  # (draws, K)
    largest = np.sort(np.abs(statistics).max(axis=1))

    # Turn each p into a statistic; a p of 0 is beyond any draw.
    threshold = scipy.special.ndtri(1 - np.maximum(values, 1e-15) / 2) * (1 - _TIE)
    hits = NORMAL_DRAWS - np.searchsorted(largest, threshold)
    adjusted = np.minimum((1 + hits) / (1 + NORMAL_DRAWS), holm(values))

    # p of a single statistic that the largest of K exceeds at the significance.
    single_p = 2 * scipy.special.ndtr(-np.quantile(largest, 1 - significance))
    n_worth = float(np.clip(significance / single_p, 1.0, len(values)))
    return adjusted, n_worth
