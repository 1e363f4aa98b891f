"""Sign-flip tests of paired contrasts over clusters.

Without an effect, a cluster's sum of a paired contrast is as likely positive as
negative. So the observed sum over clusters is compared with the sums under all patterns
of signs, one sign for each cluster. :func:`sign_flip` tests one contrast,
:func:`sign_flips` several, each by itself, and :func:`max_t` several as one family.

In shapes, ``C`` are clusters and ``K`` contrasts. Below, ``num`` are the sums of a
contrast by cluster; the name comes from the numerators of ratios.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.stats import bootstrap
from spark_audit.stats.bootstrap import (
    LEAST_ROWS_OF_PRODUCT,
    block_of_cluster,
    cluster_sums,
    row_chunks,
    weighted_sums,
)

MAX_CLUSTERS_EXACT = 20
"""Up to this many clusters the sign-flip tests enumerate every pattern."""

_TIE = 1e-12
"""Flipped sums that agree to this share of the largest possible sum are ties."""


def sign_flip(num: ArrayLike, *, replicates: int = 9999, seed: int) -> float:
    """Return the two-sided p that per-cluster sums are symmetric about zero.

    The statistic is ``|sum_c s_c num_c|`` with signs ``s_c``. p is exact (the share of
    all patterns) if at most :data:`MAX_CLUSTERS_EXACT` clusters are not zero, else ``(1
    + hits) / (1 + replicates)``. A cluster whose sum is 0 changes nothing. With more
    clusters than :data:`spark_audit.stats.bootstrap.BLOCKS`, blocks of clusters are
    flipped.

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

    A column of zeros has p = 1.

    Examples
    --------
    >>> sign_flips([[1.0, 1.0], [2.0, -2.0], [0.5, 0.5]], seed=0).tolist()
    [0.25, 1.0]
    """
    table = _finite(num)
    p = np.ones(table.shape[1])
    n_clusters = np.count_nonzero(table, axis=0)  # (K,), clusters that are not 0

    # Columns with equally many clusters share their signs.
    for count in np.unique(n_clusters[n_clusters > 0]):
        has_count = n_clusters == count

        # Without its zeros, each of these columns has exactly `count` clusters.
        columns = table.T[has_count]
        columns = columns[columns != 0].reshape(-1, count)  # (columns, clusters)

        if count <= MAX_CLUSTERS_EXACT:
            p[has_count] = [_exact_p(column) for column in columns]
        else:
            p[has_count] = _p_of_columns(columns.T, replicates, seed, is_family=False)

    return p


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
        adjusted[is_used] = _p_of_columns(scaled, replicates, seed, is_family=True)
    return adjusted


def _finite(num: ArrayLike) -> np.ndarray:
    """Return sums as float64, of the same shape; refuse a NaN and an infinity."""
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


def _p_of_columns(
    num: np.ndarray, replicates: int, seed: int, *, is_family: bool
) -> np.ndarray:
    """Return p of columns ``(C, K)``, shape ``(K,)``.

    ``is_family``: p is adjusted over all columns, else each stands for itself.
    """
    if len(num) > bootstrap.BLOCKS:
        num = cluster_sums(num, block_of_cluster(len(num)))

    # Sort the columns from the largest statistic to the smallest.
    order = np.argsort(-np.abs(num.sum(axis=0)), kind="stable")
    num = num[:, order]
    threshold = _threshold(num)  # (K,)

    is_exact = len(num) <= MAX_CLUSTERS_EXACT
    if is_exact:
        lots = _sums_of_all_patterns(num)
    else:
        lots = _sums_of_random_patterns(num, replicates, seed)

    hits = np.zeros(len(order))  # of each column: patterns at least as extreme
    n_patterns = 0
    for sums in lots:  # (patterns of the lot, K)
        flipped = np.abs(sums)
        if is_family:
            flipped = _largest_from_column_on(flipped)
        hits += np.sum(flipped >= threshold, axis=0)
        n_patterns += len(sums)

    # Among random patterns the data count as one, so that p is never 0.
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


def _largest_from_column_on(values: np.ndarray) -> np.ndarray:
    """Return at ``[i, j]`` the largest of ``values[i, j:]``; shape ``(patterns, K)``.

    Columns stand from the largest statistic to the smallest, so each is compared with
    those that are no larger.
    """
    from_last = np.maximum.accumulate(values[:, ::-1], axis=1)
    largest: np.ndarray = from_last[:, ::-1]
    return largest


def _threshold(num: np.ndarray) -> np.ndarray:
    """Return the least sum that counts as at least as large as the observed one.

    From sums ``(C, ...)`` to ``(...)``.
    """
    # Rounding changes a sum of C terms by far less than this share of its maximum.
    rounding = _TIE * np.abs(num).sum(axis=0)
    return np.asarray(np.abs(num.sum(axis=0)) - rounding)


def _all_sums(num: np.ndarray) -> np.ndarray:
    """Return sums over clusters ``(C, ...)`` under all patterns, ``(2^C, ...)``."""
    sums = np.zeros((1, *num.shape[1:]))
    for cluster_sum in num:
        sums = np.concatenate([sums + cluster_sum, sums - cluster_sum])
    return sums


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
    for rows in row_chunks(replicates, max(num.shape), least=LEAST_ROWS_OF_PRODUCT):
        is_flipped = np.unpackbits(bits[rows], axis=1, count=len(num))
        signs = 1 - 2 * is_flipped.view(np.int8)  # (patterns of the lot, C)
        yield weighted_sums(signs, num)


@lru_cache(maxsize=16)
def _random_bits(n_clusters: int, replicates: int, seed: int) -> np.ndarray:
    """Return random signs of clusters as packed bits (1 for -1), at most 10 MB.

    Shape ``(replicates, ceil(clusters / 8))``. All contrasts with the same number of
    clusters share them.
    """
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (replicates, n_clusters), dtype=np.int8)
    return np.packbits(bits, axis=1)
