"""Which characters of an example belong to an identifier.

Audits leave them out of controls and of plain text, and training corrects them, so
both ask here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from spark_audit.data.examples import Example
from spark_audit.data.pii import find_identifiers

SHORT = 3
"""Repeats of identifiers with fewer characters count as whole words only **[ours]**."""
DOSES = (1, 2, 4, 8, 16)
"""Lowest dose of each group that figures are given for."""


def identifier_ranges(example: Example) -> list[tuple[int, int]]:
    """Character ranges of an example's identifiers, as far as they can be known.

    Its annotated spans, every repeat of their strings (:func:`repeats`) and what the
    rules find beside them **[ours]**: an identifier that nobody annotated is no plain
    text either. The ranges are in no order and may overlap.
    """
    given = [(span.start, span.end) for span in example.spans]
    found = [(span.start, span.end) for span in find_identifiers(example.text)]
    return [*given, *repeats(example.text, given), *found]


def folded(text: str) -> str:
    """What two strings have in common that are the same identifier: all but case."""
    return _folded(text)[0]


def dose_group(dose: int) -> str:
    """Name of the group of a dose from 1 on: ``1``, ``2-3``, ... ``16+``."""
    low = max(each for each in DOSES if each <= dose)
    if low == DOSES[-1]:
        return f"{low}+"
    high = DOSES[DOSES.index(low) + 1] - 1
    return str(low) if low == high else f"{low}-{high}"


_WORD = re.compile(r"\w+|[^\w\s]")


def standing(texts: Sequence[str], strings: Collection[str]) -> list[set[str]]:
    """Which of some identifiers stand in each text, as whole words.

    Unlike :func:`repeats`, which looks for the identifiers of a text in that text: in
    other people's rows "Ann" is not meant by "planned".

    Parameters
    ----------
    strings
        As :func:`folded` gives them.
    """
    find = finder(strings)
    return [find(folded(text)) for text in texts]


def finder(strings: Collection[str]) -> Callable[[str], set[str]]:
    """:func:`standing` of one text after the other, folded ones."""
    lengths: dict[str, tuple[int, ...]] = {}
    for string in strings:
        if first := _WORD.match(string):
            lengths[first[0]] = tuple({*lengths.get(first[0], ()), len(string)})

    def held(text: str) -> Iterator[str]:
        for word in _WORD.finditer(text):
            for length in lengths.get(word[0], ()):
                end = word.start() + length
                string, behind = text[word.start() : end], text[end : end + 1]
                cut = string[-1].isalnum() and behind.isalnum()
                if string in strings and not cut:
                    yield string

    return lambda text: set(held(text))


def doses(
    texts: Iterable[str],
    annotated: Iterable[Collection[str]],
    known: Collection[str] | None = None,
) -> Counter[str]:
    """In how many trained rows each identifier stands, annotated there or not.

    Parameters
    ----------
    texts
        Of all rows; of one that is not trained on, an empty one.
    annotated
        The identifiers that are annotated in each row, as :func:`folded` gives them.
    known
        All of them, if they are known: then rows are gone through once.
    """
    if known is None:
        annotated = [*annotated]
        known = set[str]().union(*annotated)
    find, found = finder(known), Counter[str]()
    for text, own in zip(texts, annotated, strict=True):
        if text:
            found.update(find(folded(text)).union(own) - {""})
    return found


def repeats(text: str, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every place where one of the strings stands again, whatever its case.

    Parameters
    ----------
    text
        Any text.
    places
        Character ranges of the strings that are looked for.

    Returns
    -------
    list of tuple
        Character ranges, the given ones among them but for blanks at their edges. A
        string of one or two characters counts only where it is a word of its own.
    """
    folded, origin = _folded(text)
    wanted = {_folded(text[start:end].strip())[0] for start, end in places}
    return [
        (int(origin[at]), int(origin[at + len(string) - 1]) + 1)
        for string in sorted(wanted - {""})
        for at in _found(folded, string)
    ]


def _folded(text: str) -> tuple[str, np.ndarray]:
    """The case-folded text, and the character that each of its characters is from."""
    if text.isascii():
        return text.lower(), np.arange(len(text))
    parts = [char.casefold() for char in text]
    return "".join(parts), np.repeat(np.arange(len(text)), [len(p) for p in parts])


def _found(text: str, string: str) -> Iterator[int]:
    at = text.find(string)
    while at >= 0:
        end = at + len(string)
        beside = text[at - 1 : at] + text[end : end + 1] if at else text[end : end + 1]
        if len(string) >= SHORT or not any(char.isalnum() for char in beside):
            yield at
        at = text.find(string, at + 1)
