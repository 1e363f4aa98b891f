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
"""Elements of one intermediate array: bounds the memory, changes no result."""

BLOCKS = 8192
"""With more clusters, as many blocks of them are what is drawn **[ours]**."""

MAX_CLUSTERS_EXACT = 20
"""Up to this many clusters the sign-flip tests enumerate every pattern."""

NORMAL_DRAWS = 1 << 16
"""Draws of correlated normals."""

_TIE = 1e-12
"""Flipped sums that agree to this share of the largest possible sum are ties."""


@dataclass(frozen=True)
class Weights:
    """How often each cluster stands in each resample.

    Many clusters are dealt to blocks by chance, and drawn with them: a matrix of so
    many would not fit in memory, and a resample of thousands of blocks spreads as one
    of clusters does: to 1 % of a standard error.

    Attributes
    ----------
    drawn
        Shape ``(B, M)``: how often each block, or cluster, stands in each resample.
    column
        Shape ``(C,)``: the place of each cluster in it.
    """

    drawn: np.ndarray
    column: np.ndarray

    def __len__(self) -> int:
        return len(self.drawn)

    def dealt(self, sums: np.ndarray) -> np.ndarray:
        """Sums of clusters, shape ``(C, ...)``, added up by what is drawn together."""
        return cluster_sums(sums, self.column, self.drawn.shape[1])

    def totals(self, sums: np.ndarray) -> np.ndarray:
        """Sums over the clusters of each resample, shape ``(B, ...)``."""
        return weighted_sums(self.drawn, self.dealt(sums))


def draw_weights(
    n_clusters: int, *, replicates: int = 9999, seed: int | np.random.Generator
) -> Weights:
    """Draw bootstrap weights: how often each cluster stands in each resample.

    Indices are drawn as ``rng.integers(0, C, (B, C))`` and counted by row, which is
    how ``scipy.stats.bootstrap`` draws: with the same generator the resamples are the
    same. int16; every row sums to what is drawn: of more than :data:`BLOCKS` clusters
    as many blocks.
    """
    rng, width = np.random.default_rng(seed), min(n_clusters, BLOCKS)
    weights = np.empty((replicates, width), dtype=np.int16)
    for rows in row_chunks(replicates, width):
        part = weights[rows]
        drawn = rng.integers(0, width, part.shape)
        drawn += np.arange(len(part))[:, None] * width
        part[:] = np.bincount(drawn.ravel(), minlength=part.size).reshape(part.shape)
    return Weights(weights, dealt(n_clusters))


def draw_in_strata(
    strata: np.ndarray, *, replicates: int, seed: int | np.random.Generator
) -> Weights:
    """:func:`draw_weights`, as many clusters of every stratum as it has.

    Parameters
    ----------
    strata
        Shape ``(C,)``: codes.
    """
    rng = np.random.default_rng(seed)
    column = np.zeros(len(strata), dtype=np.int64)
    parts, width = [np.zeros((replicates, 0), np.int16)], 0
    for one in np.unique(strata):
        at = np.flatnonzero(strata == one)
        part = draw_weights(len(at), replicates=replicates, seed=rng)
        column[at] = width + part.column
        width += part.drawn.shape[1]
        parts.append(part.drawn)
    return Weights(np.concatenate(parts, axis=1), column)


def dealt(n_clusters: int) -> np.ndarray:
    """A block for each of many clusters, by chance and always the same."""
    if n_clusters <= BLOCKS:
        return np.arange(n_clusters)
    return np.random.default_rng(n_clusters).permutation(n_clusters) % BLOCKS


def row_chunks(rows: int, width: int) -> Iterator[slice]:
    """Blocks of rows of about ``_REPLICATES_CHUNK`` elements."""
    step = max(1, _REPLICATES_CHUNK // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def cluster_sums(
    values: ArrayLike, clusters: ArrayLike, n_clusters: int | None = None
) -> np.ndarray:
    """Sum values by cluster code, in float64.

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
    """
    table = np.asarray(values, dtype=np.float64)
    codes = np.asarray(clusters)
    count = int(codes.max(initial=-1)) + 1 if n_clusters is None else n_clusters
    columns = math.prod(table.shape[1:])
    cells = codes[:, None].astype(np.int64) * columns + np.arange(columns)
    sums = np.bincount(cells.ravel(), table.ravel(), minlength=count * columns)
    return sums.reshape((count, *table.shape[1:]))


def weighted_sums(drawn: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """``drawn @ sums`` in float64, by blocks of rows.

    Parameters
    ----------
    drawn
        Shape ``(B, M)``: weights or signs.
    sums
        Shape ``(M,)`` or ``(M, K)``.

    Returns
    -------
    Shape ``(B,)`` or ``(B, K)``.
    """
    totals = np.empty((len(drawn), *sums.shape[1:]))
    for rows in row_chunks(*drawn.shape):
        totals[rows] = drawn[rows].astype(np.float64) @ sums
    return totals


def median_replicates(
    weights: Weights, values: ArrayLike, clusters: ArrayLike
) -> np.ndarray:
    """Median of the pooled values in every resample.

    That of the values of each cluster as often as it was drawn; nothing is expanded:
    blocks of sorted observations are counted first, then the observations of one block,
    so that per resample about ``sqrt(n)`` counts are looked at instead of ``n``.

    Parameters
    ----------
    values, clusters
        Shape ``(n,)``: observations and their cluster codes.

    Returns
    -------
    Shape ``(B,)``; NaN marks a resample without an observation.
    """
    pooled = np.asarray(values, dtype=np.float64)
    codes, drawn = weights.column[np.asarray(clusters)], weights.drawn
    medians = np.full(len(drawn), np.nan)
    if not (n := len(pooled)):
        return medians
    order = np.argsort(pooled, kind="stable")
    pooled, codes, count = pooled[order], codes[order], drawn.shape[1]
    width = math.isqrt(n)
    n_blocks = -(-n // width)
    places = codes * (n_blocks + 1) + 1 + np.arange(n) // width
    held = np.bincount(places, minlength=count * (n_blocks + 1))
    # Observations of each cluster before a block, and of all blocks.
    before = held.reshape(count, -1).cumsum(axis=1)
    # Up to 2^24, counts are exact in 32 bits, which takes half the time.
    exact = np.float32 if before[:, -1].max() * count < 1 << 24 else np.float64
    # Observations beyond the last stand in no resample.
    inside = np.pad(codes, (0, n_blocks * width - n), constant_values=count)
    inside = inside.reshape(n_blocks, width)
    for rows in row_chunks(len(drawn), count + 2 * n_blocks + 2 * width):
        upto = drawn[rows].astype(exact) @ before.astype(exact)
        part = np.pad(drawn[rows], ((0, 0), (0, 1)))
        each, size = np.arange(len(part)), upto[:, -1]
        middle = []
        for target in (np.floor((size - 1) / 2), np.floor(size / 2)):
            block = np.count_nonzero(upto[:, 1:-1] <= target[:, None], axis=1)
            within = part[each[:, None], inside[block]].cumsum(axis=1, dtype=np.int32)
            ahead = (target - upto[each, block]).astype(np.int32)
            place = np.count_nonzero(within <= ahead[:, None], axis=1)
            middle.append(pooled[np.minimum(block * width + place, n - 1)])
        medians[rows] = np.where(size > 0, (middle[0] + middle[1]) / 2, np.nan)
    return medians


@lru_cache(maxsize=16)
def _random_bits(n_clusters: int, replicates: int, seed: int) -> np.ndarray:
    """Signs to flip whole clusters by, 1 for -1, eight a byte: at most 10 MB.

    The same ones for all contrasts of so many clusters.
    """
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (replicates, n_clusters), dtype=np.int8)
    return np.packbits(bits, axis=1)


def sign_flip(num: ArrayLike, *, replicates: int = 9999, seed: int) -> float:
    """Two-sided sign-flip test that per-cluster sums are symmetric about zero.

    The statistic is ``|sum_c s_c num_c|``. The p value is exact (the share of all
    patterns) when at most :data:`MAX_CLUSTERS_EXACT` clusters are not zero, else
    ``(1 + hits) / (1 + replicates)``. A cluster whose sum is 0 changes nothing. Of more
    than :data:`BLOCKS` clusters, blocks of them are flipped together.

    Parameters
    ----------
    num
        Shape ``(C,)``: sums of a paired contrast, with its null value subtracted.
    """
    return float(sign_flips(np.c_[num], replicates=replicates, seed=seed)[0])


def sign_flips(num: ArrayLike, *, replicates: int = 9999, seed: int) -> np.ndarray:
    """:func:`sign_flip` of each column ``(C, K)``, shape ``(K,)``."""
    num = _finite(num)
    p = np.ones(num.shape[1])
    held = np.count_nonzero(num, axis=0)
    # Columns with equally many clusters share their signs.
    for count in np.unique(held[held > 0]):
        part = num.T[held == count]
        part = part[part != 0].reshape(-1, count)
        if count <= MAX_CLUSTERS_EXACT:
            p[held == count] = [_exact_p(one) for one in part]
        else:
            p[held == count] = _flip_p(part.T, replicates, seed, family=False)
    return p


def _finite(num: ArrayLike) -> np.ndarray:
    table = np.asarray(num, dtype=np.float64)
    if not np.isfinite(table).all():
        raise ValueError("num holds NaN or an infinity")
    return table


def _exact_p(num: np.ndarray) -> float:
    """P among all patterns: those of one half of the clusters meet the other's."""
    first, second = _all_sums(num[::2]), np.sort(_all_sums(num[1::2]))
    bar = _bar(num)
    hits = second.searchsorted(-bar - first, side="right").sum()
    hits += (len(second) - second.searchsorted(bar - first)).sum()
    return min(1.0, float(hits / (len(first) * len(second))))


def _all_sums(num: np.ndarray) -> np.ndarray:
    """Sums over clusters ``(C, ...)`` under all patterns, shape ``(2^C, ...)``."""
    sums = np.zeros((1, *num.shape[1:]))
    for one in num:
        sums = np.concatenate([sums + one, sums - one])
    return sums


def _bar(num: np.ndarray) -> np.ndarray:
    """What a flipped sum must reach to be as large as the observed one."""
    # Rounding moves a sum of C terms by far less than this share of its largest value.
    return np.asarray(np.abs(num.sum(axis=0)) - _TIE * np.abs(num).sum(axis=0))


def max_t(num: ArrayLike, *, replicates: int = 9999, seed: int) -> np.ndarray:
    """Family-wise adjusted sign-flip p values (Westfall and Young's max-T).

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
    """
    table = _finite(num)
    norm = np.sqrt((table**2).sum(axis=0))
    used = norm > 0
    adjusted = np.ones(table.shape[1])
    if used.any():
        scaled = table[:, used] / norm[used]
        held = scaled[scaled.any(axis=1)]
        adjusted[used] = _flip_p(held, replicates, seed, family=True)
    return adjusted


def _flip_p(num: np.ndarray, replicates: int, seed: int, *, family: bool) -> np.ndarray:
    """P values of columns ``(C, K)``; of a family on one scale, adjusted ones."""
    if len(num) > BLOCKS:
        num = cluster_sums(num, dealt(len(num)))
    order = np.argsort(-np.abs(num.sum(axis=0)), kind="stable")
    num = num[:, order]
    bar = _bar(num)
    parts: Iterator[np.ndarray]
    if exact := len(num) <= MAX_CLUSTERS_EXACT:
        first = _all_sums(num[::2])
        parts = (first + one for one in _all_sums(num[1::2]))
    else:
        bits = _random_bits(len(num), replicates, seed)
        signs = (
            1 - 2 * np.unpackbits(bits[rows], axis=1, count=len(num)).view(np.int8)
            for rows in row_chunks(replicates, max(num.shape))
        )
        parts = (weighted_sums(one, num) for one in signs)
    hits, done = np.zeros(len(order)), 0
    for part in parts:
        flipped = np.abs(part)
        if family:
            # Column j becomes the maximum over the columns from j on.
            flipped = np.maximum.accumulate(flipped[:, ::-1], axis=1)[:, ::-1]
        hits += np.sum(flipped >= bar, axis=0)
        done += len(part)
    p = hits / done if exact else (1 + hits) / (1 + done)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(p) if family else p
    return adjusted


def holm(p: ArrayLike) -> np.ndarray:
    """Holm's (1979) step-down adjusted p values, shape ``(K,)``."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(values[order] * factors).clip(max=1.0)
    return adjusted


def holm_by_key(p: Mapping[K, float | None]) -> dict[K, float]:
    """Holm's adjusted p values of those that are known, by their keys."""
    known = {key: one for key, one in p.items() if one is not None}
    return dict(zip(known, holm([*known.values()]).tolist(), strict=True))


def correlated(
    p: ArrayLike, correlation: np.ndarray, *, level: float = 0.0125
) -> tuple[np.ndarray, float]:
    """Family-wise p values of correlated tests, and how many tests they are worth.

    Single-step max-T: how often the largest of K normal statistics that correlate so
    exceeds each one's, from :data:`NORMAL_DRAWS` draws of a fixed seed; never above
    Holm's p, which bounds it too and has no draws to run out of.

    Parameters
    ----------
    p
        Two-sided p values.
    correlation
        Shape ``(K, K)``, of the statistics where nothing is there to find.

    Returns
    -------
    Shape ``(K,)``; and from 1 to K, how many independent tests they are worth: the p
    that is taken to ``level`` is ``level`` over it.
    """
    values = np.asarray(p, dtype=np.float64)
    spread, axes = np.linalg.eigh(correlation)
    draws = np.random.default_rng(0).standard_normal((NORMAL_DRAWS, len(values)))
    drawn = draws * np.sqrt(np.maximum(spread, 0.0)) @ axes.T
    largest = np.sort(np.abs(drawn).max(axis=1))
    # A p of 0 is farther out than any draw.
    bar = scipy.special.ndtri(1 - np.maximum(values, 1e-15) / 2) * (1 - _TIE)
    hits = NORMAL_DRAWS - np.searchsorted(largest, bar)
    tail = 2 * scipy.special.ndtr(-np.quantile(largest, 1 - level))
    worth = float(np.clip(level / tail, 1.0, len(values)))
    return np.minimum((1 + hits) / (1 + NORMAL_DRAWS), holm(values)), worth
