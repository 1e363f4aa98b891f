"""What a redaction of trained rows left over.

Placeholders show that rows were redacted (:mod:`spark_audit.data.redaction_rests`).
Without any placeholder and mask nothing is looked for. Otherwise these are left over:

- placeholders that letters or digits touch, as in ``[NAME]@a.org``;
- identifiers that are masked in part, as in ``j***@a.org``;
- fragments: in a redacted row, a part of an identifier that is annotated elsewhere;
- identifiers in clear of a source of whose rows another one has a placeholder of the
  same kind.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_audit.data.occurrences import annotated_strings, folded, string_of
from spark_audit.data.redaction_rests import masked_rests, placeholders
from spark_audit.planning.rows import PlannedRow

MIN_FRAGMENT = 4
"""Fewest letters of a fragment."""

MIN_DIGITS_OF_FRAGMENT = 6
"""Fewest digits of a fragment; shorter numbers stand anywhere."""

MAX_SHARE_OF_FRAGMENT = 0.01
"""Share of trained rows: a word in more of them identifies nobody."""

MIN_ROWS_OF_COMMON_WORD = 3
"""In a few rows, a word is no common one, whatever their share."""

KINDS_OF_TYPES: Mapping[str, str] = {
    "PERSON": "NAME",
    "PER": "NAME",
    "FIRSTNAME": "NAME",
    "GIVENNAME": "NAME",
    "MIDDLENAME": "NAME",
    "LASTNAME": "NAME",
    "SURNAME": "NAME",
    "DOCTOR": "NAME",
    "PATIENT": "NAME",
    "MAIL": "EMAIL",
    "PHONENUMBER": "PHONE",
    "TEL": "PHONE",
    "TELEPHONE": "PHONE",
    "MOBILE": "PHONE",
    "CREDIT": "CREDIT_CARD",
    "CARD": "CREDIT_CARD",
    "STREET": "ADDRESS",
    "LOCATION": "ADDRESS",
    "LOC": "ADDRESS",
}
"""Kind of a placeholder -> our type of identifiers, where the two differ."""

_WORD_OR_NUMBER = re.compile(r"[^\W_]+")


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What a redaction left over in trained rows.

    Attributes
    ----------
    n_redacted_rows
        Trained rows with a placeholder or a mask.
    placeholders
        Kind of placeholder -> how many there are.
    n_rests
        Placeholders that letters or digits touch.
    n_masked
        Identifiers that are masked in part.
    n_fragments, n_fragment_rows
        Fragments of identifiers in redacted rows, and the rows that hold one.
    n_still_held, n_sources
        Identifiers that still stand in clear in a row of a source of which another row
        has a placeholder of their kind, and these sources.
    first_rows
        Numbers of the first rows with a rest, a mask, a fragment and an identifier in
        clear, by the name of the count; rows without any are left out.
    """

    n_redacted_rows: int
    placeholders: Mapping[str, int]
    n_rests: int
    n_masked: int
    n_fragments: int
    n_fragment_rows: int
    n_still_held: int
    n_sources: int
    first_rows: Mapping[str, int]

    @property
    def n_left(self) -> int:
        """Return how many things are left over."""
        return self.n_rests + self.n_masked + self.n_fragments + self.n_still_held


def leftovers(rows: Sequence[PlannedRow]) -> Leftovers | None:
    """Return what a redaction left over; ``None``: no row was redacted.

    A manifest without text has no redacted row.
    """
    trained = [row for row in rows if row.is_trained and row.canary_id is None]
    type_of = annotated_strings(row for row in rows if row.canary_id is None)
    types = {*type_of.values()}

    n_by_kind: Counter[str] = Counter()
    n_rests = 0
    n_masked = 0
    first_rows: dict[str, int] = {}
    redacted: list[PlannedRow] = []
    kinds_by_source: dict[str, set[str]] = defaultdict(set)
    for row in trained:
        in_row = [*placeholders(row.text, types)]
        masked = _masked_beside(row.text, [(p.start, p.end) for p in in_row])
        if not in_row and not masked:
            continue

        redacted.append(row)
        n_masked += len(masked)
        if masked:
            first_rows.setdefault("masked", row.number)
        for placeholder in in_row:
            n_by_kind[placeholder.kind] += 1
            n_rests += placeholder.has_rest
            if placeholder.has_rest:
                first_rows.setdefault("rests", row.number)
            type = KINDS_OF_TYPES.get(placeholder.kind, placeholder.kind)
            kinds_by_source[row.source_id].add(type)

    if not redacted:
        return None

    fragment_rows = [*_rows_with_fragments(redacted, trained, type_of)]
    if fragment_rows:
        first_rows["fragments"] = fragment_rows[0][0].number
    held = [*_still_held(trained, kinds_by_source)]
    if held:
        first_rows["still_held"] = held[0].number
    return Leftovers(
        n_redacted_rows=len(redacted),
        placeholders=dict(sorted(n_by_kind.items())),
        n_rests=n_rests,
        n_masked=n_masked,
        n_fragments=sum(n_fragments for _, n_fragments in fragment_rows),
        n_fragment_rows=len(fragment_rows),
        n_still_held=len(held),
        n_sources=len({row.source_id for row in held}),
        first_rows=first_rows,
    )


def _masked_beside(
    text: str, placeholder_ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the ranges of masked identifiers that overlap no placeholder."""
    ranges = []
    for start, end in masked_rests(text):
        if not any(
            start < p_end and p_start < end for p_start, p_end in placeholder_ranges
        ):
            ranges.append((start, end))
    return ranges


def _rows_with_fragments(
    redacted: Sequence[PlannedRow],
    trained: Sequence[PlannedRow],
    type_of: Mapping[str, str],
) -> Iterator[tuple[PlannedRow, int]]:
    """Yield the redacted rows that hold fragments, and how many.

    Parameters
    ----------
    redacted, trained
        The redacted rows, and all trained ones.
    type_of
        Type of each string that is annotated in any row.
    """
    fragments = _rare({*_fragments_of(type_of)}, trained)
    if not fragments:
        return

    for row in redacted:
        # Annotated identifiers stand in clear as a whole, which is another matter.
        in_clear = [(span.start, span.end) for span in row.spans]
        n_fragments = 0
        for match in _WORD_OR_NUMBER.finditer(row.text):
            start, end = match.span()
            is_annotated = any(s <= start and end <= e for s, e in in_clear)
            # A name is written with a capital: "may" and "young" are words.
            is_word = match[0].isalpha() and match[0].islower()
            if not is_annotated and not is_word and folded(match[0]) in fragments:
                n_fragments += 1
        if n_fragments:
            yield row, n_fragments


def _fragments_of(type_of: Mapping[str, str]) -> Iterator[str]:
    """Yield words that are parts of annotated identifiers and might remain alone.

    They are words of names and of the local part of e-mail addresses, and long numbers.
    """
    for string, type in type_of.items():
        if type in ("NAME", "EMAIL"):
            own_part = string.partition("@")[0]
            words = _WORD_OR_NUMBER.findall(own_part)
            for word in words:
                # A whole name of one word is no fragment.
                is_part = len(words) > 1 or own_part != string
                if is_part and len(word) >= MIN_FRAGMENT and not word.isdigit():
                    yield word
        else:
            words = _WORD_OR_NUMBER.findall(string)
            for word in words:
                if len(words) > 1 and word.isdigit():
                    if len(word) >= MIN_DIGITS_OF_FRAGMENT:
                        yield word


def _rare(words: set[str], trained: Sequence[PlannedRow]) -> set[str]:
    """Return the words that stand in small letters nowhere, and in few rows.

    Others are words of the language, which a name may share.
    """
    if not words:
        return words

    n_rows_by_word: Counter[str] = Counter()
    common: set[str] = set()
    for row in trained:
        words_of_row = {*_WORD_OR_NUMBER.findall(row.text)}
        for word in words_of_row:
            form = folded(word)
            if form in words:
                n_rows_by_word[form] += 1
                if word.islower() and word.isalpha():
                    common.add(form)

    most_rows = max(MIN_ROWS_OF_COMMON_WORD, MAX_SHARE_OF_FRAGMENT * len(trained))
    common.update(word for word, n in n_rows_by_word.items() if n > most_rows)
    return words - common


def _still_held(
    trained: Iterable[PlannedRow], kinds_by_source: Mapping[str, set[str]]
) -> Iterator[PlannedRow]:
    """Yield the row of each identifier in clear whose source has its placeholder."""
    for row in trained:
        kinds = kinds_by_source.get(row.source_id, set())
        for span in row.personal_spans:
            if span.type in kinds and string_of(row, span):
                yield row
