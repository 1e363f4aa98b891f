"""Exact search for near-duplicate texts, and clusters of rows that share anything.

Two texts are near-duplicates when the Jaccard similarity of their sets of word n-grams
reaches a threshold. Nothing is hashed or sampled: an inverted index over the rarest
n-grams of each text finds all candidate pairs, and the similarity of each is then
counted.

The way of :func:`duplicate_groups`: equal texts are joined, each other text becomes a
set of n-grams (a row of a sparse matrix, :func:`_ngram_sets`), similar sets are found
(:func:`_similar_pairs`), and chains of pairs form groups
(:func:`connected_components`). :func:`cluster_labels` then makes the clusters over
which everything is resampled.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy

_MAX_SIMILARITIES = 1 << 22
"""Matches of the index, or columns of compared sets, that are held at once; it limits
memory and changes no result."""

_SIMILARITY_ROUND_OFF = 1e-9
"""Filters keep pairs this close to their bound; the final count decides."""


class _Fold(dict[int, str | int | None]):
    """Map punctuation, symbols and controls to blanks, invisible characters to nothing.

    Filled as characters are met, for ``str.translate``.
    """

    def __missing__(self, code: int) -> str | int | None:
        category = unicodedata.category(chr(code))

        folded: str | int | None = code
        if category == "Cf":
            folded = None
        elif category[0] in "PSCZ":
            folded = " "

        self[code] = folded
        return folded


_FOLD = _Fold()


def normalise_text(text: str) -> str:
    """Return a text without differences of case, punctuation and white space.

    Compatibility forms and case are folded (NFKC). Punctuation, symbols and white space
    become single blanks. A text that has nothing else keeps its characters, so that two
    different ones stay different.

    Examples
    --------
    >>> normalise_text("  Hello, WORLD! "), normalise_text("...")
    ('hello world', '...')
    """
    # Folding case can produce characters that need normalisation again.
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = unicodedata.normalize("NFKC", folded)

    words = folded.translate(_FOLD).split()
    if not words:
        words = folded.split()
    return " ".join(words)


def duplicate_groups(
    texts: Sequence[str], *, threshold: float = 0.8, n: int = 5
) -> np.ndarray:
    """Return groups of texts that chains of near-duplicates connect.

    Two texts are near-duplicates where the Jaccard similarity of their sets of word
    n-grams is at least ``threshold``, or where they are equal once normalised.

    Parameters
    ----------
    texts
        Any texts; they are normalised here.
    threshold
        Smallest Jaccard similarity of a pair, above 0 and at most 1, inclusive.
    n
        Words of an n-gram. A shorter text is a single n-gram.

    Returns
    -------
    numpy.ndarray
        Shape ``(len(texts),)``, int64: the smallest index of each text's group.

    Examples
    --------
    The first two share 3 of 5 pairs of words, the last is like neither:

    >>> texts = ["a b c d e", "a b c d f", "x y z", "A, B, C, D, E!"]
    >>> duplicate_groups(texts, threshold=0.6, n=2).tolist()
    [0, 0, 2, 0]
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"a Jaccard threshold lies in (0, 1], not at {threshold}")
    if n < 1:
        raise ValueError(f"an n-gram has at least 1 word, not {n}")

    # Equal texts form one group and are compared only once.
    indices_by_text: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        indices_by_text.setdefault(normalise_text(text), []).append(i)

    edges: list[tuple[int, int]] = []
    for indices in indices_by_text.values():
        edges += [(indices[0], index) for index in indices]

    # A shorter text is its own only n-gram, which matches equal texts only.
    n_words = np.array([len(text.split()) for text in indices_by_text], np.int32)
    is_long = n_words >= n
    first_index = np.array([indices[0] for indices in indices_by_text.values()])
    index_of_set = first_index.astype(np.int64)[is_long]  # (sets,)

    split_texts = (text.split() for text in indices_by_text)
    long_texts = (words for words in split_texts if len(words) >= n)
    sets = _ngram_sets(long_texts, n_words[is_long], n)

    for pairs in _similar_pairs(sets, threshold):
        smaller = index_of_set[pairs.smaller].tolist()
        larger = index_of_set[pairs.larger].tolist()
        edges += zip(smaller, larger, strict=True)

    return connected_components(len(texts), edges)


def connected_components(
    n: int, edges: Sequence[tuple[int, int]] | np.ndarray
) -> np.ndarray:
    """Return the smallest node of each node's component in an undirected graph.

    Parameters
    ----------
    n
        Nodes are 0 to ``n - 1``.
    edges
        Pairs of nodes.

    Returns
    -------
    numpy.ndarray
        Shape ``(n,)``, int64.

    Examples
    --------
    >>> connected_components(5, [(3, 1), (4, 3)]).tolist()
    [0, 1, 2, 1, 1]
    """
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)  # (edges, 2)
    if n == 0:
        return np.zeros(0, np.int64)

    has_edge = np.ones(len(ends))
    graph = scipy.sparse.coo_array((has_edge, tuple(ends.T)), (n, n))
    _, component = scipy.sparse.csgraph.connected_components(graph, directed=False)

    # Nodes are in rising order, so the first one of a component is the smallest.
    _, smallest = np.unique(component, return_index=True)
    return smallest.astype(np.int64)[component]


def cluster_labels(
    source_ids: Sequence[str],
    canary_ids: Sequence[str | None],
    duplicate_groups: Sequence[int] | np.ndarray,
    strings: Sequence[Collection[Hashable]] | None = None,
) -> list[str]:
    """Return clusters of rows that share source, canary, duplicate group or strings.

    Rows that share a canary, a person or a text are not independent, so they are
    joined.

    Parameters
    ----------
    source_ids, canary_ids, duplicate_groups
        One entry per row: its source, its canary (``None`` joins nothing), and its
        group from :func:`duplicate_groups`.
    strings
        Identifying strings of each row; ``None``: no row has any.

    Returns
    -------
    list of str
        The cluster's name for each row: its smallest source id, whatever the order of
        the rows.

    Examples
    --------
    The first two rows share a canary, the last two a string:

    >>> cluster_labels(
    ...     ["s3", "s1", "s2", "s4"],
    ...     ["c", "c", None, None],
    ...     [0, 1, 2, 3],
    ...     [[], [], ["Ann"], ["Ann"]],
    ... )
    ['s1', 's1', 's2', 's2']
    """
    n_rows = len(source_ids)
    no_strings: list[Collection[Hashable]] = [()] * n_rows

    # Columns of keys, each with a collection of keys per row. Equal keys of one column
    # connect rows.
    columns: list[Iterable[Collection[Hashable]]] = [
        ([source] for source in source_ids),
        ([int(group)] for group in duplicate_groups),
        ([] if canary is None else [canary] for canary in canary_ids),
        no_strings if strings is None else strings,
    ]

    # An edge from each row to the first one with the same key: first, row, first, row,
    # ... as an array of int64, since there can be many millions.
    edges = array("q")
    for keys_of_rows in columns:
        first_row: dict[Hashable, int] = {}
        for row, keys in enumerate(keys_of_rows):
            for key in keys:
                first = first_row.setdefault(key, row)
                if first != row:
                    edges.extend((first, row))

    pairs = np.array(edges, np.int64).reshape(-1, 2)
    components = connected_components(n_rows, pairs).tolist()

    smallest_source: dict[int, str] = {}
    for component, source in zip(components, source_ids, strict=True):
        smallest_source[component] = min(source, smallest_source.get(component, source))
    return [smallest_source[component] for component in components]


def _ngram_sets(
    texts: Iterable[Sequence[str]], lengths: np.ndarray, n: int
) -> scipy.sparse.csr_array:
    """Return the set of n-grams of each text as a row of 0 and 1.

    The shape is ``(texts, n-grams)``. An n-gram's code is found from that of its first
    n - 1 words and its last word, so different n-grams never share one.

    Parameters
    ----------
    texts
        The words of each text, at least n. They are read only once, since a list of
        words takes ten times the memory of a text.
    lengths
        Shape ``(texts,)``: number of words of each text.
    """
    # All texts one after the other, each word as a code.
    code_of_word: dict[str, int] = {}
    codes = (
        code_of_word.setdefault(word, len(code_of_word))
        for text in texts
        for word in text
    )
    words = np.fromiter(codes, np.int32)  # (words,)
    n_texts = len(lengths)

    # grams[i] is the code of the m words from word i on, first for m = 1, at last for
    # m = n. Those that cross into the next text are dropped below.
    grams = words
    for m in range(1, n):
        keys = grams[:-1] * np.int64(len(code_of_word)) + words[m:]
        _, codes_of_keys = np.unique(keys, return_inverse=True)
        grams = codes_of_keys.astype(np.int32)  # (words - m,)

    # An n-gram starts at a word if enough words of its text are left there.
    ends = np.repeat(np.cumsum(lengths), lengths)  # (words,), of the word's text
    n_left = ends - np.arange(len(words))
    is_start = n_left >= n

    # An n-gram belongs to the text of its first word.
    text_of_word = np.repeat(np.arange(n_texts, dtype=np.int32), lengths)
    rows = text_of_word[is_start]
    columns = grams[is_start[: len(grams)]]

    n_grams = int(columns.max(initial=-1)) + 1
    sets = scipy.sparse.csr_array(
        (np.ones(len(columns), np.int32), (rows, columns)),
        (n_texts, n_grams),
    )
    sets.data[:] = 1  # however often the text has it
    return sets


class SimilarPairs(NamedTuple):
    """Pairs of similar sets: rows of the smaller and of the larger set of each pair.

    Both of shape ``(pairs,)``.
    """

    smaller: np.ndarray
    larger: np.ndarray


def _similar_pairs(
    sets: scipy.sparse.csr_array, threshold: float
) -> Iterator[SimilarPairs]:
    """Yield pairs of rows with Jaccard similarity of at least the threshold.

    Prefix filtering, as in Xiao et al. (2011), "Efficient similarity joins for near
    duplicate detection". Order the columns from rare to common, and call t the
    threshold. Two similar sets, ``x`` the smaller and ``y`` the larger, share a column
    among the first ``|x| - ceil(2t / (1 + t) |x|) + 1`` of ``x`` and the first ``|y| -
    ceil(t |y|) + 1`` of ``y``. So only pairs whose prefixes meet are counted.
    """
    n_sets = sets.shape[0]

    # Sort rows from the smallest set to the largest.
    size = np.diff(sets.indptr).astype(np.int64)  # (sets,)
    by_size = np.argsort(size, kind="stable")
    sets = sets[by_size]
    size = size[by_size]

    # Sort columns from the rarest n-gram to the most common.
    frequency = np.bincount(sets.indices, minlength=sets.shape[1])  # (n-grams,)
    by_rarity = np.argsort(frequency, kind="stable")
    new_column = np.argsort(by_rarity).astype(sets.indices.dtype)
    sets.indices = new_column[sets.indices]
    sets.sort_indices()
    frequency = frequency[by_rarity]

    # Each row is the larger one in turn, and looks for smaller rows that share a column
    # of their prefixes.
    share_of_smaller = 2 * threshold / (1 + threshold)
    prefixes_of_larger = _prefixes(sets, threshold, frequency)
    prefixes_of_smaller = _prefixes(sets, share_of_smaller, frequency)

    # Count the matches of each row beforehand, which limits the rows of a block.
    n_rows_of_column = np.bincount(
        prefixes_of_smaller.indices,
        minlength=sets.shape[1],
    )
    n_matches = prefixes_of_larger @ n_rows_of_column  # (sets,)
    n_matches_before = np.concatenate([[0], np.cumsum(n_matches)])

    first = 0
    while first < n_sets:
        # Take as many rows as fit into a block, at least one.
        most = n_matches_before[first] + _MAX_SIMILARITIES
        end = int(np.searchsorted(n_matches_before, most, side="right")) - 1
        end = max(end, first + 1)

        matches = (prefixes_of_larger[first:end] @ prefixes_of_smaller.T).tocoo()
        larger, smaller = matches.coords  # each (matches,)
        larger = larger.astype(np.int64) + first

        # Take each pair once. A set of less than t |y| cannot have a similarity of t
        # with y.
        is_ordered = smaller < larger
        least_size = threshold * size[larger] - _SIMILARITY_ROUND_OFF
        is_candidate = is_ordered & (size[smaller] >= least_size)
        smaller = smaller[is_candidate]
        larger = larger[is_candidate]

        # The similarity itself: columns that both have, over columns that either has.
        n_shared = _shared_columns(sets, smaller, larger, largest_size=int(size[-1]))
        n_either = size[smaller] + size[larger] - n_shared
        is_similar = n_shared / n_either >= threshold
        yield SimilarPairs(
            smaller=by_size[smaller[is_similar]],
            larger=by_size[larger[is_similar]],
        )
        first = end


def _shared_columns(
    sets: scipy.sparse.csr_array,
    first: np.ndarray,
    second: np.ndarray,
    *,
    largest_size: int,
) -> np.ndarray:
    """Return the number of columns that each pair of rows shares.

    ``first``, ``second`` and the result: shape ``(pairs,)``.
    """
    n_shared = np.zeros(len(first), np.int64)
    step = max(1, _MAX_SIMILARITIES // max(largest_size, 1))  # pairs at a time
    for start in range(0, len(first), step):
        block = slice(start, start + step)
        product = sets[first[block]].multiply(sets[second[block]])
        n_shared[block] = product.sum(axis=1)
    return n_shared


def _prefixes(
    sets: scipy.sparse.csr_array, share: float, frequency: np.ndarray
) -> scipy.sparse.csr_array:
    """Return the prefix of each row: its rarest columns that another row also has.

    A row that shares at least ``share`` of its columns with another row shares one of
    the prefix with it.

    Parameters
    ----------
    sets
        Columns stand from rare to common.
    frequency
        Shape ``(n-grams,)``: number of rows that have a column.
    """
    size = np.diff(sets.indptr)
    least_shared = np.ceil(share * size - _SIMILARITY_ROUND_OFF)
    length = size - least_shared + 1  # (sets,)

    # Each entry's number within its row: 0, 1, ...
    rank = np.arange(sets.nnz) - np.repeat(sets.indptr[:-1], size)
    is_in_prefix = rank < np.repeat(length, size)
    is_used = is_in_prefix & (frequency[sets.indices] > 1)

    # Where each row begins among the entries that are used.
    starts = np.concatenate([[0], np.cumsum(is_used)])[sets.indptr]
    return scipy.sparse.csr_array(
        (sets.data[is_used], sets.indices[is_used], starts),
        sets.shape,
    )
