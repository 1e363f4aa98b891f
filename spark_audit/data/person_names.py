"""People's names in text, by lists of names and the words around them."""

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
"""A run of more capitalised words is no name with its neighbours."""

Range = tuple[int, int]

Word = tuple[int, int, str]

_NAME_PART = r"(?:(?:Mc|Mac|O['\u2019]|D['\u2019])?[A-Z\u00c0-\u00de][^\W\d_]*)"

_NAME_PATTERN = rf"{_NAME_PART}(?:-{_NAME_PART})*"

_RUN_OF_NAMES = re.compile(
    rf"(?<![\w@/.#&-])(?:[A-Z]\.|{_NAME_PATTERN})"
    rf"(?:[ ](?:(?:van|von|de|da|di|del|della|der|den|dos|bin|ibn|al|el|la|le)[ ])*"
    rf"(?:[A-Z]\.?(?=[ ])|{_NAME_PATTERN})){{0,11}}"
    rf"(?![\w@]|['\u2019](?:t|m|ll|re|ve)\b)"
)
"""Capitalised words, initials and the particles between them."""

_REVERSED = re.compile(
    rf"(?<![\w@/.#&-])({_NAME_PATTERN}),[ ]({_NAME_PATTERN})(?![\w@]|[ ][A-Z])"
)

_NON_SPACES = re.compile(r"[^ ]+")

_WORD_LISTS = {
    name: frozenset(words.split())
    for name, words in tomllib.loads(
        Path(__file__).with_name("person_names.toml").read_text("utf-8")
    ).items()
}

_ROLES, _FIRMS, _NOT_NAMES = (
    _WORD_LISTS["roles"],
    _WORD_LISTS["firms"],
    _WORD_LISTS["not_names"],
)

_BEFORE_PLACES, _PLACES = _WORD_LISTS["before_places"], _WORD_LISTS["places"]


class _Lists(NamedTuple):
    given: frozenset[str]
    """Given names of all locales, the words of each."""
    alone: frozenset[str]
    """Those that a text has alone too: of English-speaking places."""
    surnames: frozenset[str]
    english: frozenset[str]
    """Surnames of the same places as ``alone``."""
    places: frozenset[str]
    ordinary: frozenset[str]
    """Ordinary words, in lower case."""


@lru_cache(maxsize=1)
def providers() -> dict[str, type]:
    """What Faker has of people's names, by locale."""
    from faker.providers import person

    names = [module.name for module in pkgutil.iter_modules(person.__path__)]
    return {
        name: importlib.import_module(f"{person.__name__}.{name}").Provider
        for name in names
    }


def strings(value: object) -> Iterator[str]:
    """The strings in a list of Faker's, whatever it holds them in."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | tuple | list | set | frozenset):
        for item in value:
            yield from strings(item)


def _words(values: Iterable[str]) -> frozenset[str]:
    """Words in Latin letters with a capital, as text has them."""
    return frozenset(
        word
        for value in values
        for word in value.split()
        if len(word) > 1 and word[0].isupper() and ord(word[0]) < 0x250
    )


def _listed(provider: type, start: str) -> Iterator[str]:
    for name in dir(provider):
        value = getattr(provider, name)
        if name.startswith(start) and not callable(value):
            yield from strings(value)


@lru_cache(maxsize=1)
def _lists() -> _Lists:
    """Faker's own lists: names of some 90 locales, cities, countries, word lists."""
    from faker.providers.address.en_US import Provider as Address
    from faker.providers.geo import Provider as Geo
    from faker.providers.lorem.en_US import Provider as Lorem

    everywhere = providers().values()
    english = [providers()[f"en_{country}"] for country in ("US", "GB", "IE", "NZ")]
    given, alone, surnames, usual = (
        {name for provider in of for name in _listed(provider, start)}
        for start in ("first_name", "last_name")
        for of in (everywhere, english)
    )
    places = {*Address.countries, *Address.states}
    for _, _, city, _, zone in Geo.land_coords:
        places |= {city, zone.rpartition("/")[2].replace("_", " ")}
    # "Santa Maria" makes no place of Maria.
    words = {word for place in places if " " in place for word in place.split()} - alone
    words |= {place for place in places if " " not in place} | _PLACES
    lists = map(_words, (given, alone, surnames, usual, words))
    ordinary = frozenset(Lorem.word_list) | _NOT_NAMES | _FIRMS
    return _Lists._make((*lists, ordinary))


def _written(word: str, least: int = 4) -> str:
    """A word as lists write it: capitals alone say nothing of case."""
    return word.capitalize() if len(word) >= least and word.isupper() else word


def names(text: str) -> list[Range]:
    """Character ranges of people's names, in order, without overlaps.

    Blanks and hyphens are plain ones (``pii.plain`` makes them so).
    """
    lists = _lists()
    found = list(_reversed(text, lists))
    taken = bytearray(len(text))
    for start, end in found:
        taken[start:end] = b"\1" * (end - start)
    for run in _RUN_OF_NAMES.finditer(text):
        # Among words in capitals only, short ones are no acronyms.
        least = 2 if run[0].isupper() and run[0].count(" ") > 1 else 4
        words = [
            (run.start() + w.start(), run.start() + w.end(), _written(w[0], least))
            for w in _NON_SPACES.finditer(run[0])
        ]
        if taken[run.start()]:
            continue
        for start, end in _of_run(text, words, lists):
            found.append((start, end))
            taken[start:end] = b"\1" * (end - start)
    return sorted([*found, *_again(text, found, taken, lists)])


def shortened(text: str, start: int, end: int) -> Range:
    """A range behind a cue, to the first ordinary word: "JOHN SMITH AND" is a man."""
    lists = _lists()
    for word in list(_NON_SPACES.finditer(text, start, end))[1:]:
        plain = word[0].lower() in _NOT_NAMES
        if plain and word[0].capitalize() not in lists.alone | lists.english:
            return start, word.start() - 1
    return start, end


def _reversed(text: str, lists: _Lists) -> Iterator[Range]:
    """A surname, a comma, a given name: both listed, and nothing else."""
    for pair in _REVERSED.finditer(text):
        surname, first = (_written(word) for word in pair.groups())
        listed = surname in lists.surnames and first in lists.given
        both = (surname, first)
        plain = not any(w.lower() in lists.ordinary or w in lists.places for w in both)
        if listed and plain and not _before(text, pair.start())[:1].isupper():
            yield pair.span()


def _of_run(text: str, words: list[Word], lists: _Lists) -> Iterator[Range]:
    """Names among the words of one run."""
    i, before = 0, _before(text, words[0][0])
    while i < len(words):
        role = before.lower() in _ROLES
        end = 0 if before in _BEFORE_PLACES else _name_end(words, i, lists, role=role)
        start, stop = words[i][0], words[max(end, 1) - 1][1]
        is_person = end and _is_person(text, words, i, end, role=role)
        if is_person and not _goes_on(text, words, i, end, lists):
            yield start, stop
        end = end or i + 1
        before, i = words[end - 1][2].rstrip("."), end


def _is_person(text: str, words: list[Word], i: int, end: int, *, role: bool) -> bool:
    """Not a firm, a place or a prize, as the word behind tells; no lone capitals."""
    if end < len(words):
        return words[end][2].lower() not in _FIRMS
    start, stop = words[i][0], words[end - 1][1]
    lone = end - i == 1 and not role
    # An acronym, and "Faith 7", "Jack in the Box": no lone given name is so certain.
    if lone and (
        text[start:stop].isupper() or re.match(r" (?:\d|in the\b)", text[stop:])
    ):
        return False
    return not re.match(r"(?:['\u2019]s)?[ ](?:&|amp;)", text[stop:])


def _goes_on(text: str, words: list[Word], i: int, end: int, lists: _Lists) -> bool:
    """Return whether a word beside a full name seems to be a part of it.

    In a headline, where every word has its capital, and among words in capitals only,
    nothing tells.
    """
    is_in_capitals = text[words[i][0] : words[end - 1][1]].isupper()
    if len(words) > HEADLINE_WORDS or end - i < 2 or is_in_capitals:
        return False

    def may_be_a_name(word: str) -> bool:
        is_known = word.lower() in lists.ordinary | _ROLES | _FIRMS
        is_place = word in lists.places | _BEFORE_PLACES
        is_word = word[:1].isupper() and not word.isupper() and len(word) > 1
        return is_word and not is_known and not is_place

    before = words[i - 1][2] if i else ""
    behind = words[end][2] if end < len(words) else ""
    return may_be_a_name(before) or may_be_a_name(behind)


def _before(text: str, at: int) -> str:
    """The word that stands before a place in the text, on its line."""
    found = re.search(r"(\w+)\.?,?[ ]\**$", text[max(at - 30, 0) : at])
    return found[1] if found else ""


def _name_end(words: list[Word], i: int, lists: _Lists, *, role: bool) -> int:
    """Where a name that begins with word i ends (exclusive); 0 if none does."""
    first, n = words[i][2], len(words) - i
    if first.lower() in lists.ordinary or first.lower() in _ROLES:
        return 0
    j = i + 1
    while j < len(words) and (_initial(words[j][2]) or words[j][2].islower()):
        j += 1
    if j < len(words) and _surname(words[j][2], first, lists, role=role, n=n):
        j += 1
        # A second surname, but not in a headline, where every word has its capital.
        second = words[j][2] if j < len(words) < 5 else ""
        return j + (second in lists.surnames and second.lower() not in lists.ordinary)
    if len(words) == 1 and first not in lists.places and not _initial(first):
        # "The driver PGgTYdDl": a code has its capitals anywhere.
        plain = first in lists.surnames or first == first.capitalize()
        return i + 1 if (role and plain) or first in lists.alone else 0
    return i + 1 if role and first in lists.given | lists.surnames else 0


def _surname(word: str, first: str, lists: _Lists, *, role: bool, n: int) -> bool:
    """Whether a word is the surname behind a first one, of n words that are left."""
    headline = n > 4
    if word.lower() in lists.ordinary:
        # "Sandra Price": a usual name with a usual surname, which is a word too.
        usual = first in lists.alone - lists.places and word in lists.english
        return usual and not headline and word.lower() not in _NOT_NAMES | _FIRMS
    listed = any(part in lists.surnames for part in word.split("-"))
    if _initial(first):
        return listed or (first.endswith(".") and n <= 3 and len(word) > 3)
    if first in lists.places:
        return word in lists.english and word not in lists.places
    if first not in lists.given and not role:
        return False
    return listed or (not headline and word not in lists.places and len(word) > 2)


def _again(
    text: str, found: list[Range], taken: bytearray, lists: _Lists
) -> Iterator[Range]:
    """Where else the words of names stand: a headline, a surname alone."""
    known = {
        part
        for start, end in found
        for part in re.findall(r"[^\W\d_]{3,}", text[start:end])
        if part[0].isupper() and part.lower() not in lists.ordinary
    }
    start = end = -1
    for word in re.finditer(r"(?<![\w-])[^\W\d_]{3,}(?![\w-])", text):
        if word[0] not in known or taken[word.start()]:
            continue
        # Words that stand side by side are one name.
        if start >= 0 and text[end : word.start()] == " ":
            end = word.end()
            continue
        if start >= 0:
            yield start, end
        start, end = word.span()
    if start >= 0:
        yield start, end


def _initial(word: str) -> bool:
    return len(word.rstrip(".")) == 1 or (len(word) == 2 and word.isupper())
