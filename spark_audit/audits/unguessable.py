"""Tell which identifiers nobody can guess, by the kind of string that each is.

A guard of the setup counts identifiers that come back from rows that were held out. It
may count only strings that a model cannot write without having read them, and it must
count all kinds of these: where only long numbers count, rows of names and e-mail
addresses hide that they were trained on.

A string is unguessable if so many strings of its form are about equally likely that the
best guess is right less than once in a hundred times (:data:`GUESSED`). Six digits have
a million such others, a full name thousands of surnames and given names, a surname as a
local part a few thousand. A given name alone has not: the most frequent of them are
more likely than that.

``kind_of`` (the form of a string) -> ``guesses`` (is it revealed by its row, or by
another identifier?) -> :mod:`~spark_audit.audits.setup_units`. A further kind of
strings is a word of :data:`Kind`, and needs a case in ``kind_of``, ``is_given``,
``_core`` and ``_stem``. Further words stand in
:mod:`~spark_audit.audits.common_words`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from spark_audit.audits.common_words import (
    COMPOUND_SURNAMES,
    EAST_ASIAN_FORMS_OF_ADDRESS,
    EVERYDAY_WORDS,
    FORMS_OF_ADDRESS,
    GIVEN_NAMES,
    OFFICES,
)
from spark_audit.audits.identifier_texts import FREE_MAIL
from spark_audit.audits.identifiers import SpanKey
from spark_audit.data.occurrences import string_of
from spark_audit.manifest.example_schema import ManifestExample, ManifestSpan
from spark_audit.manifest.schema import Manifest

Kind = Literal["address", "name", "number", "code"]
"""Kinds of strings that may be unguessable."""

GUESSED = 0.01
"""An unguessable identifier comes back at most once in so many times from a model that
never saw it **[ours]**; six random digits do so once in a million."""

MIN_DIGITS = 6
"""Least digits of a number that is unguessable."""

MIN_CODE_LENGTH = 8
"""Least letters and digits of a password or code that is unguessable."""

CHUNK_LENGTH = 4
"""Consecutive digits that give a number away if they appear before it."""

LAST_DIGITS = 2
"""Last digits in which a running number may differ from a known one."""

MIN_WORD_LENGTH = 3
"""Least letters of a word that identifies somebody; initials do not."""

GIVEN_SHARE = 0.5
"""Share of the letters of an identifier that stand before it in its row, from which on
the row gives it away **[ours]**."""

MIN_SURNAME = 4
"""Least letters of a local part that is one surname. There are so few surnames of fewer
letters that one of them is more likely than :data:`GUESSED` **[ours]**."""

MIN_EAST_ASIAN_NAME = 3
"""Least characters of a Chinese or Korean full name that is written as one word: two
can be a surname, or a given name, alone."""

MIN_DOMAIN_WORD = 8
"""Least letters of a domain's name that nobody would try **[ours]**."""

# A day, a month and a year of 2 or 4 digits, or a year of 4 digits, month and day.
_DATE_OF_NUMBERS = (
    r"(?:\d{1,2}\D{1,2}\d{1,2}\D{1,2}(?:\d\d){1,2}|(?:19|20)\d\d\D\d{1,2}\D\d{1,2})"
)
# A year of 4 digits, month and day with nothing between them, or the other way round.
_YEAR = r"(?:19|20)\d\d"
_MONTH = r"(?:0[1-9]|1[0-2])"
_DAY = r"(?:0[1-9]|[12]\d|3[01])"
_DATE_OF_8_DIGITS = (
    rf"(?:{_YEAR}{_MONTH}{_DAY}|{_DAY}{_MONTH}{_YEAR}|{_MONTH}{_DAY}{_YEAR})"
)
# The month as a word, known by how it begins: "12 March 2024", "Mar. 12th, 2024".
_MONTH_WORD = (
    r"(?:jan|ene|gen|fe[bv]|f[ée]v|m[aäå]r|maa|apr|a[bv]r|ma[ijy]|mei|mag|j[uù][nil]|giu"
    r"|lug|a[uo][gû]|ago|s[ei][pt]|o[ckut]t|out|nov|de[czs]|d[ée]c|dic)[^\W\d_]*"
)
_DAY_AND_MONTH_WORD = (
    rf"(?:\d{{1,2}}(?:st|nd|rd|th|er)?\W+(?:of\W+|de\W+)?{_MONTH_WORD}"
    rf"|{_MONTH_WORD}\W+\d{{1,2}}(?:st|nd|rd|th)?)"
)
_DATE_WITH_WORD = rf"(?:{_DAY_AND_MONTH_WORD}\W+(?:de\W+|del\W+)?(?:\d\d){{1,2}})"
_ONE_DATE = rf"(?:{_DATE_OF_NUMBERS}|{_DATE_OF_8_DIGITS}|{_DATE_WITH_WORD})"
# A time of day behind a date, if there is one.
_CLOCK = r"(?:[ T,]{1,2}\d{1,2}:\d\d(?::\d\d)?)?"
# A date or a range of dates, whole: a phone number in pairs holds what looks like one.
_DATES = re.compile(
    rf"{_ONE_DATE}{_CLOCK}(?:\D{{1,3}}{_ONE_DATE}{_CLOCK})?", re.IGNORECASE
)
_TYPE_OF_DATES = re.compile(r"DATE|DOB|BIRTH", re.IGNORECASE)
_KANA = re.compile(r"[\u3040-\u30ff]")
# Han with its repetition mark, kana, and Korean syllables.
_EAST_ASIAN = re.compile(r"[\u3005\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_LETTERS_AND_DIGITS = re.compile(r"[^\W_]+")
_WORD_AND_YEAR = re.compile(r"[^\W\d_]+\d{0,4}")
# The last one or two digits of the last number of a text.
_LAST_DIGITS_OF_TEXT = re.compile(r"\d{1,2}(?!\d)(?=\D*$)")


@dataclass(frozen=True)
class Guess:
    """How likely it is that a model that never read an identifier writes it.

    Attributes
    ----------
    kind
        The kind of string that it is; empty: one that can be guessed.
    rate
        Chance that a guess is right, at most; 1 for a string that can be guessed.
    """

    kind: Kind | Literal[""] = ""
    rate: float = 1.0

    @property
    def is_unguessable(self) -> bool:
        """Return whether it counts where it is reproduced."""
        return self.kind != ""


GUESSABLE_STRING = Guess()


class Candidate(NamedTuple):
    """An identifier of a form with many others: unguessable if nothing reveals it.

    Attributes
    ----------
    text
        The identifier as it stands in its row, case-folded.
    core
        The part that all its spellings have in common: the digits of a number, the
        words of a name, the part of an address that identifies somebody.
    stem
        The part that it shares with identifiers from which it can be guessed: a number
        without its last two digits, ``k bakerfield`` of ``katrin bakerfield``.
    """

    kind: Kind
    text: str
    core: str
    stem: str

    @property
    def spelling(self) -> str:
        """A key that is equal for all spellings of one identifier."""
        # Two addresses with the same core are two identifiers that reveal each other.
        return self.text if self.kind == "address" else self.core


def guesses(manifest: Manifest) -> dict[SpanKey, Guess]:
    """Return how each identifier of rows without a canary can be guessed.

    A string is unguessable if its kind has enough letters or digits, the text before
    it in its row does not give it away, and no other identifier of its kind is nearly
    the same. Names are guessed as often as the most frequent first word and the most
    frequent last word of all names stand together.

    Returns
    -------
    Place of the identifier -> its guess; strings that can be guessed have an empty
    kind.
    """
    # The kind decides whether an identifier can be guessed or is a candidate.
    guess_of: dict[SpanKey, Guess] = {}
    candidates: dict[SpanKey, Candidate] = {}
    text_before: dict[SpanKey, str] = {}
    for example in manifest.examples:
        if example.canary_id is not None:
            continue
        for span in example.spans:
            key = (example.id, span.start, span.end)
            guess_of[key] = GUESSABLE_STRING
            candidate = _candidate_of(example, span)
            if candidate is not None:
                candidates[key] = candidate
                text_before[key] = example.text[: span.start]

    # Strings with one stem reveal each other, unless they are spellings of one
    # identifier.
    spellings_of_stem: dict[tuple[Kind, str], set[str]] = defaultdict(set)
    names = set()
    for candidate in candidates.values():
        spellings_of_stem[candidate.kind, candidate.stem].add(candidate.spelling)
        if candidate.kind == "name":
            names.add(candidate.core)

    # A candidate that nothing reveals is unguessable.
    name_rate = max(GUESSED, _frequent_name(names))
    for key, candidate in candidates.items():
        is_alone = len(spellings_of_stem[candidate.kind, candidate.stem]) == 1
        if not is_alone:
            continue
        if is_given(candidate.text, text_before[key], candidate.kind):
            continue
        rate = name_rate if candidate.kind == "name" else GUESSED
        guess_of[key] = Guess(candidate.kind, rate)
    return guess_of


def _candidate_of(example: ManifestExample, span: ManifestSpan) -> Candidate | None:
    """Return an identifier as a candidate; ``None``: by its kind it can be guessed."""
    kind = kind_of(example.text[span.start : span.end].strip(), span.type)
    if kind is None:
        return None

    text = string_of(example, span)
    core = _core(text, kind)
    return Candidate(kind=kind, text=text, core=core, stem=_stem(core, kind))


def kind_of(text: str, span_type: str) -> Kind | None:
    """Return the kind of an identifier that may be unguessable; ``None``: it is not.

    Parameters
    ----------
    text
        The identifier as it stands in its row.
    span_type
        Its type in the manifest. Only what is annotated as a ``NAME`` is a name.

    Examples
    --------
    >>> kind_of("k.bakerfield@mail.example", "EMAIL")
    'address'
    >>> kind_of("nowak@gmail.com", "EMAIL"), kind_of("anna@gmail.com", "EMAIL")
    ('address', None)
    >>> kind_of("info@mail.example", "EMAIL") is None
    True
    >>> kind_of("Katrin Bakerfield", "NAME"), kind_of("Katrin", "NAME")
    ('name', None)
    >>> kind_of("王小明", "NAME"), kind_of("王先生", "NAME")
    ('name', None)
    >>> kind_of("(212) 555-0142", "PHONE"), kind_of("1985-03-12", "OTHER")
    ('number', None)
    >>> kind_of("06 12 34 56 78", "PHONE"), kind_of("12.03.85-1234", "SSN")
    ('number', 'number')
    >>> kind_of("x7Kq02mZpe", "PASSWORD"), kind_of("Summer2024", "PASSWORD")
    ('code', None)
    """
    if "@" in text:
        return "address" if _personal_part(text.casefold()) else None

    if span_type == "NAME":
        has_digit = any(char.isdigit() for char in text)
        has_surname = len(_names(text)) >= 2
        return "name" if has_surname and not has_digit else None

    # Dates are few, so they can be guessed; a phone number in pairs can look like one.
    is_date = _TYPE_OF_DATES.search(span_type) or _DATES.fullmatch(text)
    if span_type != "PHONE" and is_date:
        return None

    if len(_digits(text)) >= MIN_DIGITS:
        return "number"
    has_code = any(_is_code(run) for run in _LETTERS_AND_DIGITS.findall(text))
    return "code" if has_code else None


def is_given(text: str, before: str, kind: Kind) -> bool:
    """Return whether the text before an identifier in its row gives it away.

    A number is given by any :data:`CHUNK_LENGTH` of its digits in a row, a code as a
    whole, a name or address by :data:`GIVEN_SHARE` of its letters.

    Parameters
    ----------
    text
        The identifier, case-folded.
    before
        All text in front of it in its row.
    kind
        The kind of string that it is.

    Examples
    --------
    >>> is_given("j.doe@clinic.example", "Jane Doe can be reached at ", "address")
    True
    >>> is_given("sandra.k@clinic.example", "The doctor and her team: ", "address")
    False
    """
    if kind == "number":
        digits = _digits(text)
        digits_before = _digits(before)
        starts = range(len(digits) - CHUNK_LENGTH + 1)
        return any(digits[i : i + CHUNK_LENGTH] in digits_before for i in starts)

    before = before.casefold()
    if kind == "code":
        return text in before

    # For names and addresses, count the letters that the words before them contain.
    letters = "".join(_LETTERS.findall(_core(text, kind)))
    is_known = _stands_in(letters, before)
    return bool(is_known.mean() >= GIVEN_SHARE)


def _stands_in(letters: str, before: str) -> np.ndarray:
    """Return a mask of the letters of a string that a text gives away, ``(letters,)``.

    They are those in which a word of the text stands. Chinese, Japanese and Korean
    texts do not separate words: there, two characters in a row count as a word.

    Parameters
    ----------
    letters
        The letters of an identifier, case-folded, without anything between them.
    before
        All text in front of it in its row, case-folded.
    """
    is_known = np.zeros(len(letters), dtype=bool)
    for word in _LETTERS.findall(before):
        if len(word) < MIN_WORD_LENGTH:
            continue
        for match in re.finditer(re.escape(word), letters):
            is_known[match.start() : match.end()] = True

    for start in range(len(letters) - 1):
        pair = letters[start : start + 2]
        if _EAST_ASIAN.fullmatch(pair) and pair in before:
            is_known[start : start + 2] = True
    return is_known


def _personal_part(address: str) -> str:
    """Return the part of an address that nobody else would try; empty: it has none.

    That is its local part, or else the name of its domain. A local part does not count
    if it is an office such as ``info`` or a given name such as ``anna``: such an
    address is as hard to guess as the name of its domain. A mail provider's domain does
    not count either.

    Parameters
    ----------
    address
        An address, case-folded: ``LOCAL@DOMAIN``.
    """
    local, _, domain = address.rpartition("@")
    if len(_digits(local)) >= MIN_DIGITS:
        return local

    # A word that is no office counts beside a mark ("j.doe"), or if it is rare.
    personal_words = [
        word
        for word in _LETTERS.findall(local)
        if len(word) >= MIN_WORD_LENGTH and word not in OFFICES
    ]
    has_mark = re.search(r"[\d._-]", local) is not None
    has_rare_word = any(_is_rare(word) for word in personal_words)
    if personal_words and (has_mark or has_rare_word):
        return local

    # The domain's own name: "clinic-am-see" of mail.clinic-am-see.example.
    labels = domain.split(".")
    if len(labels) < 2:
        return ""
    name = labels[-2]
    is_personal = len(name) >= MIN_DOMAIN_WORD and name not in FREE_MAIL | OFFICES
    return name if is_personal else ""


def _is_rare(word: str) -> bool:
    """Return whether a word is no first guess of a local part, as most surnames are."""
    is_first_guess = word in GIVEN_NAMES or word in EVERYDAY_WORDS
    return len(word) >= MIN_SURNAME and not is_first_guess


def _is_code(run: str) -> bool:
    """Return whether a run of letters and digits looks drawn, unlike ``Summer2024``."""
    if len(run) < MIN_CODE_LENGTH or _WORD_AND_YEAR.fullmatch(run):
        return False

    has_digit = any(char.isdigit() for char in run)
    has_letter = any(char.isalpha() for char in run)
    return has_digit and has_letter


def _core(text: str, kind: Kind) -> str:
    """Return the part of an identifier that all of its spellings share."""
    if kind == "number":
        return _digits(text)
    if kind == "address":
        return _personal_part(text)
    if kind == "name":
        return " ".join(_names(text))
    return text


def _names(text: str) -> list[str]:
    """Return the words of a full name, given name first, without titles and initials.

    They are case-folded. A Chinese or Korean name of one word is divided into given
    name and surname, but not one of two characters, which may be either of them alone.
    """
    words = _LETTERS.findall(text.casefold())
    if words and all(_EAST_ASIAN.fullmatch(word) for word in words):
        return _east_asian_names(words)
    return [word for word in words if len(word) > 1 and word not in FORMS_OF_ADDRESS]


def _east_asian_names(words: Sequence[str]) -> list[str]:
    """Return given name and surname of a name that is written surname first."""
    words = [_without_form_of_address(word) for word in words]
    words = [word for word in words if word]
    if len(words) > 1:
        return words[::-1]  # the surname last

    # A short word, and Japanese, may be a surname or a given name alone.
    name = "".join(words)
    if len(name) < MIN_EAST_ASIAN_NAME or _KANA.search(name):
        return words
    n_surname = 2 if name[:2] in COMPOUND_SURNAMES else 1
    return [name[n_surname:], name[:n_surname]]


def _without_form_of_address(word: str) -> str:
    """Return a name without the forms of address behind it, such as ``さん``."""
    for form in EAST_ASIAN_FORMS_OF_ADDRESS:
        word = word.removesuffix(form)
    return word


def _stem(core: str, kind: Kind) -> str:
    """Return the stem of an identifier, shared by those that can be guessed from it.

    Numbers that run on reveal each other, as do two relatives with the same initial.
    """
    if kind == "address":
        return _LAST_DIGITS_OF_TEXT.sub("#", core)
    if kind == "name":
        words = core.split()
        initial = words[0][0]
        return f"{initial} {words[-1]}"
    return core[:-LAST_DIGITS]


def _frequent_name(names: Collection[str]) -> float:
    """Return the share of names with the most frequent first and last word.

    It is the product of the shares of both words, as if each were drawn by itself: so
    often is a model right that has read other names of the same lists. Each distinct
    name counts once.

    Parameters
    ----------
    names
        Words of each name, given name first, with blanks between.
    """
    if not names:
        return 0.0

    first_words: Counter[str] = Counter()
    last_words: Counter[str] = Counter()
    for name in names:
        words = name.split()
        first_words[words[0]] += 1
        last_words[words[-1]] += 1

    # The product of both shares.
    n_together = max(first_words.values()) * max(last_words.values())
    return n_together / len(names) ** 2


def _digits(text: str) -> str:
    """Return the digits of a text, without all between them."""
    return "".join(char for char in text if char.isdigit())
