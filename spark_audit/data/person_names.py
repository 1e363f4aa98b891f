"""Find people's names in text by lists of names and the words around them.

A run is a sequence of capitalised words, such as "President John Smith". The search
goes through the words of a run: :func:`_name_end` returns the end of a name that begins
at a word, and :func:`_is_person` and :func:`_goes_on` reject names whose neighbours
give them another meaning. :func:`names` puts the steps together.

Names and words come from Faker (:func:`_lists`), further words from
``person_names.toml``: a role, a firm or a word that is no name is added there.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

HEADLINE_WORDS = 5
"""Number of capitalised words in a run from which it counts as a headline. In a longer
run the neighbours of a full name are not looked at."""

Range = tuple[int, int]
"""Characters ``start:end`` of a text."""


class Word(NamedTuple):
    """A word of a run: its characters in the text, and its spelling in the lists.

    The lists have no word in capitals: ``JOHN`` in a text is ``John`` there.
    """

    start: int
    end: int
    spelling: str


_NAME_PART = r"(?:(?:Mc|Mac|O['\u2019]|D['\u2019])?[A-Z\u00c0-\u00de][^\W\d_]*)"

_NAME_PATTERN = rf"{_NAME_PART}(?:-{_NAME_PART})*"

_RUN_OF_NAMES = re.compile(
    rf"(?<![\w@/.#&-])(?:[A-Z]\.|{_NAME_PATTERN})"
    rf"(?:[ ](?:(?:van|von|de|da|di|del|della|der|den|dos|bin|ibn|al|el|la|le)[ ])*"
    rf"(?:[A-Z]\.?(?=[ ])|{_NAME_PATTERN})){{0,11}}"
    rf"(?![\w@]|['\u2019](?:t|m|ll|re|ve)\b)"
)
"""Pattern of a run: capitalised words, initials and the particles between them."""

_REVERSED = re.compile(
    rf"(?<![\w@/.#&-])({_NAME_PATTERN}),[ ]({_NAME_PATTERN})(?![\w@]|[ ][A-Z])"
)
"""Pattern of "Surname, Given": two capitalised words that are not part of a list."""

_NON_SPACES = re.compile(r"[^ ]+")

_WORDS_FILE = Path(__file__).with_name("person_names.toml")
_WORD_LISTS = {
    name: frozenset(words.split())
    for name, words in tomllib.loads(_WORDS_FILE.read_text("utf-8")).items()
}

_ROLE_WORDS = _WORD_LISTS["roles"]
_FIRM_WORDS = _WORD_LISTS["firms"]
_NOT_NAMES = _WORD_LISTS["not_names"]
_BEFORE_PLACES = _WORD_LISTS["before_places"]
_PLACE_WORDS = _WORD_LISTS["places"]


class _NameLists(NamedTuple):
    """Faker's lists of names and words.

    Attributes
    ----------
    given, surnames
        Given names and surnames of all locales, as single words.
    usual_given, usual_surnames
        Names of English-speaking countries, which count even alone.
    places
        Words of countries, states and cities.
    ordinary
        Ordinary words, in lower case.
    """

    given: frozenset[str]
    surnames: frozenset[str]
    usual_given: frozenset[str]
    usual_surnames: frozenset[str]
    places: frozenset[str]
    ordinary: frozenset[str]


@lru_cache(maxsize=1)
def providers() -> dict[str, type]:
    """Return Faker's providers of people's names, by locale."""
    from faker.providers import person

    locales = [module.name for module in pkgutil.iter_modules(person.__path__)]
    return {
        locale: importlib.import_module(f"{person.__name__}.{locale}").Provider
        for locale in locales
    }


def strings(value: object) -> Iterator[str]:
    """Yield the strings in one of Faker's lists, whatever its structure."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | tuple | list | set | frozenset):
        for item in value:
            yield from strings(item)


def _capitalised_words(phrases: Iterable[str]) -> frozenset[str]:
    """Return the capitalised words in Latin letters, in the spelling of text."""
    words = set()
    for phrase in phrases:
        for word in phrase.split():
            is_latin = ord(word[0]) < 0x250
            if len(word) > 1 and word[0].isupper() and is_latin:
                words.add(word)
    return frozenset(words)


def _names_of(locale_providers: Iterable[type], field_start: str) -> set[str]:
    """Return the names of providers, from the lists whose field begins so."""
    listed_names: set[str] = set()
    for provider in locale_providers:
        for field in dir(provider):
            value = getattr(provider, field)
            # Methods of the same beginning draw a name from the lists.
            if field.startswith(field_start) and not callable(value):
                listed_names.update(strings(value))
    return listed_names


@lru_cache(maxsize=1)
def _lists() -> _NameLists:
    """Return Faker's lists: names of some 90 locales, cities, countries and words."""
    from faker.providers.lorem.en_US import Provider as Lorem

    all_locales = providers().values()
    english = [providers()[f"en_{country}"] for country in ("US", "GB", "IE", "NZ")]
    usual_given = _names_of(english, "first_name")
    return _NameLists(
        given=_capitalised_words(_names_of(all_locales, "first_name")),
        surnames=_capitalised_words(_names_of(all_locales, "last_name")),
        usual_given=_capitalised_words(usual_given),
        usual_surnames=_capitalised_words(_names_of(english, "last_name")),
        places=_capitalised_words(_place_words(usual_given)),
        ordinary=frozenset(Lorem.word_list) | _NOT_NAMES | _FIRM_WORDS,
    )


def _place_words(usual_given: set[str]) -> set[str]:
    """Return the words of countries, states and cities.

    Usual given names in a place name of several words are left out: "Santa Maria" does
    not make "Maria" a place.
    """
    from faker.providers.address.en_US import Provider as Address
    from faker.providers.geo import Provider as Geo

    places = {*Address.countries, *Address.states}
    for _, _, city, _, zone in Geo.land_coords:
        places.add(city)
        places.add(zone.rpartition("/")[2].replace("_", " "))

    words = set(_PLACE_WORDS)
    for place in places:
        if " " in place:
            words.update(word for word in place.split() if word not in usual_given)
        else:
            words.add(place)
    return words


def _as_listed(word: str, min_length: int = 4) -> str:
    """Return a word in the spelling of the lists, which do not use all capitals.

    A shorter word in capitals may be an acronym and stays unchanged.
    """
    if len(word) >= min_length and word.isupper():
        return word.capitalize()
    return word


class _Coverage:
    """The characters of a text that already belong to a name."""

    def __init__(self, text: str) -> None:
        self._is_covered = bytearray(len(text))

    def __contains__(self, position: int) -> bool:
        return bool(self._is_covered[position])

    def add(self, start: int, end: int) -> None:
        """Mark characters as part of a name."""
        self._is_covered[start:end] = b"\1" * (end - start)


def names(text: str) -> list[Range]:
    """Return character ranges of people's names, in order, without overlaps.

    Blanks and hyphens must be plain ones (``pii.plain`` replaces others).
    """
    # First "Smith, John": in a run, "John" would be a name of its own.
    lists = _lists()
    covered = _Coverage(text)
    ranges = list(_reversed_names(text, lists))
    for start, end in ranges:
        covered.add(start, end)

    for run in _RUN_OF_NAMES.finditer(text):
        if run.start() in covered:
            continue
        for start, end in _names_of_run(text, _words_of_run(run), lists):
            ranges.append((start, end))
            covered.add(start, end)

    repeated = _repeated_names(text, ranges, covered, lists)
    return sorted([*ranges, *repeated])


def _words_of_run(run: re.Match[str]) -> list[Word]:
    """Return the words of a match of :data:`_RUN_OF_NAMES`."""
    # If all of three or more words are in capitals, a short word is not an acronym.
    is_in_capitals = run[0].isupper() and run[0].count(" ") > 1
    min_length = 2 if is_in_capitals else 4
    return [
        Word(
            start=run.start() + word.start(),
            end=run.start() + word.end(),
            spelling=_as_listed(word[0], min_length),
        )
        for word in _NON_SPACES.finditer(run[0])
    ]


def shortened(text: str, start: int, end: int) -> Range:
    """Return a range up to its first ordinary word: "JOHN SMITH AND" ends at "SMITH".

    The range is the match behind a cue such as "my name is".
    """
    lists = _lists()
    _, *later_words = _NON_SPACES.finditer(text, start, end)
    for word in later_words:
        is_ordinary = word[0].lower() in _NOT_NAMES
        capitalised = word[0].capitalize()
        is_usual_name = (
            capitalised in lists.usual_given or capitalised in lists.usual_surnames
        )
        if is_ordinary and not is_usual_name:
            return start, word.start() - 1
    return start, end


def _reversed_names(text: str, lists: _NameLists) -> Iterator[Range]:
    """Yield names as "surname, given name", if both are listed and not other words."""
    for pair in _REVERSED.finditer(text):
        surname = _as_listed(pair[1])
        given_name = _as_listed(pair[2])
        if surname not in lists.surnames or given_name not in lists.given:
            continue
        if _is_other_word(surname, lists) or _is_other_word(given_name, lists):
            continue
        # A capitalised word in front means a list, such as "Paris, London, Rome".
        if not _word_before(text, pair.start())[:1].isupper():
            yield pair.span()


def _is_other_word(word: str, lists: _NameLists) -> bool:
    """Return whether a word is also an ordinary word or a place."""
    return word.lower() in lists.ordinary or word in lists.places


def _names_of_run(text: str, words: list[Word], lists: _NameLists) -> Iterator[Range]:
    """Yield the names among the words of one run.

    ``first`` and ``end`` are indices of words here and in the functions below.
    """
    first = 0
    before = _word_before(text, words[0].start)
    while first < len(words):
        # Behind a role, as in "President Smith", a surname alone is a name, too.
        has_role = before.lower() in _ROLE_WORDS
        end = 0  # no name begins here
        if before not in _BEFORE_PLACES:
            end = _name_end(words, first, lists, has_role=has_role)

        if end and _is_person(text, words, first, end, has_role=has_role):
            if not _goes_on(text, words, first, end, lists):
                yield words[first].start, words[end - 1].end

        # If no name begins here, try the next word.
        first = end or first + 1
        before = words[first - 1].spelling.rstrip(".")


def _is_person(
    text: str, words: list[Word], first: int, end: int, *, has_role: bool
) -> bool:
    """Return whether words are a person, and not a firm, a place or a prize.

    The word behind them decides; a single word in capitals is not a person.
    """
    if end < len(words):
        return words[end].spelling.lower() not in _FIRM_WORDS

    name_end = words[end - 1].end
    is_single = end - first == 1 and not has_role
    if is_single:
        # A single given name is uncertain: acronyms, "Faith 7", "Jack in the Box".
        is_in_capitals = text[words[first].start : name_end].isupper()
        if is_in_capitals or re.match(r" (?:\d|in the\b)", text[name_end:]):
            return False
    # "Johnson & Johnson" is a firm.
    return not re.match(r"(?:['\u2019]s)?[ ](?:&|amp;)", text[name_end:])


def _goes_on(
    text: str, words: list[Word], first: int, end: int, lists: _NameLists
) -> bool:
    """Return whether a word next to a full name seems to belong to it.

    In runs of more than :data:`HEADLINE_WORDS` words and in capitals, nothing can be
    said, so the result is false.
    """
    is_in_capitals = text[words[first].start : words[end - 1].end].isupper()
    if len(words) > HEADLINE_WORDS or end - first < 2 or is_in_capitals:
        return False

    def may_be_name(word: str) -> bool:
        is_known = word.lower() in lists.ordinary | _ROLE_WORDS | _FIRM_WORDS
        is_place = word in lists.places | _BEFORE_PLACES
        is_word = word[:1].isupper() and not word.isupper() and len(word) > 1
        return is_word and not is_known and not is_place

    before = words[first - 1].spelling if first else ""
    behind = words[end].spelling if end < len(words) else ""
    return may_be_name(before) or may_be_name(behind)


def _word_before(text: str, position: int) -> str:
    """Return the word in front of a position on the same line, or ``""``."""
    match = re.search(r"(\w+)\.?,?[ ]\**$", text[max(position - 30, 0) : position])
    return match[1] if match else ""


def _name_end(
    words: list[Word], first: int, lists: _NameLists, *, has_role: bool
) -> int:
    """Return the end (exclusive) of a name that begins at a word; 0 if none does.

    The first line that fits decides::

        an ordinary word, or a role                                  no name
        any initials or particles, a surname, a second surname       a full name
        the only word of its run                                     :func:`_is_alone`
        a listed word behind a role                                  a name alone
    """
    first_word = words[first].spelling
    if first_word.lower() in lists.ordinary or first_word.lower() in _ROLE_WORDS:
        return 0

    second = _behind_initials(words, first + 1)
    if second < len(words):
        n_words = len(words) - first
        surname = words[second].spelling
        if _is_surname(surname, first_word, lists, has_role=has_role, n_words=n_words):
            return _end_of_surnames(words, second, lists)

    can_be_alone = first_word not in lists.places and not _is_initial(first_word)
    if len(words) == 1 and can_be_alone:
        return 1 if _is_alone(first_word, lists, has_role=has_role) else 0

    is_listed = first_word in lists.given or first_word in lists.surnames
    return first + 1 if has_role and is_listed else 0


def _behind_initials(words: list[Word], start: int) -> int:
    """Return the index of the first word from ``start`` that may be a surname.

    Initials and particles, such as "van", stand in front of it.
    """
    for index in range(start, len(words)):
        spelling = words[index].spelling
        if not _is_initial(spelling) and not spelling.islower():
            return index
    return len(words)


def _is_alone(word: str, lists: _NameLists, *, has_role: bool) -> bool:
    """Return whether a word is a name without any other word beside it."""
    # "The driver PGgTYdDl": a code has capitals anywhere, a name only in front.
    is_capitalised = word == word.capitalize()
    may_be_surname = word in lists.surnames or is_capitalised
    return (has_role and may_be_surname) or word in lists.usual_given


def _end_of_surnames(words: list[Word], surname: int, lists: _NameLists) -> int:
    """Return the end (exclusive) of a name whose surname is known.

    A second surname belongs to the name, but not in a headline, where every word is
    capitalised.

    Parameters
    ----------
    surname
        Index of the surname.
    """
    end = surname + 1
    if end < len(words) < HEADLINE_WORDS:
        second = words[end].spelling
        if second in lists.surnames and second.lower() not in lists.ordinary:
            return end + 1
    return end


def _is_surname(
    word: str, first_word: str, lists: _NameLists, *, has_role: bool, n_words: int
) -> bool:
    """Return whether a word is the surname that follows the first word of a name.

    The first case that fits decides: the surname is also an ordinary word; the first
    word is an initial; the first word is also a place; any other first word, which must
    be a given name or stand behind a role.

    Parameters
    ----------
    word, first_word
        The candidate, and the first word of the name.
    n_words
        Number of words of the run, from the first word of the name.
    """
    is_headline = n_words >= HEADLINE_WORDS
    if word.lower() in lists.ordinary:
        # "Sandra Price": the surname is also an ordinary word, so both must be usual
        # names.
        is_usual = (
            first_word in lists.usual_given
            and first_word not in lists.places
            and word in lists.usual_surnames
        )
        is_never_name = word.lower() in _NOT_NAMES or word.lower() in _FIRM_WORDS
        return is_usual and not is_headline and not is_never_name

    is_listed = any(surname in lists.surnames for surname in word.split("-"))
    if _is_initial(first_word):
        is_long = n_words <= 3 and len(word) > 3
        return is_listed or (first_word.endswith(".") and is_long)
    if first_word in lists.places:
        return word in lists.usual_surnames and word not in lists.places
    if first_word not in lists.given and not has_role:
        return False

    may_be_surname = not is_headline and word not in lists.places and len(word) > 2
    return is_listed or may_be_surname


def _repeated_names(
    text: str, ranges: list[Range], covered: _Coverage, lists: _NameLists
) -> Iterator[Range]:
    """Yield where words of the names stand once more, such as a surname alone.

    Parameters
    ----------
    ranges
        The names that were found.
    """
    words_of_names: set[str] = set()
    for start, end in ranges:
        for word in re.findall(r"[^\W\d_]{3,}", text[start:end]):
            if word[0].isupper() and word.lower() not in lists.ordinary:
                words_of_names.add(word)

    start = -1  # no repeat is open
    end = -1
    for match in re.finditer(r"(?<![\w-])[^\W\d_]{3,}(?![\w-])", text):
        if match[0] not in words_of_names or match.start() in covered:
            continue
        # Words next to each other are one name.
        if start >= 0 and text[end : match.start()] == " ":
            end = match.end()
            continue
        if start >= 0:
            yield start, end
        start, end = match.span()
    if start >= 0:
        yield start, end


def _is_initial(word: str) -> bool:
    """Return whether a word is one letter, or two capitals; a full stop may follow."""
    return len(word.rstrip(".")) == 1 or (len(word) == 2 and word.isupper())
