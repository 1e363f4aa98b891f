"""Which characters of an example belong to an identifier.

Audits leave them out of controls and of plain text, and training corrects them, so
both ask here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from spark_audit.examples import Example
from spark_audit.pii import annotate

_SHORT = 3
"""Repeats of identifiers with fewer characters count as whole words only **[ours]**."""


def identifier_ranges(example: Example) -> list[tuple[int, int]]:
    """Character ranges of an example's identifiers, as far as they can be known.

    Its annotated spans, every repeat of their strings (:func:`repeats`) and what the
    rules find beside them **[ours]**: an identifier that nobody annotated is no plain
    text either. The ranges are in no order and may overlap.
    """
    given = [(span.start, span.end) for span in example.spans]
    found = [(span.start, span.end) for span in annotate(example.text)]
    return [*given, *repeats(example.text, given), *found]


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
        if len(string) >= _SHORT or not any(char.isalnum() for char in beside):
            yield at
        at = text.find(string, at + 1)
