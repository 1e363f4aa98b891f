"""Draw random strings of the same form as an identifier.

Names and the words of e-mail and postal addresses come from Faker's lists, in the
locale of the name. Digits stay digits. If many identifiers share a format, each
character is drawn from the characters at its place in these identifiers: a common
beginning must not give a twin away **[ours]**.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

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
        # The separately drawn characters of each identifier, by type and format.
        drawn_by_form: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._hosts: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        for type, text in identifiers:
            is_drawn = r"[0-9]" if type in WORDED else r"[0-9a-zA-Z]"
            drawn = re.findall(is_drawn, _body(type, text))
            drawn_by_form[type, _shape(type, text)].append("".join(drawn))

            if type == "EMAIL":
                self._hosts[text.rpartition("@")[2].casefold()] += 1
            if type == "NAME":
                for piece in _PIECE_OF_STRING.findall(text):
                    if piece[0].isalpha():
                        self._names[piece] += 1

        # (type, format) -> the characters at each place. Formats with few identifiers
        # are left out, because these would reveal too much of each other.
        self._seen: dict[tuple[str, str], list[list[str]]] = {}
        for form, texts in drawn_by_form.items():
            if len(texts) >= MIN_IDENTIFIERS_OF_FORMAT:
                columns = zip(*texts, strict=True)
                self._seen[form] = [sorted(set(column)) for column in columns]

    def draw(self, type: str, text: str, rng: np.random.Generator, n: int) -> list[str]:
        """Return ``n`` strings of an identifier's form; they may repeat or equal it."""
        body = _body(type, text)
        pieces = _PIECE_OF_STRING.findall(body)
        word_lists = self._word_lists(
            type, [piece for piece in pieces if piece[0].isalpha()]
        )
        if word_lists is None:
            return []

        # Each word or character gives one column of n draws.
        columns: list[list[str]] = []
        character_choices = iter(self._character_choices(type, text))
        for piece in pieces:
            if piece[0].isalpha() and type in WORDED:
                parts = [pick(rng, choices, n) for choices in next(word_lists)]
                columns.append([_in_case_of(piece, word) for word in _joined(parts)])
                continue

            # Marks and blanks stay: a single choice uses no random number.
            for character in piece:
                choices: Sequence[str] = character
                if any(character in members for members in _CHARACTER_CLASSES):
                    choices = next(character_choices)
                columns.append(pick(rng, choices, n))

        if type == "EMAIL" and "@" in text:
            # Digits of a host that stays do not belong to the person.
            host = text.rpartition("@")[2]
            columns += [["@"] * n, pick(rng, self._host_choices(host), n)]

        drawn = _joined(columns)
        if type == "CREDIT_CARD" and luhn(re.sub(r"\D", "", text)):
            return [checked(number[:-1]) for number in drawn]
        return drawn

    def _character_choices(self, type: str, text: str) -> list[Sequence[str]]:
        """Return the choices for each character that is drawn separately."""
        any_of_class: list[Sequence[str]] = []
        body = _body(type, text)
        for i, character in enumerate(body):
            for members in _CHARACTER_CLASSES:
                is_word = type in WORDED and members != string.digits
                if character not in members or is_word:
                    continue

                # A number of several digits begins with 0 only if the original does.
                is_digit = members == string.digits
                begins_number = is_digit and not body[i - 1 : i].isdigit()
                is_long = begins_number and body[i + 1 : i + 2].isdigit()
                without_zero = is_long and character != "0"
                any_of_class.append(members[1:] if without_zero else members)

        # The characters in the data are used, if they leave enough strings.
        seen = self._seen.get((type, _shape(type, text)), any_of_class)
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

    def _word_lists(
        self, type: str, words: list[str]
    ) -> Iterator[Sequence[Sequence[str]]] | None:
        """Return the lists for the parts of each word; None if none has its script."""
        if type not in WORDED or not words:
            return iter(())

        fixed_words: frozenset[str] = frozenset()
        if type == "NAME":
            fixed_words = _TITLES_OF_NAMES
        if type == "ADDRESS":
            fixed_words = _address_words().fixed

        # "Maria de la Cruz": lower-case words among capitalised ones are particles.
        all_lower = all(word.islower() for word in words)
        drawn_places = []
        for place, word in enumerate(words):
            is_particle = word.islower() and not all_lower
            if word.casefold() not in fixed_words and not is_particle:
                drawn_places.append(place)
        drawn_words = [words[place] for place in drawn_places] or words

        locale = self._best_locale(drawn_words)
        if locale is None:
            return None

        lists: list[Sequence[Sequence[str]]] = [[[word]] for word in words]
        for place in drawn_places:
            word = words[place]
            if len(word) == 1:
                lists[place] = [_CHARACTER_CLASSES[2]]
                continue
            lists[place] = _parts_of_word(
                type,
                word,
                locale,
                is_alone=len(drawn_places) == 1,
                is_last=place == drawn_places[-1],
            )
        return iter(lists)

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


def _in_case_of(word: str, drawn: str) -> str:
    """Return a drawn word in the case of the word that it replaces."""
    if word.islower():
        return drawn.lower()
    if word.isupper():
        return drawn.upper()
    return drawn


def _parts_of_word(
    type: str, word: str, locale: _Locale, *, is_alone: bool, is_last: bool
) -> list[Sequence[str]]:
    """Return the lists from which a word is composed.

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


def _two_parts(word: str, locale: _Locale) -> list[Sequence[str]] | None:
    """Return the lists for a word of two parts: "jsmith", "mariajones", "smithj"."""
    for length in range(1, len(word)):
        head = word[:length]
        tail = word[length:]
        if head in locale.folded_first and tail in locale.folded_last:
            return [locale.first_names, locale.last_names]
        if head in locale.folded_last and tail in locale.folded_first:
            return [locale.last_names, locale.first_names]

    # An initial and a surname, in either order.
    if word[1:] in locale.folded_last:
        return [_CHARACTER_CLASSES[1], locale.last_names]
    if word[:-1] in locale.folded_last:
        return [locale.last_names, _CHARACTER_CLASSES[1]]
    return None


def _body(type: str, text: str) -> str:
    """Return the part that is drawn anew: all but the host of an e-mail address."""
    return text.rpartition("@")[0] if type == "EMAIL" else text


def _shape(type: str, text: str) -> str:
    """Return the format of a string: digits as 0, letters as a and A, or words as a."""
    shape = re.sub("[0-9]", "0", _body(type, text))
    if type in WORDED:
        return re.sub(r"[^\W\d_]+", "a", shape)
    return re.sub("[A-Z]", "A", re.sub("[a-z]", "a", shape))


def _joined(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of some columns, each joined to one string."""
    return ["".join(row) for row in zip(*columns, strict=True)]
