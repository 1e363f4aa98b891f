"""Draw random strings of the same form as an identifier.

Names and the words of e-mail and postal addresses come from Faker's lists, in the
locale of the name. Digits stay digits. If many identifiers share a format, each
character is drawn from the characters at its place in these identifiers: a common
beginning must not give a twin away **[ours]**.

Two identifiers have one *format* if they are equal once each digit is written as 0 and
each letter as a or A (:func:`_format_of`). Their *form* is their type and format. A
further type whose words are drawn from lists goes into :data:`WORDED`, and its lists
into :func:`_parts_of_word`; every other type is drawn character by character.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from spark_audit.data.canaries import EXAMPLE_HOSTS, checked, pick
from spark_audit.data.person_names import providers, strings
from spark_audit.data.pii import luhn

MIN_IDENTIFIERS_OF_FORMAT = 8
"""Identifiers of one type and format from which on their characters are taken as the
format's own, such as a common area code **[ours]**."""

MIN_STRINGS_LEFT = 1000
"""Number of strings that must remain possible under such a format."""

WORDED = ("NAME", "EMAIL", "ADDRESS")
"""Types that are drawn word by word; other types are drawn letter by letter."""

ENGLISH_LOCALE = "en_US"

_LOWER = string.ascii_lowercase
_UPPER = string.ascii_uppercase
_CHARACTER_CLASSES = (string.digits, _LOWER, _UPPER)
"""A character is replaced by one of its class; any other character stays."""

_PIECE_OF_STRING = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*|\d+|.", re.DOTALL)
"""A word, perhaps with apostrophes inside, a run of digits, or one other character."""

_TITLES_OF_NAMES = frozenset(
    "mr mrs ms mx miss dr prof jr sr ii iii iv md dds dvm phd".split()
)

_ADDRESS_WORDS = frozenset(
    "st ave rd blvd ln dr ct pl sq ter pkwy hwy cir apt apartment suite ste unit floor"
    " po box p o n s e w ne nw se sw north south east west new port lake".split()
)

Words = tuple[str, ...]

WordParts: TypeAlias = list[Sequence[str]]
"""The choices for each part of a word. The parts are drawn one by one and joined."""


class _Locale(NamedTuple):
    """Faker's names of one locale, without duplicates.

    Attributes
    ----------
    first_names, last_names
        Names as they are written.
    folded_first, folded_last
        The same names, folded.
    """

    first_names: Words
    last_names: Words
    folded_first: frozenset[str]
    folded_last: frozenset[str]

    def has(self, word: str) -> bool:
        """Return whether either list has the word."""
        folded_word = word.casefold()
        return folded_word in self.folded_first or folded_word in self.folded_last


def _locales() -> dict[str, _Locale]:
    """Return the locales that have lists of both first and last names."""
    first_fields = ("first_names", "first_names_male", "first_names_female")
    locales = {}
    for name, provider in providers().items():
        first_names = _single_words(provider, *first_fields)
        last_names = _single_words(provider, "last_names")
        if first_names and last_names:
            locales[name] = _Locale(
                first_names=first_names,
                last_names=last_names,
                folded_first=frozenset(word.casefold() for word in first_names),
                folded_last=frozenset(word.casefold() for word in last_names),
            )
    return locales


def _single_words(provider: type, *fields: str) -> Words:
    """Return the single-word names in a provider's lists, sorted."""
    words: set[str] = set()
    for field in fields:
        for name in strings(getattr(provider, field, ())):
            is_word = _PIECE_OF_STRING.fullmatch(name) is not None
            if is_word and len(name) > 1 and name[0].isalpha():
                words.add(name)
    return tuple(sorted(words))


class _AddressWords(NamedTuple):
    """Fixed words of postal addresses, and endings of town names, longest first."""

    fixed: frozenset[str]
    town_endings: Words


@lru_cache(maxsize=1)
def _address_words() -> _AddressWords:
    """Return the words that are common to Faker's addresses and ours."""
    from faker.providers.address.en_US import Provider

    phrases = [
        *Provider.street_suffixes,
        *Provider.states_abbr,
        *Provider.states,
    ]
    fixed_words = set(_ADDRESS_WORDS)
    for phrase in phrases:
        fixed_words.update(word.casefold() for word in phrase.split())

    # The first match is used, so "land" comes before "d".
    town_endings = sorted(
        Provider.city_suffixes, key=lambda ending: (-len(ending), ending)
    )
    return _AddressWords(frozenset(fixed_words), tuple(town_endings))


def _script(word: str) -> str:
    """Return the script of a word's first letter, such as ``LATIN``."""
    return unicodedata.name(word[0], "").partition(" ")[0]


class Forms:
    """The forms of the identifiers in some data, from which others are drawn.

    Parameters
    ----------
    identifiers
        Type and string of each distinct identifier.
    """

    def __init__(self, identifiers: Iterable[tuple[str, str]]) -> None:
        # Form -> the characters of each identifier that are drawn one by one.
        drawn_by_form: dict[tuple[str, str], list[str]] = defaultdict(list)
        # Folded host of an e-mail address, and word of a name -> how often it occurs.
        self._hosts: Counter[str] = Counter()
        self._names: Counter[str] = Counter()

        for type, text in identifiers:
            drawn_class = r"[0-9]" if type in WORDED else r"[0-9a-zA-Z]"
            drawn = re.findall(drawn_class, _body(type, text))
            drawn_by_form[type, _format_of(type, text)].append("".join(drawn))

            if type == "EMAIL":
                self._hosts[text.rpartition("@")[2].casefold()] += 1
            if type == "NAME":
                for piece in _PIECE_OF_STRING.findall(text):
                    if piece[0].isalpha():
                        self._names[piece] += 1

        # Form -> the characters that occur at each place. Forms with few identifiers
        # are left out, because these would reveal too much of each other.
        self._seen_characters: dict[tuple[str, str], list[list[str]]] = {}
        for form, drawn_characters in drawn_by_form.items():
            if len(drawn_characters) >= MIN_IDENTIFIERS_OF_FORMAT:
                # Strings of one form have as many such characters.
                columns = zip(*drawn_characters, strict=True)
                self._seen_characters[form] = [
                    sorted(set(column)) for column in columns
                ]

    def draw(self, type: str, text: str, rng: np.random.Generator, n: int) -> list[str]:
        """Return ``n`` strings of an identifier's form; they may repeat or equal it.

        Without names in the script of its words there are none.
        """
        pieces = _PIECE_OF_STRING.findall(_body(type, text))
        words = [piece for piece in pieces if piece[0].isalpha()]
        parts_by_word = self._parts_by_word(type, words)
        if parts_by_word is None:
            return []

        # Each word or character gives one column of n draws. The order of the columns
        # is that of the random numbers.
        columns: list[list[str]] = []
        next_word = iter(parts_by_word)
        next_character = iter(self._character_choices(type, text))
        for piece in pieces:
            if piece[0].isalpha() and type in WORDED:
                parts = [pick(rng, choices, n) for choices in next(next_word)]
                columns.append([_in_case_of(piece, word) for word in _joined(parts)])
                continue

            # Marks and blanks stay: a single choice uses no random number.
            for character in piece:
                choices: Sequence[str] = character
                if any(character in members for members in _CHARACTER_CLASSES):
                    choices = next(next_character)
                columns.append(pick(rng, choices, n))

        if type == "EMAIL" and "@" in text:
            # Digits of a host that stays do not belong to the person.
            host = text.rpartition("@")[2]
            columns += [["@"] * n, pick(rng, self._host_choices(host), n)]

        drawn = _joined(columns)
        if type == "CREDIT_CARD" and luhn(re.sub(r"\D", "", text)):
            # The last digit is the check digit of the others.
            return [checked(number[:-1]) for number in drawn]
        return drawn

    def _character_choices(self, type: str, text: str) -> list[Sequence[str]]:
        """Return the choices for each character that is drawn separately.

        These are its digits, in order, and the letters if no words are drawn for the
        type.
        """
        # The characters in the data are used, if they leave enough strings.
        any_of_class = _choices_by_class(type, text)
        form = (type, _format_of(type, text))
        seen = self._seen_characters.get(form, any_of_class)
        if math.prod(len(choices) for choices in seen) >= MIN_STRINGS_LEFT:
            return list(seen)

        # Even consecutive numbers, such as 0100 to 0130, keep their common beginning.
        choices: list[Sequence[str]] = []
        for seen_characters, all_characters in zip(seen, any_of_class, strict=True):
            is_shared = len(seen_characters) == 1
            choices.append(seen_characters if is_shared else all_characters)
        return choices

    def _host_choices(self, host: str) -> list[str]:
        """Return the host if others have it, too; else hosts that identify nobody."""
        if self._hosts[host.casefold()] > 1:
            return [host]

        other_hosts = sorted(set(self._hosts) - {host.casefold()})
        if len(other_hosts) >= len(EXAMPLE_HOSTS):
            return other_hosts
        return [*other_hosts, *EXAMPLE_HOSTS]

    def _parts_by_word(self, type: str, words: Sequence[str]) -> list[WordParts] | None:
        """Return the parts of each word; ``None`` if no list of names has its script.

        A type whose words are not drawn has none.
        """
        if type not in WORDED or not words:
            return []

        fixed_words: frozenset[str] = frozenset()
        if type == "NAME":
            fixed_words = _TITLES_OF_NAMES
        if type == "ADDRESS":
            fixed_words = _address_words().fixed

        # "Maria de la Cruz": lower-case words among capitalised ones are particles.
        all_lower = all(word.islower() for word in words)
        drawn_indices = []
        for i, word in enumerate(words):
            is_particle = word.islower() and not all_lower
            if word.casefold() not in fixed_words and not is_particle:
                drawn_indices.append(i)

        drawn_words = [words[i] for i in drawn_indices] or words
        locale = self._best_locale(drawn_words)
        if locale is None:
            return None

        # A word that is not drawn is its own only choice.
        parts_by_word: list[WordParts] = [[[word]] for word in words]
        for i in drawn_indices:
            word = words[i]
            if len(word) == 1:
                parts_by_word[i] = [_UPPER]
                continue
            parts_by_word[i] = _parts_of_word(
                type,
                word,
                locale,
                is_alone=len(drawn_indices) == 1,
                is_last=i == drawn_indices[-1],
            )
        return parts_by_word

    def _best_locale(self, words: Sequence[str]) -> _Locale | None:
        """Return the locale of the words' script that has most of these words.

        If several have equally many, the one with most of the data's names wins.
        """
        script = _script(words[0])
        best: _Locale | None = None
        most_words = -1

        # The locales are sorted by names of the data, so the first of equal ones wins.
        for locale in self._locales_by_names:
            if _script(locale.first_names[0]) != script:
                continue
            n_words = sum(locale.has(word) for word in words)
            if n_words > most_words:
                best = locale
                most_words = n_words
        return best

    @cached_property
    def _locales_by_names(self) -> list[_Locale]:
        """Return all locales (10 MB), the one with most of the data's names first."""
        locales = _locales()

        def rank(name: str) -> tuple[int, bool]:
            n_names = 0
            for word, count in self._names.items():
                if locales[name].has(word):
                    n_names += count
            # Of locales with equally many names, English comes first.
            return -n_names, name != ENGLISH_LOCALE

        return [locales[name] for name in sorted(locales, key=rank)]


def _choices_by_class(type: str, text: str) -> list[Sequence[str]]:
    """Return the class of each character that is drawn separately, in order."""
    choices: list[Sequence[str]] = []
    body = _body(type, text)
    for i, character in enumerate(body):
        # Empty at the ends of the text.
        character_before = body[i - 1 : i]
        character_behind = body[i + 1 : i + 2]
        for members in _CHARACTER_CLASSES:
            is_digit = members == string.digits
            is_in_word = type in WORDED and not is_digit
            if character not in members or is_in_word:
                continue

            # A number of several digits begins with 0 only if the original does.
            begins_number = is_digit and not character_before.isdigit()
            is_long = begins_number and character_behind.isdigit()
            without_zero = is_long and character != "0"
            choices.append(members[1:] if without_zero else members)
    return choices


def _in_case_of(word: str, drawn: str) -> str:
    """Return a drawn word in the case of the word that it replaces."""
    if word.islower():
        return drawn.lower()
    if word.isupper():
        return drawn.upper()
    return drawn


def _parts_of_word(
    type: str, word: str, locale: _Locale, *, is_alone: bool, is_last: bool
) -> WordParts:
    """Return the parts from which a word is composed, first match wins.

    ======================================  ==============================
    word                                    parts
    ======================================  ==============================
    of an ADDRESS                           last name, town ending
    alone in an EMAIL, in neither list      two names, or initial and name
    in one of the two lists                 a name of that list
    single NAME, or not the last word       first name
    other                                   last name
    ======================================  ==============================

    Parameters
    ----------
    is_alone, is_last
        Whether it is the only drawn word, and whether it is the last one.
    """
    folded_word = word.casefold()
    is_first_name = folded_word in locale.folded_first
    is_last_name = folded_word in locale.folded_last

    # Streets and towns are surnames, with a town ending if the word has one.
    if type == "ADDRESS":
        ending = "" if is_last_name else _town_ending(folded_word)
        return [locale.last_names, [ending]]

    if type == "EMAIL" and is_alone and not is_first_name and not is_last_name:
        two_parts = _two_parts(folded_word, locale)
        if two_parts is not None:
            return two_parts

    if is_first_name != is_last_name:
        return [locale.first_names if is_first_name else locale.last_names]

    # For a word in both lists or in none: a single NAME is a first name, and the last
    # of several words is a last name.
    is_surname = is_last and not (is_alone and type == "NAME")
    return [locale.last_names if is_surname else locale.first_names]


def _town_ending(word: str) -> str:
    """Return the longest town ending of a folded word; empty if it has none."""
    for ending in _address_words().town_endings:
        if word.endswith(ending) and len(word) > len(ending) + 1:
            return ending
    return ""


def _two_parts(word: str, locale: _Locale) -> WordParts | None:
    """Return the parts of a folded word of two: "jsmith", "mariajones", "smithj".

    ``None``: it is no such word.
    """
    for length in range(1, len(word)):
        head = word[:length]
        tail = word[length:]
        if head in locale.folded_first and tail in locale.folded_last:
            return [locale.first_names, locale.last_names]
        if head in locale.folded_last and tail in locale.folded_first:
            return [locale.last_names, locale.first_names]

    # An initial and a surname, in either order.
    if word[1:] in locale.folded_last:
        return [_LOWER, locale.last_names]
    if word[:-1] in locale.folded_last:
        return [locale.last_names, _LOWER]
    return None


def _body(type: str, text: str) -> str:
    """Return the part that is drawn anew: all but the host of an e-mail address."""
    return text.rpartition("@")[0] if type == "EMAIL" else text


def _format_of(type: str, text: str) -> str:
    """Return the format of a string: digits as 0, letters as a and A, or words as a.

    For example ``000-aA`` for the ID "123-xY", and ``a.a`` for "ann.li@example.com".
    """
    with_zeros = re.sub("[0-9]", "0", _body(type, text))
    if type in WORDED:
        return re.sub(r"[^\W\d_]+", "a", with_zeros)
    return re.sub("[A-Z]", "A", re.sub("[a-z]", "a", with_zeros))


def _joined(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the i-th strings of all columns joined to one string, for each i."""
    return ["".join(row) for row in zip(*columns, strict=True)]
