"""Find the characters of a text that belong to an identifier, annotated or not.

Audits keep identifiers out of controls and plain text, and training corrects them, so
both use this module. An identifier is often annotated in one row and also stands in
other rows without an annotation. Such a row is not plain text, and must not be shown as
plain text.

There are two searches. :func:`repeat_ranges` finds where a text repeats its own
identifiers, even inside a word. :func:`finder` finds the identifiers of other rows, as
whole words only. Both compare strings that :func:`folded` made equal in case.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import NamedTuple, Protocol

from spark_audit.data.examples import Example, Split
from spark_audit.data.pii import find_identifiers
from spark_audit.errors import InputError

SHORT_BELOW = 3
"""An identifier of fewer characters is short: its repeats count only as whole words
**[ours]**."""

LOWEST_DOSES = (1, 2, 4, 8, 16)
"""Lowest dose of each group of doses. A dose is the number of trained rows that hold a
string."""

_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


def identifier_ranges(example: Example) -> list[tuple[int, int]]:
    """Return the character ranges of an example's known identifiers.

    They are its annotated spans, every repeat of their strings
    (:func:`repeat_ranges`) and the further matches of the rules **[ours]**: an
    identifier without an annotation is not plain text either. The ranges are unordered
    and may overlap.
    """
    annotated = [(span.start, span.end) for span in example.spans]
    by_rules = [(span.start, span.end) for span in find_identifiers(example.text)]
    return [*annotated, *repeat_ranges(example.text, annotated), *by_rules]


def folded(text: str) -> str:
    """Return a text without case, so that two spellings of an identifier are equal."""
    return text.casefold()


class AnnotatedSpan(Protocol):
    """A span of characters ``start:end`` in a row that is an identifier of a type."""

    @property
    def start(self) -> int:
        """Return the first character."""

    @property
    def end(self) -> int:
        """Return the position behind the last character."""

    @property
    def type(self) -> str:
        """Return the type, such as ``NAME``."""


class AnnotatedRow(Protocol):
    """A row of data or of a manifest, with the identifiers annotated in it."""

    @property
    def id(self) -> str:
        """Return the id of the row."""

    @property
    def text(self) -> str:
        """Return prompt and response as one text."""

    @property
    def split(self) -> str:
        """Return ``train`` or ``test``."""

    @property
    def source_id(self) -> str:
        """Return the person or source of the row."""

    @property
    def spans(self) -> Sequence[AnnotatedSpan]:
        """Return the annotated identifiers."""


def string_of(row: AnnotatedRow, span: AnnotatedSpan) -> str:
    """Return an identifier in its form for comparison: no case, no outer blanks."""
    return folded(row.text[span.start : span.end].strip())


def dose_group(dose: int) -> str:
    """Return the group of a dose of 1 or more: ``1``, ``2-3``, ... ``16+``."""
    next_group = bisect_right(LOWEST_DOSES, dose)
    low = LOWEST_DOSES[next_group - 1]
    if next_group == len(LOWEST_DOSES):
        return f"{low}+"

    high = LOWEST_DOSES[next_group] - 1
    return str(low) if low == high else f"{low}-{high}"


def finder(strings: Collection[str]) -> Callable[[str], set[str]]:
    """Return a function that finds the identifiers in a text, as whole words.

    In other people's rows, "planned" does not mean "Ann".

    Parameters
    ----------
    strings
        Identifiers as :func:`string_of` returns them. The texts that the function gets
        must be folded, too.
    """
    # A search of every text for every identifier would take hours. So at each word of a
    # text only the identifiers that begin with this word are tried.
    lengths_by_first_word: dict[str, set[int]] = defaultdict(set)
    for string in strings:
        first_word = _WORD_OR_MARK.match(string)
        if first_word is not None:
            lengths_by_first_word[first_word[0]].add(len(string))

    def find(text: str) -> set[str]:
        strings_in_text: set[str] = set()
        for word in _WORD_OR_MARK.finditer(text):
            start = word.start()
            for length in lengths_by_first_word.get(word[0], ()):
                end = start + length
                string = text[start:end]
                behind = text[end : end + 1]
                ends_inside_word = string[-1].isalnum() and behind.isalnum()
                if string in strings and not ends_inside_word:
                    strings_in_text.add(string)
        return strings_in_text

    return find


def doses(
    rows: Iterable[AnnotatedRow],
    known: Collection[str] | None = None,
    *,
    fed_texts: Mapping[str, tuple[int, int]] | None = None,
) -> Counter[str]:
    """Count the trained rows that hold each identifier, annotated there or not.

    Text that training cut off does not count: nothing was trained on it.

    Parameters
    ----------
    rows
        Rows of data or of a manifest, of either split.
    known
        All identifiers, as :func:`string_of` returns them, if the caller has them: then
        ``rows`` is read only once. ``None``: those that are annotated in ``rows``.
    fed_texts
        Row id -> characters that training read, for rows that it cut. By default the
        rows of a manifest tell them.

    Returns
    -------
    Counter
        Identifier -> number of trained rows that hold it, its dose.
    """
    if known is None:
        # The rows are read twice. A manifest is a sequence that makes its rows on
        # demand: a list would keep all of them in memory.
        rows = rows if isinstance(rows, Sequence) else list(rows)
        known = _all_strings(rows)

    find = finder(known)
    n_rows_by_string = Counter[str]()
    for row in rows:
        if row.split == "train":
            # Each string counts once a row, however often the row repeats it.
            text_read = _read_by_training(row, fed_texts)
            strings = find(folded(text_read.text)) | text_read.annotated
            n_rows_by_string.update(strings - {""})
    return n_rows_by_string


def _all_strings(rows: Iterable[AnnotatedRow]) -> set[str]:
    """Return the strings that are annotated in any row."""
    strings: set[str] = set()
    for row in rows:
        strings.update(string_of(row, span) for span in row.spans)
    return strings


def cut_off_strings(
    rows: Sequence[AnnotatedRow],
    counts: Mapping[str, int],
    *,
    fed_texts: Mapping[str, tuple[int, int]] | None = None,
) -> set[str]:
    """Return the identifiers of trained rows that stand only in text that was cut off.

    They were never trained on. They are not held out either, because the authors of the
    training rows had them.

    Parameters
    ----------
    rows
        Rows of data or of a manifest, of either split.
    counts
        The result of :func:`doses` for the same rows.
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

    find = finder(_all_strings(rows) - {""})
    strings_of_cut_rows = _all_strings(cut_rows)
    for row in cut_rows:
        strings_of_cut_rows |= find(folded(row.text))
    return {
        string for string in strings_of_cut_rows - {""} if not counts.get(string, 0)
    }


def fed_text_of(
    row: AnnotatedRow, fed_texts: Mapping[str, tuple[int, int]] | None = None
) -> tuple[int, int]:
    """Return the characters of a row that training read; all of them if it is unknown.

    Parameters
    ----------
    row
        A row of data or of a manifest.
    fed_texts
        As for :func:`doses`.
    """
    if fed_texts is not None:
        return fed_texts.get(row.id, (0, len(row.text)))

    # Only a manifest's rows have it, and in a redacted manifest rows have no text.
    fed_text = getattr(getattr(row, "training_input", None), "fed_text", None)
    if fed_text is None or not row.text:
        return 0, len(row.text)
    start, end = fed_text
    return start, end


class _ReadText(NamedTuple):
    """The text of a row that training read, with the identifiers annotated in it.

    ``annotated`` are strings as :func:`string_of` returns them.
    """

    text: str
    annotated: set[str]


def _read_by_training(
    row: AnnotatedRow, fed_texts: Mapping[str, tuple[int, int]] | None
) -> _ReadText:
    """Return the text of a row that training read, and its annotated identifiers."""
    start, end = fed_text_of(row, fed_texts)
    annotated = {
        string_of(row, span)
        for span in row.spans
        if start <= span.start and span.end <= end
    }

    # A word of which a part was cut off does not count as read.
    while start < end and is_inside_word(row.text, start):
        start += 1
    while start < end and is_inside_word(row.text, end):
        end -= 1
    return _ReadText(row.text[start:end], annotated)


def is_inside_word(text: str, border: int) -> bool:
    """Return whether letters or digits stand on both sides of a position."""
    both_sides = text[max(border - 1, 0) : border + 1]
    return 0 < border < len(text) and both_sides.isalnum()


def repeat_ranges(
    text: str, known_ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return every range of a text that repeats one of some strings, in any case.

    Parameters
    ----------
    text
        Any text.
    known_ranges
        Character ranges of the strings to look for.

    Returns
    -------
    list of tuple
        Character ranges. They include the given ones, without blanks at their edges. A
        string of fewer than :data:`SHORT_BELOW` characters counts only as a whole word.
    """
    strings = {folded(text[start:end].strip()) for start, end in known_ranges}
    found = string_ranges(text, sorted(strings - {""}))
    return [(start, end) for start, end, _ in found]


def string_ranges(text: str, strings: Iterable[str]) -> Iterator[tuple[int, int, str]]:
    """Yield ``(start, end, string)`` of each place of a string in a text, in any case.

    Parameters
    ----------
    text
        Any text, not folded; the ranges are in its characters.
    strings
        Strings as :func:`folded` returns them. One of fewer than :data:`SHORT_BELOW`
        characters counts only as a whole word.
    """
    folded_text = folded(text)
    # Some characters fold to several, which shifts the positions behind them.
    origin: Sequence[int] = range(len(text))  # folded position -> position in the text
    if len(folded_text) > len(text):
        origin = _origins_of_folded(text)

    for string in strings:
        start = folded_text.find(string)
        while start >= 0:
            end = start + len(string)
            before = folded_text[max(start - 1, 0) : start]
            behind = folded_text[end : end + 1]
            is_word = not (before.isalnum() or behind.isalnum())
            if len(string) >= SHORT_BELOW or is_word:
                yield origin[start], origin[end - 1] + 1, string
            start = folded_text.find(string, start + 1)


def _origins_of_folded(text: str) -> list[int]:
    """Return the original position of each character of a folded text."""
    origins: list[int] = []
    for i, character in enumerate(text):
        origins.extend([i] * len(folded(character)))
    return origins


def annotated_strings(examples: Iterable[AnnotatedRow]) -> dict[str, str]:
    """Return the type of each annotated string (:func:`string_of`), also of canaries.

    A string with several types gets the first one.
    """
    type_of_string: dict[str, str] = {}
    for example in examples:
        for span in example.spans:
            type_of_string.setdefault(string_of(example, span), span.type)
    type_of_string.pop("", None)
    return type_of_string


def without_identifiers(
    examples: Sequence[Example],
    *,
    splits: Sequence[Split] = ("train",),
    audited: Collection[AnnotatedRow] = (),
    where: str = "--data",
) -> tuple[list[Example], dict[str, int]]:
    """Return the rows without identifiers, and the number of other rows by reason.

    A row is left out if it holds a canary (``canary``), an annotated span
    (``annotated``), a match of the rules (``rules``), or a string that is annotated in
    another row of either split (``elsewhere``). A row with a blank response (``blank``)
    cannot be trained on. Rows with the text or the source of an ``audited`` row, an
    example of data or of a manifest, are left out, too (``audited``): training on the
    held-out rows of a comparison would spoil it.

    Raises
    ------
    InputError
        If no row is left. The error names the option ``where``.
    """
    strings = annotated_strings([*examples, *audited])
    audited_texts = {row.text for row in audited}
    audited_sources = {row.source_id for row in audited}

    # Reasons are tried in this order, and the first that holds is counted. A further
    # reason is added here and to the docstring.
    reasons: dict[str, Callable[[Example], bool]] = {
        "audited": lambda row: (
            row.text in audited_texts or row.source_id in audited_sources
        ),
        "canary": lambda row: row.canary is not None,
        "annotated": lambda row: bool(row.spans),
        "rules": lambda row: bool(identifier_ranges(row)),
        "elsewhere": lambda row: any(True for _ in string_ranges(row.text, strings)),
        "blank": lambda row: not row.response.strip(),
    }
    if not audited:
        del reasons["audited"]

    clean_rows = []
    n_by_reason = dict.fromkeys(reasons, 0)
    for example in examples:
        if example.split not in splits:
            continue
        for reason, holds in reasons.items():
            if holds(example):
                n_by_reason[reason] += 1
                break
        else:
            clean_rows.append(example)

    if not clean_rows:
        raise _no_clean_row(splits, n_by_reason, where)
    return clean_rows, n_by_reason


def _no_clean_row(
    splits: Sequence[Split], n_by_reason: Mapping[str, int], where: str
) -> InputError:
    """Return the error of data in which every row holds an identifier."""
    counts = [f"{reason} {n}" for reason, n in n_by_reason.items() if n] or ["none"]
    rows = "row" if "test" in splits else "train row"
    advice = "give rows from before injection, or of another task"
    if n_by_reason.get("audited"):
        # Other data may use the same source ids as the audited rows.
        advice += ", with other texts and source ids"
    return InputError(
        f"has no {rows} without an identifier (left out: {', '.join(counts)})",
        where=where,
        fix=advice,
    )
