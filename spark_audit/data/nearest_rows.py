"""The rows that are nearest to texts, by the words that they share.

Similarity is the cosine of counted words and pairs of words, each weighed by how rare
it is among the rows (TF-IDF): 1 for a copy, 0 for nothing in common. Wording that most
rows share, such as a template, hardly counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import scipy

from spark_audit.data.shared_passages import words_of

TEXTS_AT_ONCE = 256
"""Texts that are compared with all rows at once, which limits memory."""


def nearest_rows(
    texts: Sequence[str], rows: Sequence[str], n_neighbours: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the similarity and the index of the nearest rows of each text.

    Returns
    -------
    tuple
        Both of shape ``(texts, K)``, the nearest row first; K is ``n_neighbours``, or
        the number of rows if there are fewer. Of equally near ones the first comes
        first.

    Examples
    --------
    >>> rows = ["blue sky", "a red rose", "the old red house"]
    >>> similarity, index = nearest_rows(["a red rose"], rows, 2)
    >>> index, similarity.round(2)
    (array([[1, 2]]), array([[1.  , 0.05]]))
    """
    counts_of_rows = [_terms(row) for row in rows]
    n_holders: Counter[str] = Counter()
    for counts in counts_of_rows:
        n_holders.update(counts.keys())

    column_of = {term: column for column, term in enumerate(n_holders)}
    n_rows = len(rows)
    weight_of = {term: math.log((1 + n_rows) / n) for term, n in n_holders.items()}
    # A term that no row holds is rarer than all others.
    weight_of_others = math.log(1 + n_rows)

    row_vectors = _vectors(counts_of_rows, column_of, weight_of, weight_of_others)
    text_vectors = _vectors(
        [_terms(text) for text in texts], column_of, weight_of, weight_of_others
    )

    n_kept = min(n_neighbours, n_rows)
    similarity = np.zeros((len(texts), n_kept))
    index = np.zeros((len(texts), n_kept), np.int64)
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        some = slice(start, start + TEXTS_AT_ONCE)
        cosines = (text_vectors[some] @ row_vectors.T).toarray()  # (texts, rows)
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :n_kept]
        index[some] = order
        # Rounding may make the cosine of a copy a little more than 1.
        nearest = np.take_along_axis(cosines, order, axis=1)
        similarity[some] = np.minimum(nearest, 1.0)
    return similarity, index


def _terms(text: str) -> Counter[str]:
    """Return how often a text has each word and each pair of words."""
    words = words_of(text)
    terms = Counter(words)
    terms.update(" ".join(pair) for pair in pairwise(words))
    return terms


def _vectors(
    counts_of_texts: Sequence[Counter[str]],
    column_of: dict[str, int],
    weight_of: dict[str, float],
    weight_of_others: float,
) -> scipy.sparse.csr_matrix:
    """Return a vector of length 1 for each text, shape ``(texts, columns)``.

    Terms without a column count in the length.
    """
    data: list[float] = []
    columns: list[int] = []
    starts = [0]
    for counts in counts_of_texts:
        weights = {
            term: (1 + math.log(n)) * weight_of.get(term, weight_of_others)
            for term, n in counts.items()
        }
        length = math.sqrt(sum(weight**2 for weight in weights.values())) or 1.0
        for term, weight in weights.items():
            if term in column_of:
                columns.append(column_of[term])
                data.append(weight / length)
        starts.append(len(data))
    return scipy.sparse.csr_matrix(
        (data, columns, starts), shape=(len(counts_of_texts), len(column_of))
    )
