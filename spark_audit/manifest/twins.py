"""Twins of the identifiers that nobody planted: which are drawn, and fresh strings.

Each drawn identifier stands among fresh strings of its type and format that take as
many tokens in its place and change no other token of its rows. Names and the words of
e-mail and postal addresses come from Faker's lists of the locale that the name is from;
digits stay digits, and where many identifiers share a format each character is one that
stands in its place there, so that what they all begin with does not give a twin away
**[ours]**.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from spark_audit.data.canaries import HOSTS, checked, pick
from spark_audit.data.canary_candidates import Encode
from spark_audit.data.examples import Example
from spark_audit.data.occurrences import (
    cut_off_strings,
    dose_group,
    doses,
    folded,
    string_of,
)
from spark_audit.data.person_names import providers, strings
from spark_audit.data.pii import luhn
from spark_audit.manifest.layout import ManifestLayout, Rows, TokenCorpus
from spark_audit.manifest.selection import Record
from spark_audit.provenance import seed_for

MOST, HELD_OUT = 200, 50
"""Identifiers that are drawn, at most, and how many of them are kept for those never
trained on, where there are as many."""
TWINS, FEWEST = 31, 8
"""Twins of an identifier; one that finds fewer than the second is left out."""
CONTEXTS = 2
"""Rows that an identifier is read in, at most."""
DRAWS, LOT = 1024, 128
"""Strings that are drawn for an identifier, and how many at once."""
NEAR = 48
"""Characters beside the identifier that a string must fit between before whole texts
are tokenised, which takes longer."""


Place = tuple[int, int, int, int, int]
"""A row, and an identifier's characters and tokens in it, from and to."""
_Frame = tuple[str, str, list[int], int, int, Encode]


class _Identifier(NamedTuple):
    type: str
    text: str
    dose: int
    places: list[Place]


class Identifiers:
    """Where identifiers stand that can be read in their rows, in 20 bytes per place."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._places: dict[str, array[int]] = defaultdict(lambda: array("i"))
        self._fed_texts: dict[str, tuple[int, int]] = {}

    def add(self, texts: TokenCorpus, *, first: int) -> None:
        """Take a slice of rows, of which the first has this number among all."""
        for i, row in enumerate(texts.rows):
            scored = texts.unll[texts.of(i)] >= 0
            if row.training_input is not None:
                self._fed_texts[row.example.id] = row.fed_text
            for span, tokens in row.spans:
                key = string_of(row.example, span)
                if span.part is not None or not key:
                    continue
                self._types.setdefault(key, span.type)
                # Canaries are audited by themselves, and some rows are repeated.
                if tokens is None or row.example.canary is not None:
                    continue
                at = tokens.start, tokens.end
                if scored[slice(*at)].all():
                    self._places[key].extend((first + i, span.start, span.end, *at))

    def readable(
        self, examples: Sequence[Example], *, seed: int
    ) -> dict[str, _Identifier]:
        """Folded string -> those that can be read on their side, trained or not.

        Each is as it stands in the first row by hash, with other rows where it is so.
        """
        fed_texts = self._fed_texts
        counts = doses(examples, self._types, fed_texts=fed_texts)
        # What training cut off is neither trained on nor held out.
        cut_off = cut_off_strings(examples, counts, fed_texts=fed_texts)
        known = dict[str, _Identifier]()
        for key in sorted(self._places.keys() - cut_off):
            first: dict[str, Place] = {}
            for place in zip(*[iter(self._places[key])] * 5, strict=True):
                example = examples[place[0]]
                if (example.split == "train") == (counts[key] > 0):
                    first.setdefault(example.id, place)
            names = sorted(first, key=lambda name: seed_for(seed, "twins", name))
            places = [first[name] for name in names]
            texts = [examples[row].text[low:high] for row, low, high, *_ in places]
            alike = [at for at, x in zip(places, texts, strict=True) if x == texts[0]]
            if alike:
                facts = self._types[key], texts[0], counts[key]
                known[key] = _Identifier(*facts, alike[:CONTEXTS])
        return known


def twin_sets(
    rows: Rows,
    identifiers: Identifiers,
    *,
    encode: Encode,
    encode_special_in_text: Encode | None = None,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Record], int]:
    """Identifiers with their twins, and how many had to be left out.

    Parameters
    ----------
    rows
        All of them.
    identifiers
        Those of all rows.
    encode
        Token ids of texts, special tokens included.
    encode_special_in_text
        The same of texts whose special tokens are written in them; needed where there
        are such rows.

    Returns
    -------
    list, int
        The manifest's records; identifiers with fewer than :data:`FEWEST` twins.
    """
    known = identifiers.readable(rows.examples, seed=seed)
    forms = Forms((one.type, one.text) for one in known.values())
    trained, others = (
        {key: one.dose for key, one in known.items() if bool(one.dose) == side}
        for side in (True, False)
    )
    total = min(MOST, len(known))
    records: list[Record] = []
    lost = 0
    # What one side does not fill is left to the other.
    for side, most in ((trained, MOST - min(HELD_OUT, len(others))), (others, MOST)):
        for key in _in_turn(side, seed):
            if len(records) == most:
                break
            rng, one = np.random.default_rng(seed_for(seed, "twins", key)), known[key]
            places = [(rows[place[0]], *place[1:]) for place in one.places]
            twins = _fresh(
                one, places, forms, known, encode, encode_special_in_text, rng
            )
            if len(twins) < FEWEST:
                lost += 1
                continue
            index = int(rng.integers(len(twins) + 1))
            twins.insert(index, one.text)
            records.append(
                {
                    "id": str(len(records) + 1),
                    "type": one.type,
                    "contexts": [
                        {"example": row.example.id, "char_start": low, "char_end": high}
                        for row, low, high, *_ in places
                    ],
                    "candidates": twins,
                    "true_index": index,
                    "dose": one.dose,
                }
            )
            if len(records) < total:
                progress(len(records), total)
    if total:
        progress(total, total)
    return records, lost


def _in_turn(doses: Mapping[str, int], seed: int) -> Iterator[str]:
    """By hash, from each band of doses in turn, the highest first: none is lost."""
    bands: dict[str, list[str]] = defaultdict(list)
    for key in sorted(doses, key=lambda key: (-doses[key], key)):
        bands[dose_group(doses[key]) if doses[key] else "0"].append(key)
    for held in bands.values():
        held.sort(key=lambda key: seed_for(seed, "twins", key))
    for row in zip_longest(*bands.values()):
        yield from (key for key in row if key is not None)


def _fresh(
    one: _Identifier,
    places: Sequence[tuple[ManifestLayout, int, int, int, int]],
    forms: Forms,
    known: Collection[str],
    encode: Encode,
    encode_special_in_text: Encode | None,
    rng: np.random.Generator,
) -> list[str]:
    """Strings of its kind that fit in all of its places, :data:`TWINS` at most."""
    # What stands around it, the tokens of all, and which of them are its own: first of
    # the text beside it, which is quickly read and must have as many, then of all.
    near, whole = list[_Frame](), list[_Frame]()
    for row, start, end, low, high in places:
        training = row.example.training_input
        encode_row = encode
        if training is not None and training.special_tokens == "in_text":
            assert encode_special_in_text is not None
            encode_row = encode_special_in_text
        before, after = row.example.text[:start], row.example.text[end:]
        ids = row.encoding.ids.tolist()
        whole.append((before, after, ids, low, high, encode_row))
        before, after = before[-NEAR:], after[:NEAR]
        (ids,) = encode_row([before + one.text + after])
        near.append((before, after, ids, 0, len(ids), encode_row))
    found, seen = list[str](), {one.text}
    for drawn in range(0, DRAWS, LOT):
        # Where hardly one in a hundred fits, the rest of the draws gives no set.
        if drawn >= DRAWS // 4 and len(found) < FEWEST // 4:
            break
        lot = dict.fromkeys(forms.draw(one.type, one.text, rng, LOT))
        fresh = [x for x in lot if x not in seen and folded(x.strip()) not in known]
        seen.update(fresh)
        for frames in (near, whole):
            for before, after, ids, low, high, encode_row in frames:
                read = encode_row([before + x + after for x in fresh]) if fresh else []
                others = ids[:low] + ids[high:]
                fresh = [
                    x
                    for x, y in zip(fresh, read, strict=True)
                    if len(y) == len(ids) and y[:low] + y[high:] == others
                ]
            fresh = fresh[: TWINS - len(found)]
        found += fresh
        if len(found) == TWINS:
            break
    return found


# --- strings of an identifier's kind --------------------------------------------------


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
