"""Which identifiers nobody can guess, by the kind of string that each is.

A guard of the setup counts identifiers that come back from rows that were held out. It
may count only strings that a model cannot write without having read them, and it must
count all kinds of these: where only long numbers count, rows of names and e-mail
addresses hide that they were trained on.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from spark_audit.audits.identifiers import FREE_MAIL
from spark_audit.data.occurrences import string_of
from spark_audit.manifest.schema import Manifest

Kind = Literal["address", "name", "number", "code"]
Place = tuple[str, int, int]
"""Id of a row, and first and last character of an identifier in it."""

GUESSED = 0.01
"""An unguessable identifier comes back at most once in so many times from a model that
never saw it **[ours]**; six random digits do so once in a million."""
MIN_DIGITS = 6
"""Digits of a number that is unguessable."""
MIN_CODE_LENGTH = 8
"""Letters and digits of a password or code that is unguessable."""
CHUNK_LENGTH = 4
"""Digits in a row that tell a number if they stand before it."""
LAST_DIGITS = 2
"""Digits that a running number may differ in from one that is known."""
MIN_WORD_LENGTH = 3
"""Letters of a word that says whose an identifier is; initials do not."""
GIVEN_SHARE = 0.5
"""Share of the letters of an identifier that stand before it in its row, from which on
the row gives it away **[ours]**."""
MIN_LOCAL_WORD = 6
"""Letters of a local part of one word that nobody would try **[ours]**."""
MIN_DOMAIN_WORD = 8
"""Letters of a domain's name that nobody would try **[ours]**."""

OFFICES = frozenset(
    "accounting accounts admin administration ask billing booking bookings career "
    "careers center centre claims client clients complaints contact customer customers "
    "customerservice desk email enquiries enquiry feedback finance hello help helpdesk "
    "hotline info information inquiries inquiry invoice invoices jobs legal mail "
    "mailbox marketing media newsletter noreply office order orders payments "
    "postmaster press privacy reception refunds reply reservation reservations returns "
    "sales secretary security service services shop signup staff store support team "
    "tech technical tickets webmaster".split()
)
"""Words of local parts that anybody would try."""

FORMS_OF_ADDRESS = frozenset(
    "dipl dr frau herr ing judge lady lord madam miss mister mme monsieur mr mrs ms mx "
    "phd prof professor sen señor señora signor signora sir".split()
)
"""Words in front of a name that are no part of it."""

_ONE_DATE = (
    r"(?:\d{1,2}\D{1,2}\d{1,2}\D{1,2}(?:\d\d){1,2}|(?:19|20)\d\d\D\d{1,2}\D\d{1,2})"
)
_CLOCK = r"(?:[ T,]{1,2}\d{1,2}:\d\d(?::\d\d)?)?"
# A date or a range of dates, whole: a phone number in pairs holds what looks like one.
_DATES = re.compile(rf"{_ONE_DATE}{_CLOCK}(?:\D{{1,3}}{_ONE_DATE}{_CLOCK})?")
_LETTERS = re.compile(r"[^\W\d_]+")
_MIXED = re.compile(r"[^\W_]+")
_WORD_AND_YEAR = re.compile(r"[^\W\d_]+\d{0,4}")
_LAST_NUMBER = re.compile(r"\d{1,2}(?!\d)(?=\D*$)")


@dataclass(frozen=True)
class Guess:
    """How likely it is that a model that never read an identifier writes it.

    Attributes
    ----------
    kind
        The kind of string that it is; empty: one that can be guessed.
    rate
        Chance of a guess that is right, at most.
    """

    kind: Kind | Literal[""] = ""
    rate: float = 1.0

    @property
    def is_unguessable(self) -> bool:
        """Whether it counts where it comes back."""
        return self.kind != ""


GUESSABLE_STRING = Guess()


def guesses(manifest: Manifest) -> dict[Place, Guess]:
    """Return how each identifier of rows without a canary can be guessed, by place.

    A string is unguessable if its kind has enough letters or digits, the text before
    it in its row does not tell it, and no other identifier of its kind is nearly the
    same. Names are guessed as often as the most frequent first word and the most
    frequent last word of all names stand together.
    """
    occurrences = [
        (row, span)
        for row in manifest.examples
        if row.canary_id is None
        for span in row.spans
    ]
    kinds: dict[Place, Kind] = {}
    cores: dict[Kind, set[str]] = defaultdict(set)
    for row, span in occurrences:
        text = row.text[span.start : span.end].strip()
        kind = kind_of(text, span.type)
        if kind is not None:
            kinds[row.id, span.start, span.end] = kind
            cores[kind].add(_core(string_of(row, span), kind))

    n_alike = {
        kind: Counter(_stem(core, kind) for core in known)
        for kind, known in cores.items()
    }
    name_rate = max(GUESSED, _frequent_name(cores["name"]))

    found = dict[Place, Guess]()
    for row, span in occurrences:
        place = row.id, span.start, span.end
        found[place] = GUESSABLE_STRING
        if place not in kinds:
            continue
        kind, text = kinds[place], string_of(row, span)
        is_alone = n_alike[kind][_stem(_core(text, kind), kind)] == 1
        if is_alone and not is_given(text, row.text[: span.start], kind):
            rate = name_rate if kind == "name" else GUESSED
            found[place] = Guess(kind, rate)
    return found


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
    >>> kind_of("info@mail.example", "EMAIL") is None
    True
    >>> kind_of("Katrin Bakerfield", "NAME"), kind_of("Katrin", "NAME")
    ('name', None)
    >>> kind_of("(212) 555-0142", "PHONE"), kind_of("1985-03-12", "OTHER")
    ('number', None)
    >>> kind_of("06 12 34 56 78", "PHONE"), kind_of("12.03.85-1234", "SSN")
    ('number', 'number')
    >>> kind_of("x7Kq02mZpe", "PASSWORD"), kind_of("Summer2024", "PASSWORD")
    ('code', None)
    """
    if "@" in text:
        return "address" if _is_personal(text.casefold()) else None
    if span_type == "NAME":
        has_digit = any(char.isdigit() for char in text)
        return "name" if len(_names(text)) >= 2 and not has_digit else None
    if span_type != "PHONE" and _DATES.fullmatch(text):
        return None
    if len(_digits(text)) >= MIN_DIGITS:
        return "number"
    return "code" if any(_is_code(run) for run in _MIXED.findall(text)) else None


def is_given(text: str, before: str, kind: Kind) -> bool:
    """Return whether the text before an identifier in its row tells what it is.

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
        digits, known = _digits(text), _digits(before)
        chunks = range(len(digits) - CHUNK_LENGTH + 1)
        return any(digits[i : i + CHUNK_LENGTH] in known for i in chunks)
    before = before.casefold()
    if kind == "code":
        return text in before

    own = "".join(_LETTERS.findall(_core(text, kind)))
    is_known = np.zeros(len(own), dtype=bool)  # (letters,)
    for word in _LETTERS.findall(before):
        if len(word) < MIN_WORD_LENGTH:
            continue
        for found in re.finditer(re.escape(word), own):
            is_known[found.start() : found.end()] = True
    return bool(is_known.mean() >= GIVEN_SHARE)


def _is_personal(address: str) -> bool:
    """Return whether an address has a part that anybody else would not try."""
    return _telling_part(address) != ""


def _telling_part(address: str) -> str:
    """Return the local part of an address, or its domain where that alone tells.

    An office such as ``info`` is no secret, and neither is a provider's domain: the
    address of an office is as hard to guess as the name of its domain.
    """
    local, _, domain = address.rpartition("@")
    if len(_digits(local)) >= MIN_DIGITS:
        return local
    words = [w for w in _LETTERS.findall(local) if len(w) >= MIN_WORD_LENGTH]
    own_words = [word for word in words if word not in OFFICES]
    is_long = any(len(word) >= MIN_LOCAL_WORD for word in own_words)
    has_mark = re.search(r"[\d._-]", local) is not None
    if own_words and (is_long or has_mark):
        return local

    # The domain's own name: "clinic-am-see" of mail.clinic-am-see.example.
    labels = domain.split(".")
    name = labels[-2] if len(labels) > 1 else ""
    is_own = len(name) >= MIN_DOMAIN_WORD and name not in FREE_MAIL | OFFICES
    return name if is_own and not own_words else ""


def _is_code(run: str) -> bool:
    """Return whether a run of letters and digits is drawn rather than a word."""
    if len(run) < MIN_CODE_LENGTH or _WORD_AND_YEAR.fullmatch(run):
        return False
    return any(char.isdigit() for char in run) and any(c.isalpha() for c in run)


def _core(text: str, kind: Kind) -> str:
    """Return what is left of an identifier however it is written."""
    if kind == "number":
        return _digits(text)
    if kind == "address":
        return _telling_part(text)
    if kind == "name":
        return " ".join(_names(text))
    return text


def _names(text: str) -> list[str]:
    """Return the words of a full name, without titles and initials, case-folded."""
    words = _LETTERS.findall(text.casefold())
    return [word for word in words if len(word) > 1 and word not in FORMS_OF_ADDRESS]


def _stem(core: str, kind: Kind) -> str:
    """Return what identifiers share of which one can be guessed from the other."""
    if kind == "address":
        return _LAST_NUMBER.sub("#", core)
    if kind == "name":
        words = core.split()
        # Of two relatives with one initial, either tells the other.
        return f"{words[0][0]} {words[-1]}"
    return core[:-LAST_DIGITS]


def _frequent_name(names: Collection[str]) -> float:
    """Return how often the most frequent first and last words stand together.

    As if both were drawn by themselves: that is what a model can guess that has read
    other names of the same lists. Each distinct name counts once.
    """
    if not names:
        return 0.0
    words = [name.split() for name in names]
    firsts = Counter(parts[0] for parts in words)
    lasts = Counter(parts[-1] for parts in words)
    return max(firsts.values()) * max(lasts.values()) / len(words) ** 2


def _digits(text: str) -> str:
    return "".join(char for char in text if char.isdigit())
