"""Facts of the strings of identifiers, from which guess rates follow.

Whether a string can be guessed depends on other strings of its type: on those that
differ in a running number, begin alike, or are the same in another row. The evidence
holds these facts, and numbers in the place of strings, so that it has no text. They are
read by :mod:`~spark_audit.audits.extract.guessing`. A new fact is a field of
:class:`StringFacts`, which :func:`string_facts` fills.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypedDict

from spark_audit.audits.identifiers import SpanKey
from spark_audit.audits.unguessable import guesses
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.example_schema import ManifestExample, ManifestSpan
from spark_audit.manifest.schema import Manifest

MIN_SHARE_GIVEN = 0.5
"""A row gives an identifier away if whole words in front of it hold at least this share
of its characters **[ours]**.
"""

_LAST_DIGITS_OF_NUMBER = re.compile(r"\d{1,2}(?!\d)")
"""The last two digits of each number of a string, or the only one."""

_LAST_TWO_DIGITS = re.compile(r"\d\D*\d\D*$")
"""The last two digits of a string, and all from the first of them on."""

_WORD_OR_NUMBER = re.compile(r"[^\W_]+")


class StringFacts(TypedDict):
    """Facts of an identifier's string, without the string: columns of the evidence."""

    string: int
    """Number of the string; the same string of another type has another one."""
    lead: int
    """Number of its leading part: the text before its last two digits, or its first
    word.
    """
    home: int
    """Index of the first trained row that it is annotated in; -1: none."""
    near: bool
    """Of a string of trained rows: whether these hold another one of its type that
    differs only in the last two digits of one number.
    """
    given: bool
    """Whether its row gives it away (:data:`MIN_SHARE_GIVEN`)."""
    elsewhere: bool
    """Whether rows of several sources, or a row never trained on, hold it."""
    chance: float
    """Upper bound of its guess rate, 1 if it can be guessed
    (:mod:`~spark_audit.audits.unguessable`).
    """


class IdentifierInRow(NamedTuple):
    """An identifier of a row of the manifest, with its string (``text``), case-folded.

    ``row_number`` is the index of the row in the manifest.
    """

    row_number: int
    row: ManifestExample
    span: ManifestSpan
    text: str


def string_facts(manifest: Manifest) -> dict[SpanKey, StringFacts]:
    """Return the facts of every identifier's string, for the evidence.

    Trained rows with a canary count neither as homes nor as neighbours.
    """
    identifiers = [
        IdentifierInRow(number, row, span, string_of(row, span))
        for number, row in enumerate(manifest.examples)
        for span in row.spans
    ]
    strings = {identifier.text for identifier in identifiers} - {""}
    n_holders = _number_of_holders(manifest, strings)
    home_by_string = _homes(identifiers)
    strings_by_stem = _strings_by_stem(identifiers)
    guess_by_span = guesses(manifest)
    numbers = Numbers()

    # The evidence holds numbers of strings, never the strings.
    facts: dict[SpanKey, StringFacts] = {}
    for identifier in identifiers:
        span = identifier.span
        key = (identifier.row.id, span.start, span.end)
        guess = guess_by_span.get(key)
        # A trained string is itself among the strings of its stems: with a neighbour
        # there are two.
        strings_of_stems: set[str] = set()
        for stem in _stems(identifier.text):
            strings_of_stems |= strings_by_stem[span.type, stem]
        facts[key] = StringFacts(
            string=numbers.of(span.type, identifier.text),
            # The character separates leading parts from whole strings, which never
            # contain it.
            lead=numbers.of(span.type, f"\0{_leading_part(identifier.text)}"),
            home=home_by_string.get(identifier.text, -1),
            near=len(strings_of_stems) > 1,
            given=_is_given_by_row(identifier.row, span),
            elsewhere=n_holders.get(identifier.text, 0) > 1,
            chance=1.0 if guess is None else guess.rate,
        )
    return facts


class Numbers:
    """Gives each string a number in the order of first use; it never tells the string.

    A string that two types share has two numbers.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def of(self, pii_type: str, text: str) -> int:
        """Return the number of a string of a type, from 0."""
        return self._numbers.setdefault((pii_type, text), len(self._numbers))


def _number_of_holders(manifest: Manifest, strings: set[str]) -> dict[str, int]:
    """Return of how many sources trained rows hold each string, annotated or not.

    All held-out rows together count as one more source.
    """
    # Search each row once for all strings.
    find = finder(strings)
    sources_by_string: dict[str, set[str | None]] = defaultdict(set)
    for row in manifest.examples:
        source = row.source_id if row.split == "train" else None  # None: held out
        for string in find(folded(row.text)):
            sources_by_string[string].add(source)
    return {string: len(sources) for string, sources in sources_by_string.items()}


def _is_trained(identifier: IdentifierInRow) -> bool:
    """Return whether the identifier's row is a trained row without a canary."""
    return identifier.row.split == "train" and identifier.row.canary_id is None


def _homes(identifiers: list[IdentifierInRow]) -> dict[str, int]:
    """Return the index of the first trained row that each string is annotated in."""
    homes: dict[str, int] = {}
    for identifier in identifiers:
        if _is_trained(identifier):
            homes.setdefault(identifier.text, identifier.row_number)
    return homes


def _strings_by_stem(
    identifiers: list[IdentifierInRow],
) -> Mapping[tuple[str, str], set[str]]:
    """Map each type and stem (:func:`_stems`) to its trained strings; else none."""
    strings_by_stem: dict[tuple[str, str], set[str]] = defaultdict(set)
    for identifier in identifiers:
        if _is_trained(identifier):
            for stem in _stems(identifier.text):
                strings_by_stem[identifier.span.type, stem].add(identifier.text)
    return strings_by_stem


def _stems(text: str) -> Iterator[str]:
    """Yield, for each number in a string, the string without its last two digits.

    Strings with the same stem differ in these digits alone: counting on from one can
    give the other, as with running numbers. "id 1234-567" has the stems "id 12#-567"
    and "id 1234-5#".
    """
    for last_digits in _LAST_DIGITS_OF_NUMBER.finditer(text):
        yield f"{text[: last_digits.start()]}#{text[last_digits.end() :]}"


def _leading_part(text: str) -> str:
    """Return a string up to its last two digits, or its first word if it has none."""
    if last_digits := _LAST_TWO_DIGITS.search(text):
        return text[: last_digits.start()]
    if first_word := _WORD_OR_NUMBER.search(text):
        return first_word[0]
    return text


def _is_given_by_row(row: ManifestExample, span: ManifestSpan) -> bool:
    """Return whether the row's text before an identifier holds much of it.

    Much is the share :data:`MIN_SHARE_GIVEN` of its characters, as whole words. Of an
    e-mail address only the part before the @ counts.
    """
    text = folded(row.text[span.start : span.end])
    if span.type == "EMAIL":
        text = text.partition("@")[0]

    words = _WORD_OR_NUMBER.findall(text)
    words_before = set(_WORD_OR_NUMBER.findall(folded(row.text[: span.start])))

    n_characters = sum(len(word) for word in words)
    n_given = sum(len(word) for word in words if word in words_before)
    return n_characters > 0 and n_given >= MIN_SHARE_GIVEN * n_characters
