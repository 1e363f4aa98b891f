"""Annotations of other tools: their names of types, their keys, their units.

JavaScript and Java count UTF-16 units, C and Rust bytes. Behind an emoji or an umlaut
such a span begins too late: it is converted where the row holds the annotated string,
and refused where it only looks so.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

from spark_audit.data.examples import PII_TYPES, Span, bad_field, spans_field
from spark_audit.errors import InputError
from spark_audit.json_values import JsonObject

Offsets = Literal["characters", "utf-16", "bytes"]
OFFSET_UNITS: tuple[Offsets, ...] = ("characters", "utf-16", "bytes")

TYPE_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("PERSON", "PER", "PERSON_NAME", "FULL_NAME", "FULLNAME"), "NAME"),
    **dict.fromkeys(("EMAIL_ADDRESS", "EMAILADDRESS", "E_MAIL", "MAIL"), "EMAIL"),
    **dict.fromkeys(("PHONE_NUMBER", "PHONENUMBER", "TELEPHONE", "TEL"), "PHONE"),
    **dict.fromkeys(("US_SSN", "SOCIAL_SECURITY_NUMBER", "SOCIALNUMBER"), "SSN"),
    **dict.fromkeys(("CREDITCARD", "CREDIT_CARD_NUMBER", "CC_NUMBER"), "CREDIT_CARD"),
    **dict.fromkeys(("STREET_ADDRESS", "POSTAL_ADDRESS"), "ADDRESS"),
}
"""Names of types that other tools use, and ours."""
_TYPE_KEYS = ("type", "entity_type", "entity_group", "label", "entity")
_TEXT_KEYS = ("text", "value", "word")
_UNUSED_KEYS = ("score", "confidence", "analysis_explanation", "recognition_metadata")

Measure: TypeAlias = Callable[[str], int]
_MEASURES: Mapping[Offsets, Measure] = {
    "characters": lambda character: 1,
    "utf-16": lambda character: 2 if ord(character) > 0xFFFF else 1,
    "bytes": lambda character: len(character.encode("utf-8", "surrogatepass")),
}


class SpanReader:
    """Reads the field ``spans`` of rows.

    Parameters
    ----------
    offsets
        What the spans count; ``None``: characters, unless a row shows otherwise.

    Attributes
    ----------
    renamed
        How many spans have a type of another tool's name, by both names.
    converted
        How many spans were converted, by their unit.
    """

    def __init__(self, offsets: Offsets | None) -> None:
        self._offsets = offsets
        self.renamed: Counter[tuple[str, str]] = Counter()
        self.converted: Counter[Offsets] = Counter()

    def read(self, row: JsonObject, text: str) -> tuple[Span, ...]:
        """Return the spans of a row in characters of the text that they are of.

        Raises
        ------
        InputError
            If they do not fit the text, or seem to count another unit.
        """
        records = row.get("spans")
        if not isinstance(records, list):
            return spans_field(row)
        strings = [_annotated_string(record) for record in records]
        plain = [self._plain(record) for record in records]
        spans = spans_field({"spans": plain})
        if not spans:
            return ()
        unit = self._unit(spans, strings, text)
        if unit == "characters":
            return spans
        self.converted[unit] += len(spans)
        return tuple(_converted(spans, text, unit))

    def _plain(self, record: object) -> object:
        """Return a span with our keys and our name of its type."""
        if isinstance(record, list | tuple) and len(record) == 3:
            record = dict(zip(("start", "end", "type"), record, strict=True))
        if not isinstance(record, dict):
            return record
        found = {k: v for k, v in record.items() if k not in _UNUSED_KEYS}
        for key in _TEXT_KEYS:
            found.pop(key, None)
        for key in _TYPE_KEYS:
            if "type" not in found and key in found:
                found["type"] = found.pop(key)
        name = found.get("type")
        if isinstance(name, str):
            upper = name.upper()
            known = TYPE_NAMES.get(upper, upper if upper in PII_TYPES else name)
            if known != name:
                self.renamed[name, known] += 1
                found["type"] = known
        return found

    def _unit(
        self, spans: Sequence[Span], strings: Sequence[str | None], text: str
    ) -> Offsets:
        if self._offsets is not None:
            return self._offsets
        if text.isascii():
            return "characters"

        fitting = [
            unit for unit in OFFSET_UNITS if _strings_fit(spans, strings, text, unit)
        ]
        if any(string is not None for string in strings):
            if not fitting:
                what = "are not where the annotated strings stand"
                raise bad_field("spans", what, fix="annotate the row again")
            return fitting[0]

        if not _cuts_a_word(spans, text):
            return "characters"
        for unit in OFFSET_UNITS[1:]:
            try:
                moved = _converted(spans, text, unit)
            except InputError:
                continue
            if not _cuts_a_word(moved, text):
                what = f"cut words, and would not if they counted {unit} units"
                fix = (
                    f"give --offsets {unit}, or --offsets characters if they are right"
                )
                raise bad_field("spans", what.replace("bytes units", "bytes"), fix=fix)
        return "characters"


def looks_annotated(value: object) -> bool:
    """Whether a column holds places in a text: records of a start and an end."""
    if not isinstance(value, list) or not value:
        return False
    for record in value:
        if isinstance(record, list | tuple) and len(record) == 3:
            edges = tuple(record[:2])
        elif isinstance(record, dict):
            edges = (record.get("start"), record.get("end"))
        else:
            return False
        if not all(type(edge) is int for edge in edges):
            return False
    return True


def _annotated_string(record: object) -> str | None:
    if isinstance(record, dict):
        for key in _TEXT_KEYS:
            if isinstance(record.get(key), str):
                return str(record[key])
    return None


def _converted(spans: Sequence[Span], text: str, unit: Offsets) -> list[Span]:
    """Return spans of a unit in characters.

    Raises
    ------
    InputError
        If one begins or ends inside of a character.
    """
    measure = _MEASURES[unit]
    units = [0, *accumulate(measure(character) for character in text)]
    place = {unit_place: i for i, unit_place in enumerate(units)}
    try:
        return [
            Span(place[s.start], place[s.end], s.type, s.origin, s.part) for s in spans
        ]
    except KeyError as error:
        what = f"begin or end inside of a character, or behind the text, in {unit}"
        raise bad_field("spans", what, fix="give the right --offsets") from error


def _strings_fit(
    spans: Sequence[Span], strings: Sequence[str | None], text: str, unit: Offsets
) -> bool:
    try:
        places = _converted(spans, text, unit)
    except InputError:
        return False
    for span, string in zip(places, strings, strict=True):
        if string is not None and _bare(text[span.start : span.end]) != _bare(string):
            return False
    return True


def _bare(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _cuts_a_word(spans: Sequence[Span], text: str) -> bool:
    """Whether a span begins or ends between two letters or digits."""
    for span in spans:
        for edge in (span.start, span.end):
            if 0 < edge < len(text) and (text[edge - 1] + text[edge]).isalnum():
                return True
    return False
