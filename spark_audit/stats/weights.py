"""Bootstrap weights: how often each cluster stands in each resample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

_CHUNK = 1 << 20
"""Elements of one intermediate array: bounds the memory, changes no result."""

BLOCKS = 8192
"""With more clusters, as many blocks of them are what is drawn **[ours]**."""


@dataclass(frozen=True)
class Blocks:
    """Weights of clusters that were dealt to blocks by chance, and are drawn with them.

    A matrix of so many clusters would not fit in memory, and a resample of thousands of
    blocks spreads as one of clusters does: to 1 % of a standard error.

    Attributes
    ----------
    drawn
        Shape ``(B, M)``: how often each block stands in each resample.
    block
        Shape ``(C,)``: the block of each cluster.
    """

    drawn: np.ndarray
    block: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Resamples and clusters."""
        return len(self.drawn), len(self.block)

    def __len__(self) -> int:
        return len(self.drawn)

    def rows(self, part: slice) -> np.ndarray:
        """Weights of clusters in some resamples."""
        weights: np.ndarray = self.drawn[part][:, self.block]
        return weights


Weights: TypeAlias = "np.ndarray | Blocks"


def draw_weights(
    n_clusters: int, *, replicates: int = 9999, seed: int | np.random.Generator
) -> Weights:
    """Draw bootstrap weights: how often each cluster stands in each resample.

    Indices are drawn as ``rng.integers(0, C, (B, C))`` and counted by row, which is
    how ``scipy.stats.bootstrap`` and ``arch`` draw: with the same generator the
    resamples are the same.

    Returns
    -------
    Shape ``(replicates, n_clusters)``, int16; every row sums to ``n_clusters``. Of more
    than :data:`BLOCKS` clusters blocks are drawn, as many as that.
    """
    if n_clusters > BLOCKS:
        drawn = draw_weights(BLOCKS, replicates=replicates, seed=seed)
        assert isinstance(drawn, np.ndarray)
        return Blocks(drawn, dealt(n_clusters))
    rng = np.random.default_rng(seed)
    weights = np.empty((replicates, n_clusters), dtype=np.int16)
    for rows in row_chunks(replicates, n_clusters):
        part = weights[rows]
        drawn = rng.integers(0, n_clusters, part.shape)
        drawn += np.arange(len(part))[:, None] * n_clusters
        part[:] = np.bincount(drawn.ravel(), minlength=part.size).reshape(part.shape)
    return weights


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
    held = [np.flatnonzero(strata == one) for one in np.unique(strata)]
    parts = [draw_weights(len(at), replicates=replicates, seed=rng) for at in held]
    matrices = [one.drawn if isinstance(one, Blocks) else one for one in parts]
    # Where each cluster's weights stand.
    place = np.zeros(len(strata), dtype=np.int64)
    first = 0
    for at, one, matrix in zip(held, parts, matrices, strict=True):
        columns = one.block if isinstance(one, Blocks) else np.arange(len(at))
        place[at] = first + columns
        first += matrix.shape[1]
    if not matrices:
        return np.zeros((replicates, 0), dtype=np.int16)
    blocks = Blocks(np.concatenate(matrices, axis=1), place)
    blocked = any(isinstance(one, Blocks) for one in parts)
    return blocks if blocked else blocks.rows(slice(None))


def dealt(n_clusters: int) -> np.ndarray:
    """A block for each of many clusters, by chance and always the same."""
    return np.random.default_rng(n_clusters).permutation(n_clusters) % BLOCKS


def row_chunks(rows: int, width: int) -> Iterator[slice]:
    """Blocks of rows of about ``_CHUNK`` elements."""
    step = max(1, _CHUNK // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
