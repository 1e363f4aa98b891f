"""Which characters of a text belong to an identifier, annotated there or not.

Audits leave identifiers out of controls and of plain text, and training corrects them,
so both ask here. An identifier is often annotated in one row and stands in others,
where nobody marked it: such a row is no plain text, and must not be shown as such.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Protocol

from spark_audit.data.examples import Example, Split
from spark_audit.data.pii import find_identifiers
from spark_audit.errors import InputError

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
    return text.casefold()


class AnnotatedSpan(Protocol):
    """Characters ``start:end`` of a row that are an identifier of some type."""

    @property
    def start(self) -> int:
        """The first character."""

    @property
    def end(self) -> int:
        """The first character behind it."""

    @property
    def type(self) -> str:
        """Its type, such as ``NAME``."""


class AnnotatedRow(Protocol):
    """A row of data or of a manifest, with the identifiers that are marked in it."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def text(self) -> str:
        """Prompt and response."""

    @property
    def split(self) -> str:
        """``train`` or ``test``."""

    @property
    def source_id(self) -> str:
        """The person or source that it is of."""

    @property
    def spans(self) -> Sequence[AnnotatedSpan]:
        """What is marked in it."""


def string_of(row: AnnotatedRow, span: AnnotatedSpan) -> str:
    """An identifier as identifiers are compared: but for case and blanks around it."""
    return folded(row.text[span.start : span.end].strip())


def dose_group(dose: int) -> str:
    """Name of the group of a dose from 1 on: ``1``, ``2-3``, ... ``16+``."""
    place = bisect_right(DOSES, dose)
    low = DOSES[place - 1]
    if place == len(DOSES):
        return f"{low}+"
    high = DOSES[place] - 1
    return str(low) if low == high else f"{low}-{high}"


_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


def finder(strings: Collection[str]) -> Callable[[str], set[str]]:
    """A function that gives which of some identifiers stand in a text, as whole words.

    Unlike :func:`repeats`, which looks for the identifiers of a text in that text: in
    other people's rows "Ann" is not meant by "planned". Identifiers and texts are as
    :func:`folded` gives them.
    """
    lengths: dict[str, tuple[int, ...]] = {}
    for string in strings:
        if first := _WORD_OR_MARK.match(string):
            lengths[first[0]] = tuple({*lengths.get(first[0], ()), len(string)})

    def held(text: str) -> Iterator[str]:
        for word in _WORD_OR_MARK.finditer(text):
            for length in lengths.get(word[0], ()):
                end = word.start() + length
                string, behind = text[word.start() : end], text[end : end + 1]
                cut = string[-1].isalnum() and behind.isalnum()
                if string in strings and not cut:
                    yield string

    return lambda text: set(held(text))


def doses(
    rows: Iterable[AnnotatedRow],
    known: Collection[str] | None = None,
    *,
    fed_texts: Mapping[str, tuple[int, int]] | None = None,
) -> Counter[str]:
    """In how many trained rows each identifier stands, annotated there or not.

    Text that training cut off does not count: nothing was trained on it.

    Parameters
    ----------
    rows
        Of data or a manifest, of either split.
    known
        All identifiers, if they are known: then no row is kept.
    fed_texts
        Row id -> the characters that training read, of rows that it cut; by default as
        rows of a manifest say.
    """
    if known is None:
        rows = rows if isinstance(rows, Sequence) else [*rows]
        known = {string_of(row, span) for row in rows for span in row.spans}
    find, found = finder(known), Counter[str]()
    for row in rows:
        if row.split == "train":
            text, annotated = _read_by_training(row, fed_texts)
            found.update(find(folded(text)).union(annotated) - {""})
    return found


def cut_off_strings(
    rows: Sequence[AnnotatedRow],
    counts: Mapping[str, int],
    *,
    fed_texts: Mapping[str, tuple[int, int]] | None = None,
) -> set[str]:
    """Identifiers that trained rows hold only in text that training cut off.

    They were never trained on, and are not held out either: whoever built the training
    rows had them.

    Parameters
    ----------
    rows
        Of data or a manifest, of either split.
    counts
        What :func:`doses` gives of the same rows.
    fed_texts
        As for :func:`doses`.
    """
    cut_rows = [
        row
        for row in rows
        if row.split == "train" and fed_text_of(row, fed_texts) != (0, len(row.text))
    ]
    if not cut_rows:
        return set()
    known = {string_of(row, span) for row in rows for span in row.spans} - {""}
    find = finder(known)
    found = set[str]()
    for row in cut_rows:
        found |= find(folded(row.text))
        found |= {string_of(row, span) for span in row.spans}
    return {string for string in found - {""} if not counts.get(string, 0)}


def fed_text_of(
    row: AnnotatedRow, fed_texts: Mapping[str, tuple[int, int]] | None = None
) -> tuple[int, int]:
    """Return the characters of a row that training read; all where nothing is known.

    Parameters
    ----------
    row
        Of data or a manifest.
    fed_texts
        As for :func:`doses`.
    """
    if fed_texts is not None:
        return fed_texts.get(row.id, (0, len(row.text)))
    fed_text = getattr(getattr(row, "training_input", None), "fed_text", None)
    if fed_text is None or not row.text:
        return 0, len(row.text)
    start, end = fed_text
    return start, end


def _read_by_training(
    row: AnnotatedRow, fed_texts: Mapping[str, tuple[int, int]] | None
) -> tuple[str, set[str]]:
    """The text of a row that training read, and the identifiers annotated in it."""
    start, end = fed_text_of(row, fed_texts)
    annotated = {
        string_of(row, span)
        for span in row.spans
        if start <= span.start and span.end <= end
    }
    # A word of which a part was cut off was not read.
    while start < end and is_inside_word(row.text, start):
        start += 1
    while start < end and is_inside_word(row.text, end):
        end -= 1
    return row.text[start:end], annotated


def is_inside_word(text: str, border: int) -> bool:
    """Whether letters or digits stand on both sides of a border."""
    beside = text[max(border - 1, 0) : border + 1]
    return 0 < border < len(text) and beside.isalnum()


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
    wanted = {folded(text[start:end].strip()) for start, end in places}
    return [(start, end) for start, end, _ in found_in(text, sorted(wanted - {""}))]


def found_in(text: str, strings: Iterable[str]) -> Iterator[tuple[int, int, str]]:
    """Where strings stand in a text, as :func:`folded` gives them, and which it is."""
    plain = folded(text)
    origin: Sequence[int] = range(len(text))
    if len(plain) > len(text):  # some characters fold to several
        origin = [i for i, char in enumerate(text) for _ in folded(char)]
    for string in strings:
        at = plain.find(string)
        while at >= 0:
            end = at + len(string)
            beside = plain[max(at - 1, 0) : at] + plain[end : end + 1]
            if len(string) >= SHORT or not any(map(str.isalnum, beside)):
                yield origin[at], origin[end - 1] + 1, string
            at = plain.find(string, at + 1)


def annotated_strings(examples: Iterable[AnnotatedRow]) -> dict[str, str]:
    """The annotated strings of examples, canaries' among them, folded -> their type."""
    types: dict[str, str] = {}
    for example in examples:
        for span in example.spans:
            types.setdefault(string_of(example, span), span.type)
    types.pop("", None)
    return types


def without_identifiers(
    examples: Sequence[Example],
    *,
    splits: Sequence[Split] = ("train",),
    audited: Collection[AnnotatedRow] = (),
    where: str = "--data",
) -> tuple[list[Example], dict[str, int]]:
    """The rows that hold no identifier, and how many others there are, and why.

    A row is left out if it holds a canary (``canary``), an annotated span
    (``annotated``), anything that the rules find (``rules``), or a string that is
    annotated in another row of either split (``elsewhere``). A row with a blank
    response (``blank``) cannot be trained on. Of ``audited`` rows neither their text
    nor another row of their source is kept (``audited``): whoever trains on the
    held-out rows of a comparison spoils it. They are examples, of data or a manifest.

    Raises
    ------
    InputError
        If none is left, naming the option ``where``.
    """
    annotated = annotated_strings([*examples, *audited])
    texts = {row.text for row in audited}
    sources = {row.source_id for row in audited}
    reasons: dict[str, Callable[[Example], object]] = {
        "audited": lambda row: row.text in texts or row.source_id in sources,
        "canary": lambda row: row.canary is not None,
        "annotated": lambda row: row.spans,
        "rules": identifier_ranges,
        "elsewhere": lambda row: next(found_in(row.text, annotated), None),
        "blank": lambda row: not row.response.strip(),
    }
    if not audited:
        del reasons["audited"]
    kept, left_out = [], dict.fromkeys(reasons, 0)
    for example in examples:
        if example.split in splits:
            why = next((n for n, holds in reasons.items() if holds(example)), None)
            if why is None:
                kept.append(example)
            else:
                left_out[why] += 1
    if not kept:
        listed = ", ".join(f"{name} {n}" for name, n in left_out.items() if n)
        kind = "train row" if "test" not in splits else "row"
        # Rows of other data may bear the ids of sources that are audited.
        own = ", with other texts and source ids" * bool(left_out.get("audited"))
        raise InputError(
            f"has no {kind} without an identifier (left out: {listed or 'none'})",
            where=where,
            fix=f"give rows from before injection, or of another task{own}",
        )
    return kept, left_out
