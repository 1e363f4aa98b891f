"""Passages: runs of words that two collections of texts share.

Words are compared without case and marks. A language that does not separate words has a
word per character. Wording that rows of several clusters hold, such as a template, a
greeting or a licence, belongs to none of them, and is no passage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")

Gram: TypeAlias = tuple[str, ...]
"""Words that follow each other."""


class SharedPassage(NamedTuple):
    """The longest passage of a row that stands in the other texts.

    Attributes
    ----------
    n_words
        Its words; 0: no passage is shared.
    text
        Index of the first text that holds it; -1: none does.
    """

    n_words: int
    text: int


NO_PASSAGE = SharedPassage(0, -1)


def words_of(text: str) -> list[str]:
    """Return the words of a text, case-folded and without marks.

    >>> words_of("It's 5 p.m., Ann!")
    ['it', 's', '5', 'p', 'm', 'ann']
    """
    return _WORD.findall(text.casefold())


def longest_passages(
    rows: Sequence[str],
    clusters: Sequence[Hashable],
    texts: Sequence[str],
    *,
    least_words: int,
) -> list[SharedPassage]:
    """Return the longest passage of each row that stands in some text.

    Parameters
    ----------
    rows, clusters
        Texts of rows, and what each belongs to. Runs of ``least_words`` words that rows
        of several clusters hold do not count.
    texts
        The other texts.
    least_words
        Words that a passage has at least.

    Examples
    --------
    >>> rows = ["my cat sat on the old mat", "his dog sat on the old mat"]
    >>> texts = ["A cat sat on the old mat."]
    >>> longest_passages(rows, ["a", "b"], texts, least_words=4)
    [SharedPassage(n_words=4, text=0), SharedPassage(n_words=0, text=-1)]
    """
    grams_of_rows = [[*_grams(words_of(row), least_words)] for row in rows]
    clusters_by_gram: dict[Gram, set[Hashable]] = defaultdict(set)
    for grams, cluster in zip(grams_of_rows, clusters, strict=True):
        for gram in grams:
            clusters_by_gram[gram].add(cluster)
    own_grams = {gram for gram, holders in clusters_by_gram.items() if len(holders) < 2}

    # Where each of these grams stands in the texts: index of the text, and of its word.
    places_by_gram: dict[Gram, list[tuple[int, int]]] = defaultdict(list)
    for index, text in enumerate(texts):
        for position, gram in enumerate(_grams(words_of(text), least_words)):
            if gram in own_grams:
                places_by_gram[gram].append((index, position))
    return [
        _longest_passage(grams, places_by_gram, least_words) for grams in grams_of_rows
    ]


def _grams(words: Sequence[str], n: int) -> Iterator[Gram]:
    """Yield every run of n words."""
    for start in range(len(words) - n + 1):
        yield tuple(words[start : start + n])


def _longest_passage(
    grams: Sequence[Gram],
    places_by_gram: dict[Gram, list[tuple[int, int]]],
    least_words: int,
) -> SharedPassage:
    """Return the longest run of grams that follow each other in one of the texts."""
    longest = NO_PASSAGE
    # Place of the last gram -> number of grams that follow each other up to there.
    n_grams_up_to: dict[tuple[int, int], int] = {}
    for gram in grams:
        continued = {}
        for index, position in places_by_gram.get(gram, ()):
            n_grams = n_grams_up_to.get((index, position - 1), 0) + 1
            continued[index, position] = n_grams
            n_words = n_grams + least_words - 1
            if n_words > longest.n_words:
                longest = SharedPassage(n_words, index)
        n_grams_up_to = continued
    return longest
