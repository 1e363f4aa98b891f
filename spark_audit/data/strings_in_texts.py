"""Find identifiers in texts: word for word, and nearly.

A *near miss* is a string of a text that is not the identifier, but leaves little to
guess (:mod:`~spark_audit.data.near_misses`). Short identifiers have none: one character
away from ``Anna`` stands another name.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise

from rapidfuzz.distance import Levenshtein

from spark_audit.data.near_misses import SHARE_OF_BEGINNING, near_miss
from spark_audit.data.occurrences import finder, folded, is_inside_word

MIN_NEAR_CHARACTERS = 8
"""Fewest characters of an identifier that can be missed nearly **[ours]**."""

MAX_WRONG = 2
"""Most characters that a near miss has wrong, unless it only begins alike."""

BETWEEN = "\n\n"
"""Stands between two texts; no identifier goes over it."""


def first_holders(strings: Collection[str], texts: Sequence[str]) -> dict[str, int]:
    """Return the index of the first text that holds each string, as a whole word.

    Strings that no text holds are left out.

    Parameters
    ----------
    strings
        As :func:`~spark_audit.data.occurrences.string_of` returns them.
    """
    find = finder({string for string in strings if string})
    holders: dict[str, int] = {}
    for index, text in enumerate(texts):
        for string in find(folded(text)):
            holders.setdefault(string, index)
    return holders


def first_near_misses(strings: Collection[str], texts: Sequence[str]) -> dict[str, int]:
    """Return the index of the first text that misses each string nearly.

    A near miss begins where a word or mark begins. What is one of the strings itself is
    no near miss of another one.

    Examples
    --------
    >>> strings = {"555-0142", "maria.jones@a.org"}
    >>> texts = ["call 555-9900", "call 555-0147", "mail maria.jones@b.com"]
    >>> sorted(first_near_misses(strings, texts).items())
    [('555-0142', 1), ('maria.jones@a.org', 2)]
    """
    search = _NearSearch(texts)
    long_strings = {s for s in strings if len(s) >= MIN_NEAR_CHARACTERS}
    misses: dict[str, int] = {}
    for string in sorted(long_strings):
        places = [
            search.begins(string, long_strings),
            search.character_differs(string, long_strings),
            search.digits_differ(string, long_strings),
        ]
        known_places = [place for place in places if place is not None]
        if known_places:
            misses[string] = search.index_of(min(known_places))
    return misses


class _NearSearch:
    """Texts in which near misses are looked for; a place is a position in all of them.

    Parameters
    ----------
    texts
        Any texts; they are folded here.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        folded_texts = [folded(text) for text in texts]
        self._text = BETWEEN.join(folded_texts)
        lengths = [len(text) + len(BETWEEN) for text in folded_texts]
        self._ends = list(accumulate(lengths))

    def index_of(self, place: int) -> int:
        """Return the index of the text at a place."""
        return bisect_right(self._ends, place)

    def begins(self, string: str, strings: Collection[str]) -> int | None:
        """Return the first place where the first two thirds of a string stand alone.

        None of the strings may stand there.
        """
        lengths = {len(other) for other in strings}
        n_beginning = math.ceil(SHARE_OF_BEGINNING * len(string))
        for place in _places(self._text, string[:n_beginning]):
            if is_inside_word(self._text, place):
                continue
            if not any(self._text[place : place + n] in strings for n in lengths):
                return place
        return None

    def character_differs(self, string: str, strings: Collection[str]) -> int | None:
        """Return the first place where a string stands but for one character.

        Then one of its halves stands there whole.
        """
        n_half = len(string) // 2
        lengths = (len(string) - 1, len(string), len(string) + 1)
        places = []
        for place in _places(self._text, string[:n_half]):
            if self._is_near(string, place, lengths, strings):
                places.append(place)
                break
        for half_place in _places(self._text, string[n_half:]):
            end = half_place + len(string) - n_half
            starts = [end - length for length in lengths]
            hits = [
                start
                for start, length in zip(starts, lengths, strict=True)
                if start >= 0 and self._is_near(string, start, (length,), strings)
            ]
            if hits:
                places.append(min(hits))
                break
        return min(places, default=None)

    def digits_differ(self, string: str, strings: Collection[str]) -> int | None:
        """Return the first place where a string stands but for one or two digits.

        Then one of its thirds stands there whole.
        """
        if not any(character.isdigit() for character in string):
            return None

        places = []
        borders = [round(i * len(string) / 3) for i in range(4)]
        for start, end in pairwise(borders):
            for part_place in _places(self._text, string[start:end]):
                place = part_place - start
                is_inside = place >= 0
                if is_inside and self._is_near(string, place, (len(string),), strings):
                    places.append(place)
                    break
        return min(places, default=None)

    def _is_near(
        self,
        string: str,
        place: int,
        lengths: Sequence[int],
        strings: Collection[str],
    ) -> bool:
        """Return whether whole words at a place, of some length, miss a string nearly.

        What is one of the strings itself is no near miss.
        """
        for length in lengths:
            end = place + length
            answer = self._text[place:end]
            # Most answers differ in more characters, which is quick to see.
            n_wrong = Levenshtein.distance(string, answer, score_cutoff=MAX_WRONG)
            if n_wrong > MAX_WRONG or answer in strings or answer != answer.strip():
                continue
            if is_inside_word(self._text, place) or is_inside_word(self._text, end):
                continue
            is_whole = len(answer) == length
            if is_whole and near_miss(string, answer) in ("character", "digits"):
                return True
        return False


def _places(text: str, part: str) -> Iterator[int]:
    """Yield every place of a part in a text."""
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)
