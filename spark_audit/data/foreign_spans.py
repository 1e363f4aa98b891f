"""Read annotations of other tools: their type names, their keys and their units.

JavaScript and Java count UTF-16 units, C and Rust count bytes. Behind an emoji or an
umlaut such a span begins too late. It is converted if the row also holds the annotated
string, and refused if it only looks wrong.

A further name of a type is added to :data:`TYPE_NAMES`, a further key of a span's
record to one of the tuples of keys.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from spark_audit.data.examples import PII_TYPES, Span, bad_field, spans_field
from spark_audit.errors import InputError
from spark_audit.json_values import JsonObject

Offsets = Literal["characters", "utf-16", "bytes"]
"""A unit of spans: what their ``start`` and ``end`` count."""
OFFSET_UNITS: tuple[Offsets, ...] = ("characters", "utf-16", "bytes")

TYPE_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("PERSON", "PER", "PERSON_NAME", "FULL_NAME", "FULLNAME"), "NAME"),
    **dict.fromkeys(("EMAIL_ADDRESS", "EMAILADDRESS", "E_MAIL", "MAIL"), "EMAIL"),
    **dict.fromkeys(("PHONE_NUMBER", "PHONENUMBER", "TELEPHONE", "TEL"), "PHONE"),
    **dict.fromkeys(("US_SSN", "SOCIAL_SECURITY_NUMBER", "SOCIALNUMBER"), "SSN"),
    **dict.fromkeys(("CREDITCARD", "CREDIT_CARD_NUMBER", "CC_NUMBER"), "CREDIT_CARD"),
    **dict.fromkeys(("STREET_ADDRESS", "POSTAL_ADDRESS"), "ADDRESS"),
}
"""Our type names, by the names that other tools use."""
_START_KEYS = ("start",)
"""Keys of a span's start in other tools' records; the first that is there counts."""
_END_KEYS = ("end",)
"""Keys of its end, likewise."""
_TYPE_KEYS = ("type", "entity_type", "entity_group", "label", "entity")
"""Keys of its type, likewise."""
_TEXT_KEYS = ("text", "value", "word")
"""Keys of its text; the first whose value is a text counts."""
_UNUSED_KEYS = ("score", "confidence", "analysis_explanation", "recognition_metadata")
"""Keys that are not read."""


class SpanReader:
    """A reader of the field ``spans`` of rows.

    Parameters
    ----------
    offsets
        The unit of the spans; ``None``: characters, unless a row shows another unit.

    Attributes
    ----------
    renamed
        Number of spans with a type name of another tool, by that name and our name.
    converted
        Number of spans that were converted, by unit.
    """

    def __init__(self, offsets: Offsets | None) -> None:
        self._offsets = offsets
        self.renamed: Counter[tuple[str, str]] = Counter()
        self.converted: Counter[Offsets] = Counter()

    def read(self, row: JsonObject, text: str) -> tuple[Span, ...]:
        """Return the spans of a row, in characters of its text.

        Parameters
        ----------
        row
            The row, whose field ``spans`` is read.
        text
            The text that its spans index.

        Raises
        ------
        InputError
            If the spans do not fit the text, or seem to count another unit.
        """
        records = row.get("spans")
        if not isinstance(records, list):
            return spans_field(row)

        # The annotated strings are read first: they are lost when the keys are
        # replaced.
        annotated_strings = [_annotated_string(record) for record in records]
        spans = spans_field(
            {"spans": [self._in_our_format(record) for record in records]}
        )
        if not spans:
            return ()

        unit = self._unit_of_row(spans, annotated_strings, text)
        if unit == "characters":
            return spans
        self.converted[unit] += len(spans)
        return tuple(_converted(spans, text, unit))

    def _in_our_format(self, record: object) -> object:
        """Return a span with our keys and our type name.

        A value that cannot be a span is returned unchanged, and the reader of the field
        refuses it.
        """
        # spaCy writes spans as (start, end, type).
        if isinstance(record, list | tuple) and len(record) == 3:
            record = dict(zip(("start", "end", "type"), record, strict=True))
        if not isinstance(record, dict):
            return record

        span = {
            key: value
            for key, value in record.items()
            if key not in _UNUSED_KEYS and key not in _TEXT_KEYS
        }
        # A second key of the same value stays, and the reader of the field refuses it.
        for our_key, keys in (
            ("start", _START_KEYS),
            ("end", _END_KEYS),
            ("type", _TYPE_KEYS),
        ):
            key = _first_of(span, keys)
            if key is not None:
                span[our_key] = span.pop(key)

        # Renamed types are counted for a note, because a wrong renaming would go
        # unnoticed.
        name = span.get("type")
        if isinstance(name, str):
            our_name = _our_type(name)
            if our_name != name:
                self.renamed[name, our_name] += 1
                span["type"] = our_name
        return span

    def _unit_of_row(
        self,
        spans: Sequence[Span],
        annotated_strings: Sequence[str | None],
        text: str,
    ) -> Offsets:
        """Return the unit of the spans, by the option or by the row itself.

        Raises
        ------
        InputError
            If no unit fits the annotated strings, or if the spans cut words and would
            not do so in another unit.
        """
        if self._offsets is not None:
            return self._offsets
        if text.isascii():
            return "characters"  # all units agree

        # The annotated strings show the unit, if the row holds any.
        if any(string is not None for string in annotated_strings):
            for unit in OFFSET_UNITS:
                if _strings_fit(spans, annotated_strings, text, unit):
                    return unit
            raise bad_field(
                "spans",
                "are not where the annotated strings stand",
                fix="annotate the row again",
            )

        # Otherwise a cut word raises suspicion.
        if _cuts_a_word(spans, text):
            for unit in OFFSET_UNITS[1:]:
                if _would_fit(spans, text, unit):
                    units = "bytes" if unit == "bytes" else f"{unit} units"
                    raise bad_field(
                        "spans",
                        f"cut words, and would not if they counted {units}",
                        fix=f"give --offsets {unit}, or --offsets characters if they "
                        "are right",
                    )
        return "characters"


def _first_of(record: Mapping[str, object], keys: Sequence[str]) -> str | None:
    """Return the first of the keys that a record has; None if it has none."""
    for key in keys:
        if key in record:
            return key
    return None


def _our_type(name: str) -> str:
    """Return our name of a type; a name that is unknown stays."""
    upper = name.upper()
    if upper in PII_TYPES:
        return TYPE_NAMES.get(upper, upper)
    return TYPE_NAMES.get(upper, name)


def looks_annotated(value: object) -> bool:
    """Return whether a column holds spans: records with a start and an end."""
    if not isinstance(value, list) or not value:
        return False

    for record in value:
        if isinstance(record, list | tuple) and len(record) == 3:
            start, end, _ = record
        elif isinstance(record, dict):
            start = record.get(_first_of(record, _START_KEYS))
            end = record.get(_first_of(record, _END_KEYS))
        else:
            return False
        if type(start) is not int or type(end) is not int:
            return False
    return True


def _annotated_string(record: object) -> str | None:
    """Return the annotated string of a span, if its record holds one."""
    if not isinstance(record, dict):
        return None
    for key in _TEXT_KEYS:
        string = record.get(key)
        if isinstance(string, str):
            return string
    return None


def _width_in(unit: Offsets, character: str) -> int:
    """Return the number of units that a character takes."""
    if unit == "utf-16":
        return 2 if ord(character) > 0xFFFF else 1
    if unit == "bytes":
        # Half a surrogate pair is refused elsewhere; here it only needs a count.
        return len(character.encode("utf-8", "surrogatepass"))
    return 1


def _converted(spans: Sequence[Span], text: str, unit: Offsets) -> list[Span]:
    """Return spans that count a unit as spans in characters.

    Raises
    ------
    InputError
        If a span begins or ends inside a character.
    """
    character_at = {0: 0}  # offset in units -> offset in characters
    n_units = 0
    for n_characters, character in enumerate(text, start=1):
        n_units += _width_in(unit, character)
        character_at[n_units] = n_characters

    converted = []
    for span in spans:
        if span.start not in character_at or span.end not in character_at:
            raise bad_field(
                "spans",
                f"begin or end inside of a character, or behind the text, in {unit}",
                fix="give the right --offsets",
            )
        converted.append(
            replace(span, start=character_at[span.start], end=character_at[span.end])
        )
    return converted


def _would_fit(spans: Sequence[Span], text: str, unit: Offsets) -> bool:
    """Return whether the spans cut no word if they count this unit."""
    try:
        return not _cuts_a_word(_converted(spans, text, unit), text)
    except InputError:
        return False


def _strings_fit(
    spans: Sequence[Span],
    annotated_strings: Sequence[str | None],
    text: str,
    unit: Offsets,
) -> bool:
    """Return whether the annotated strings stand at the places of their spans."""
    try:
        converted = _converted(spans, text, unit)
    except InputError:
        return False

    # Tools strip blanks, and some compose letters with their accents.
    for span, string in zip(converted, annotated_strings, strict=True):
        if string is None:
            continue
        if _comparable(text[span.start : span.end]) != _comparable(string):
            return False
    return True


def _comparable(text: str) -> str:
    """Return a text for comparison: without outer blanks, with composed letters."""
    return unicodedata.normalize("NFC", text).strip()


def _cuts_a_word(spans: Sequence[Span], text: str) -> bool:
    """Return whether a span begins or ends between two letters or digits."""
    for span in spans:
        for edge in (span.start, span.end):
            has_both_sides = 0 < edge < len(text)
            both = text[edge - 1 : edge + 1]  # the characters before and behind
            if has_both_sides and both.isalnum():
                return True
    return False
