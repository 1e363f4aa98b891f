"""Near-duplicate texts, exactly, and the clusters that they and what they share form.

Two texts are near-duplicates when the Jaccard similarity of their sets of word n-grams
reaches a threshold. Nothing is hashed or sampled: an inverted index over the rarest
n-grams of each text finds every pair that can reach it, and each is then counted.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

import numpy as np
import scipy

_MAX_SIMILARITIES = 1 << 22
"""Matches of the index held at once: bounds the memory, changes no result."""

_SIMILARITY_ROUND_OFF = 1e-9
"""Filters keep what lies this close to their bound; the final count decides."""


class _Fold(dict[int, str | int | None]):
    """Punctuation, symbols and controls to blanks; invisible characters to nothing."""

    def __missing__(self, code: int) -> str | int | None:
        kind = unicodedata.category(chr(code))
        new = None if kind == "Cf" else " " if kind[0] in "PSCZ" else code
        self[code] = new
        return new


_FOLD = _Fold()


def normalise_text(text: str) -> str:
    """Fold what does not make a text another text.

    Compatibility forms and case are folded (NFKC), punctuation, symbols and white space
    become single blanks. A text of nothing else keeps its characters, so that two such
    texts are equal only if they are.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = unicodedata.normalize("NFKC", folded)
    words = folded.translate(_FOLD).split() or folded.split()
    return " ".join(words)


def duplicate_groups(
    texts: Sequence[str], *, threshold: float = 0.8, n: int = 5
) -> np.ndarray:
    """Group texts that chains of near-duplicates connect.

    Two texts are near-duplicates where the Jaccard similarity of their sets of word
    n-grams is at least ``threshold``, or where they are equal once normalised.

    Parameters
    ----------
    texts
        Any texts; they are normalised here.
    threshold
        Smallest Jaccard similarity of a pair, above 0 and at most 1, inclusive.
    n
        Words of an n-gram. A shorter text is one n-gram by itself.

    Returns
    -------
    numpy.ndarray
        Shape ``(len(texts),)``, int64: the smallest index of each text's group.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"a Jaccard threshold lies in (0, 1], not at {threshold}")
    if n < 1:
        raise ValueError(f"an n-gram has at least 1 word, not {n}")
    groups: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        groups.setdefault(normalise_text(text), []).append(i)
    edges = [(group[0], i) for group in groups.values() for i in group]
    # A shorter text is its own only n-gram: it is like equal texts and no other.
    lengths = np.array([len(text.split()) for text in groups], np.int32)
    words = (text.split() for text in groups)
    long = (row for row in words if len(row) >= n)
    first = np.array([group[0] for group in groups.values()], np.int64)[lengths >= n]
    sets = _ngram_sets(long, lengths[lengths >= n], n)
    for x, y in _join(sets, threshold):
        edges += zip(first[x].tolist(), first[y].tolist(), strict=True)
    return connected_components(len(texts), edges)


def connected_components(
    n: int, edges: Sequence[tuple[int, int]] | np.ndarray
) -> np.ndarray:
    """Label the nodes of an undirected graph by their component's smallest node.

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
    """
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    if n == 0:
        return np.zeros(0, np.int64)
    graph = scipy.sparse.coo_array((np.ones(len(ends)), tuple(ends.T)), (n, n))
    _, component = scipy.sparse.csgraph.connected_components(graph, directed=False)
    _, smallest = np.unique(component, return_index=True)
    return smallest.astype(np.int64)[component]


def cluster_labels(
    source_ids: Sequence[str],
    canary_ids: Sequence[str | None],
    duplicate_groups: Sequence[int] | np.ndarray,
    strings: Sequence[Collection[Hashable]] | None = None,
) -> list[str]:
    """Clusters of rows: connected over source, canary, duplicate group and strings.

    A canary or a person that stands in six rows, or a text that stands in two sources,
    joins them: they are not independent.

    Parameters
    ----------
    source_ids, canary_ids, duplicate_groups
        One entry a row; a canary of None joins nothing.
    strings
        What identifies somebody in each row; ``None``: nothing does.

    Returns
    -------
    list of str
        The cluster's name for each row: its smallest source id, whatever the order of
        the rows.
    """
    edges = array("q")
    for column in (
        ((source,) for source in source_ids),
        ((int(group),) for group in duplicate_groups),
        ((canary,) if canary is not None else () for canary in canary_ids),
        () if strings is None else strings,
    ):
        first: dict[Hashable, int] = {}
        for row, keys in enumerate(column):
            for key in keys:
                if (other := first.setdefault(key, row)) != row:
                    edges.extend((other, row))
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    labels = connected_components(len(source_ids), pairs)
    # The last that is put there stays.
    names = dict(sorted(zip(labels.tolist(), source_ids, strict=True), reverse=True))
    return [names[label] for label in labels.tolist()]


def _ngram_sets(
    texts: Iterable[Sequence[str]], lengths: np.ndarray, n: int
) -> scipy.sparse.csr_array:
    """The set of n-grams of each text as a row of 0 and 1; columns are n-grams.

    Texts are gone through once: as words, each takes ten times its letters.

    An n-gram's number is found from that of its first n - 1 words and its last word, so
    different n-grams never share one.
    """
    number: dict[str, int] = {}
    words = (number.setdefault(word, len(number)) for text in texts for word in text)
    gram = word = np.fromiter(words, np.int32)
    for m in range(1, n):
        # Those that cross into the next text are dropped below.
        keys = gram[:-1] * np.int64(len(number)) + word[m:]
        gram = np.unique(keys, return_inverse=True)[1].astype(np.int32)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(word))
    # An n-gram belongs to the text that its first word stands in.
    row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[left >= n]
    gram = gram[left[: len(gram)] >= n]
    size = len(lengths), int(gram.max(initial=-1)) + 1
    sets = scipy.sparse.csr_array((np.ones(len(gram), np.int32), (row, gram)), size)
    sets.data[:] = 1  # however often it stands there
    return sets


def _join(
    sets: scipy.sparse.csr_array, threshold: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of rows with Jaccard similarity of at least the threshold.

    Order the columns from rare to common. Two similar sets, ``x`` the smaller, share a
    column among the first ``|x| - ceil(2t / (1 + t) |x|) + 1`` of ``x`` and the first
    ``|y| - ceil(t |y|) + 1`` of ``y``: prefix filtering, as in Xiao et al. (2011),
    "Efficient similarity joins for near duplicate detection".
    """
    total = sets.shape[0]
    size = np.diff(sets.indptr).astype(np.int64)
    by_size = np.argsort(size, kind="stable")
    sets, size = sets[by_size], size[by_size]
    frequency = np.bincount(sets.indices, minlength=sets.shape[1])
    rare = np.argsort(frequency, kind="stable")
    sets.indices = np.argsort(rare).astype(sets.indices.dtype)[sets.indices]
    sets.sort_indices()
    probe = _prefixes(sets, threshold, frequency[rare])
    index = _prefixes(sets, 2 * threshold / (1 + threshold), frequency[rare])
    postings = np.bincount(index.indices, minlength=sets.shape[1])
    work = np.concatenate([[0], np.cumsum(probe @ postings)])
    low = 0
    while low < total:
        # As many rows as fit into a block, at least one.
        high = (
            int(np.searchsorted(work, work[low] + _MAX_SIMILARITIES, side="right")) - 1
        )
        high = max(high, low + 1)
        shared = (probe[low:high] @ index.T).tocoo()
        y, x = shared.coords[0].astype(np.int64) + low, shared.coords[1]
        near = (x < y) & (size[x] >= threshold * size[y] - _SIMILARITY_ROUND_OFF)
        x, y = x[near], y[near]
        both = np.zeros(len(x), np.int64)
        step = max(1, _MAX_SIMILARITIES // max(int(size[-1]), 1))
        for at in range(0, len(x), step):
            part = slice(at, at + step)
            both[part] = sets[x[part]].multiply(sets[y[part]]).sum(axis=1)
        hit = both / (size[x] + size[y] - both) >= threshold
        yield by_size[x[hit]], by_size[y[hit]]
        low = high


def _prefixes(
    sets: scipy.sparse.csr_array, share: float, frequency: np.ndarray
) -> scipy.sparse.csr_array:
    """The first columns of each row, which are the rarest, that another row has too."""
    size = np.diff(sets.indptr)
    length = size - np.ceil(share * size - _SIMILARITY_ROUND_OFF) + 1
    place = np.arange(sets.nnz) - np.repeat(sets.indptr[:-1], size)
    use = (place < np.repeat(length, size)) & (frequency[sets.indices] > 1)
    ends = np.concatenate([[0], np.cumsum(use)])[sets.indptr]
    return scipy.sparse.csr_array((sets.data[use], sets.indices[use], ends), sets.shape)
