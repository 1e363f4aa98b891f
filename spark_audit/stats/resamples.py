"""Weights of rows in resamples of clusters, some resamples at a time.

AUC and TPR of clustered rows (:mod:`~spark_audit.stats.roc_replicates`) need the weight
of each row, not only of each cluster. For all ``B`` resamples together these would not
fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from spark_audit.stats.bootstrap import Weights, row_chunks


class Resamples(NamedTuple):
    """A lot of resamples, with the weights of rows in each of them.

    ``lot``: which of all resamples the ``b`` of this one are. ``members``, ``others``:
    shape ``(rows, b)``, float64, how often each row is drawn.
    """

    lot: slice
    members: np.ndarray
    others: np.ndarray


def resamples_of_rows(
    weights: Weights,
    cluster: np.ndarray,
    members: np.ndarray,
    others: np.ndarray,
) -> Iterator[Resamples]:
    """Yield the weights of rows in lots of resamples that fit into memory.

    Parameters
    ----------
    weights
        ``B`` resamples of clusters.
    cluster
        Shape ``(n,)``: cluster code of each row.
    members, others
        Indices of the rows whose weights are wanted.

    Examples
    --------
    Rows 0 and 1 are of a cluster that the one resample draws twice:

    >>> weights = Weights(drawn=np.array([[2, 0]]), column=np.arange(2))
    >>> cluster = np.array([0, 0, 1])
    >>> (lot,) = resamples_of_rows(weights, cluster, np.array([0, 1]), np.array([2]))
    >>> lot.members.tolist(), lot.others.tolist()
    ([[2.0], [2.0]], [[0.0]])
    """
    column_of_row = weights.column[cluster]  # (n,)

    def weights_of(rows: np.ndarray, lot: slice) -> np.ndarray:
        """Return the weights of rows in some resamples, ``(rows, b)``."""
        # NumPy lays the result of this selection out row by row in memory.
        drawn = weights.drawn[lot][:, column_of_row[rows]]  # (b, rows)
        return drawn.T.astype(np.float64, order="C")

    n_rows = len(members) + len(others)
    for lot in row_chunks(len(weights.drawn), n_rows):
        yield Resamples(
            lot=lot,
            members=weights_of(members, lot),
            others=weights_of(others, lot),
        )


def first_sums(values: np.ndarray) -> np.ndarray:
    """Return sums of the first 0, 1, ... ``n`` rows: ``(n + 1, b)`` of ``(n, b)``.

    Examples
    --------
    >>> first_sums(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[0.0, 0.0], [1.0, 2.0], [4.0, 6.0]]
    """
    n_rows, width = values.shape
    sums = np.zeros((n_rows + 1, width))
    if n_rows > width:
        np.cumsum(values, axis=0, out=sums[1:])
        return sums

    # NumPy's cumulated sum goes number by number. Whole rows are faster if they are
    # long.
    for i in range(n_rows):
        np.add(sums[i], values[i], out=sums[i + 1])
    return sums
