"""Strings of an identifier's kind: forms that random ones are drawn from.

Names and the words of e-mail and postal addresses come from Faker's lists of the locale
that the name is from; digits stay digits, and where many identifiers share a format
each character is one that stands in its place there, so that what they all begin with
does not give a twin away **[ours]**.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from spark_audit.data.canaries import HOSTS, checked, pick
from spark_audit.data.person_names import providers, strings
from spark_audit.data.pii import luhn

MIN_IDENTIFIERS_OF_FORMAT = 8
"""Identifiers of one type and format from which on their characters tell what the
format demands, as an area code that all begin with **[ours]**."""

MIN_STRINGS_LEFT = 1000
"""Strings that must be left where characters are told so."""

WORDED = ("NAME", "EMAIL", "ADDRESS")
"""Types that are made of words; of all others letters are drawn one by one."""

ENGLISH_LOCALE = "en_US"

_CHARACTER_CLASSES = (string.digits, string.ascii_lowercase, string.ascii_uppercase)

_PIECE_OF_STRING = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*|\d+|.", re.DOTALL)

_TITLES_OF_NAMES = frozenset(
    "mr mrs ms mx miss dr prof jr sr ii iii iv md dds dvm phd".split()
)

_ADDRESS_WORDS = frozenset(
    "st ave rd blvd ln dr ct pl sq ter pkwy hwy cir apt apartment suite ste unit floor"
    " po box p o n s e w ne nw se sw north south east west new port lake".split()
)

Words = tuple[str, ...]


class _Locale(NamedTuple):
    """Faker's first and last names of one locale, each once, and both folded."""

    first: Words
    last: Words
    given: frozenset[str]
    family: frozenset[str]

    def holds(self, word: str) -> bool:
        """Whether one of the lists has the word."""
        return word.casefold() in self.given or word.casefold() in self.family


def _locales() -> dict[str, _Locale]:
    """Every locale whose names have a first and a last list."""

    def names(provider: Any, *fields: str) -> Words:
        held = {name for x in fields for name in strings(getattr(provider, x, ()))}
        plain = {n for n in held if len(n) > 1 and _PIECE_OF_STRING.fullmatch(n)}
        return tuple(sorted(n for n in plain if n[0].isalpha()))

    both = ("first_names", "first_names_male", "first_names_female")
    found = {}
    for locale, provider in providers().items():
        first, last = names(provider, *both), names(provider, "last_names")
        if first and last:
            lower = (frozenset(map(str.casefold, held)) for held in (first, last))
            found[locale] = _Locale(first, last, *lower)
    return found


@lru_cache(maxsize=1)
def _fixed() -> tuple[frozenset[str], Words]:
    """Words of postal addresses that stay, and endings of towns, longest first."""
    from faker.providers.address.en_US import Provider

    lists = (Provider.street_suffixes, Provider.states_abbr, Provider.states)
    words = {word.casefold() for held in lists for x in held for word in x.split()}
    suffixes = sorted(Provider.city_suffixes, key=lambda x: (-len(x), x))
    return frozenset(words | _ADDRESS_WORDS), tuple(suffixes)


def _script(word: str) -> str:
    return unicodedata.name(word[0], "").partition(" ")[0]


class Forms:
    """What the identifiers of some data have in common, to draw others like them.

    Parameters
    ----------
    identifiers
        Type and string of each distinct one.
    """

    def __init__(self, identifiers: Iterable[tuple[str, str]]) -> None:
        known = list(identifiers)
        seen: dict[tuple[str, str], list[str]] = defaultdict(list)
        for type, text in known:
            drawn = r"[0-9]" if type in WORDED else r"[0-9a-zA-Z]"
            single = re.findall(drawn, _body(type, text))
            seen[type, _shape(type, text)].append("".join(single))
        self._seen = {
            form: [sorted(set(column)) for column in zip(*held, strict=True)]
            for form, held in seen.items()
            if len(held) >= MIN_IDENTIFIERS_OF_FORMAT
        }
        self._hosts = Counter(
            text.rpartition("@")[2].casefold()
            for type, text in known
            if type == "EMAIL"
        )
        self._names = Counter(
            word
            for type, text in known
            if type == "NAME"
            for word in _PIECE_OF_STRING.findall(text)
            if word[0].isalpha()
        )

    def draw(self, type: str, text: str, rng: np.random.Generator, n: int) -> list[str]:
        """``n`` strings of an identifier's kind; they may repeat, or be itself."""
        singles = iter(self._characters(type, text))
        body, at, host = text.rpartition("@") if type == "EMAIL" else (text, "", "")
        pieces = _PIECE_OF_STRING.findall(body)
        words = self._words(type, [p for p in pieces if p[0].isalpha()])
        if words is None:
            return []
        columns: list[list[str]] = []
        for piece in pieces:
            if piece[0].isalpha() and type in WORDED:
                drawn = _joined([pick(rng, part, n) for part in next(words)])
                # In the case of the word that they stand for.
                cased = str.lower if piece.islower() else str.upper
                as_drawn = not (piece.islower() or piece.isupper())
                columns.append(drawn if as_drawn else [*map(cased, drawn)])
                continue
            for char in piece:
                one = any(char in known for known in _CHARACTER_CLASSES)
                columns.append(pick(rng, next(singles) if one else char, n))
        if at:
            # Digits of a host that stays are no digits of the person.
            columns += [["@"] * n, pick(rng, self._others(host), n)]
        drawn = _joined(columns)
        card = type == "CREDIT_CARD" and luhn(re.sub(r"\D", "", text))
        return [checked(number[:-1]) for number in drawn] if card else drawn

    def _characters(self, type: str, text: str) -> list[Sequence[str]]:
        """What may stand for each character that is drawn by itself."""
        found: list[Sequence[str]] = []
        body = _body(type, text)
        for i, char in enumerate(body):
            for held in _CHARACTER_CLASSES:
                if char not in held or (type in WORDED and held != string.digits):
                    continue
                # A number of several digits does not begin with 0 unless it does.
                begins = held == string.digits and not body[i - 1 : i].isdigit()
                long = begins and body[i + 1 : i + 2].isdigit() and char != "0"
                found.append(held[1:] if long else held)
        seen = self._seen.get((type, _shape(type, text)), found)
        if math.prod(map(len, seen)) >= MIN_STRINGS_LEFT:
            return list(seen)
        # Numbers in a row, such as 0100 to 0130: what they all share is the format.
        pairs = zip(seen, found, strict=True)
        return [own if len(own) == 1 else every for own, every in pairs]

    def _others(self, host: str) -> list[str]:
        """The host, if others have it too: else what does not tell whose it is."""
        if self._hosts[host.casefold()] > 1:
            return [host]
        others = sorted(set(self._hosts) - {host.casefold()})
        return others if len(others) >= len(HOSTS) else [*others, *HOSTS]

    def _words(
        self, type: str, words: list[str]
    ) -> Iterator[Sequence[Sequence[str]]] | None:
        """What each word is put together from; nothing if no list is of its script."""
        if type not in WORDED or not words:
            return iter(())
        stay = (
            _TITLES_OF_NAMES
            if type == "NAME"
            else _fixed()[0]
            if type == "ADDRESS"
            else ()
        )
        # "Maria de la Cruz": words in another case than the rest are particles.
        lower = all(word.islower() for word in words)
        own = [
            i
            for i, word in enumerate(words)
            if word.casefold() not in stay and (lower or not word.islower())
        ]
        # The first locale by what it has of all the data's names that has most.
        told = [words[i] for i in own] or words
        fitting = [x for x in self._ranked if _script(x.first[0]) == _script(told[0])]
        locale = max(fitting, key=lambda x: sum(map(x.holds, told)), default=None)
        if locale is None:
            return None
        found: list[Sequence[Sequence[str]]] = [[[word]] for word in words]
        for i in own:
            alone, last = len(own) == 1, i == own[-1]
            found[i] = [_CHARACTER_CLASSES[2]]
            if len(words[i]) > 1:
                found[i] = _parts(type, words[i], locale, alone=alone, last=last)
        return iter(found)

    @cached_property
    def _ranked(self) -> list[_Locale]:
        # Kept as long as this is: 10 MB.
        known = _locales()

        def share(name: str) -> tuple[int, bool]:
            held = (n for word, n in self._names.items() if known[name].holds(word))
            return -sum(held), name != ENGLISH_LOCALE

        return [known[name] for name in sorted(known, key=share)]


def _parts(
    type: str, word: str, locale: _Locale, *, alone: bool, last: bool
) -> list[Sequence[str]]:
    """The lists that a word is put together from."""
    first, family, low = locale.given, locale.family, word.casefold()
    if type == "ADDRESS":
        ends = (x for x in _fixed()[1] if low.endswith(x) and len(low) > len(x) + 1)
        end = "" if low in family else next(ends, "")
        return [locale.last, [end]]
    if alone and type == "EMAIL" and low not in first and low not in family:
        # One word of two: "jsmith", "mariajones", "smithj".
        for at in range(1, len(low)):
            head, tail = low[:at], low[at:]
            if head in first and tail in family:
                return [locale.first, locale.last]
            if head in family and tail in first:
                return [locale.last, locale.first]
        if low[1:] in family:
            return [_CHARACTER_CLASSES[1], locale.last]
        if low[:-1] in family:
            return [locale.last, _CHARACTER_CLASSES[1]]
    if (low in first) != (low in family):
        return [locale.first if low in first else locale.last]
    return [locale.last if last and not (alone and type == "NAME") else locale.first]


def _body(type: str, text: str) -> str:
    """What is drawn anew: all but the host of an e-mail address."""
    return text.rpartition("@")[0] if type == "EMAIL" else text


def _shape(type: str, text: str) -> str:
    """The format: digits as 0, letters as a and A, or words as a."""
    text = re.sub("[0-9]", "0", _body(type, text))
    if type in WORDED:
        return re.sub(r"[^\W\d_]+", "a", text)
    return re.sub("[A-Z]", "A", re.sub("[a-z]", "a", text))


def _joined(columns: Sequence[Sequence[str]]) -> list[str]:
    return ["".join(row) for row in zip(*columns, strict=True)]
