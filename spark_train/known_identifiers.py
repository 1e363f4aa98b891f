"""The identifiers annotated anywhere in the data, wherever else they stand.

An identifier is often annotated in one row and stands in others, where nobody marked
it: such a row is no plain text, and must not be shown as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_audit.data.examples import Example
from spark_audit.data.occurrences import repeats

_KEY = 8
"""Characters of a string that it is looked up by: few strings share as many."""


class Annotated:
    """The annotated strings of some examples, canaries' among them.

    They are looked up by their first characters, so that a text costs time by its
    length, hardly by how many strings there are.
    """

    def __init__(self, examples: Iterable[Example]) -> None:
        types: dict[str, str] = {}
        for example in examples:
            text = example.text
            for span in example.spans:
                string = text[span.start : span.end].strip().casefold()
                types.setdefault(string, span.type)
        types.pop("", None)
        self._types = types
        self._by_key: dict[str, list[str]] = {}
        for string in sorted(types):
            self._by_key.setdefault(string[:_KEY], []).append(string)
        self._sizes = sorted(set(map(len, self._by_key)))

    def places(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Characters ``start:end`` of a text that are one of the strings, and its type.

        What counts as the same string is what
        :func:`spark_audit.data.occurrences.repeats` says: of any case, and one or two
        characters only where they are a word. Places come in no order.
        """
        folded = text.casefold()
        at = len(text) + 1
        for string in self._candidates(folded):
            for start, end in repeats(f"{text}\n{string}", [(at, at + len(string))]):
                if end < at:
                    yield start, end, self._types[string]

    def _candidates(self, folded: str) -> Iterator[str]:
        """Strings that the text holds, each once, whether or not as words."""
        for size in self._sizes:
            keys = {folded[i : i + size] for i in range(len(folded) - size + 1)}
            for key in sorted(keys & self._by_key.keys()):
                yield from (s for s in self._by_key[key] if s in folded)
