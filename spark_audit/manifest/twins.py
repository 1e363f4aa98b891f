"""Twins of the identifiers that nobody planted: which are drawn, and in which rows.

Each drawn identifier stands among fresh strings of its kind
(:mod:`spark_audit.data.twins`) that take as many tokens in its place and change no
other token of its rows.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from spark_audit.data.canaries import Encode
from spark_audit.data.examples import Example
from spark_audit.data.occurrences import dose_group, finder, folded
from spark_audit.data.twins import Forms
from spark_audit.manifest.covariates import Corpus
from spark_audit.manifest.layout import Layout, Rows
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


@dataclass(frozen=True)
class _Place:
    """A row and the identifier's characters and tokens in it."""

    row: Layout
    start: int
    end: int
    tokens: tuple[int, int]


@dataclass(frozen=True)
class _Identifier:
    type: str
    text: str
    dose: int
    places: list[tuple[int, ...]]

    def read(self, rows: Rows) -> list[_Place]:
        """Its places with their rows."""
        found = []
        for row, start, end, *tokens in self.places:
            found.append(_Place(rows[row], start, end, (tokens[0], tokens[1])))
        return found


class Identifiers:
    """Where identifiers stand that can be read in their rows, in 24 bytes a place."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._types: list[str] = []
        # Of each place: identifier, row, characters from and to, tokens from and to.
        self._places = array("i")

    def add(self, rows: Sequence[Layout], texts: Corpus, *, first: int) -> None:
        """Take a slice of rows, of which the first has this number among all."""
        for i, row in enumerate(rows):
            scored = texts.unll[texts.of(i)] >= 0
            for span, tokens in zip(row.example.spans, row.spans, strict=True):
                key = folded(row.example.text[span.start : span.end].strip())
                if span.part is not None or not key:
                    continue
                number = self._number.setdefault(key, len(self._number))
                if number == len(self._types):
                    self._types.append(span.type)
                # Canaries are audited by themselves, and some rows are repeated.
                if tokens is None or row.example.canary is not None:
                    continue
                at = tokens.start, tokens.end
                if scored[slice(*at)].all():
                    place = (number, first + i, span.start, span.end, *at)
                    self._places.extend(place)

    def known(self, examples: Sequence[Example], seed: int) -> dict[str, _Identifier]:
        """Folded string -> identifier, of those that can be read on their side."""
        doses = self._doses(examples)
        places = np.array(self._places, np.int32).reshape(-1, 6)
        places = places[np.argsort(places[:, 0], kind="stable")]
        edges = np.searchsorted(places[:, 0], np.arange(len(self._number) + 1))
        found = {}
        for key in sorted(self._number):
            number = self._number[key]
            dose = int(doses[number])
            own = places[edges[number] : edges[number + 1], 1:].tolist()
            if one := _identifier(self._types[number], dose, own, examples, seed):
                found[key] = one
        return found

    def _doses(self, examples: Sequence[Example]) -> np.ndarray:
        """In how many trained rows each stands, annotated there or not."""
        doses = np.zeros(len(self._number), np.int64)
        find = finder(self._number)
        for example in examples:
            text = example.text
            if example.split != "train":
                continue
            own = {
                folded(text[span.start : span.end].strip())
                for span in example.spans
                if span.part is None
            }
            stands = find(folded(text)) | own
            doses[[self._number[key] for key in stands - {""}]] += 1
        return doses


def _identifier(
    type: str,
    dose: int,
    places: Sequence[Sequence[int]],
    examples: Sequence[Example],
    seed: int,
) -> _Identifier | None:
    """An identifier in the rows that it is read in, if there are any."""
    split = "train" if dose else "test"
    first: dict[str, tuple[tuple[int, ...], str]] = {}
    for row, start, end, *tokens in places:
        example = examples[row]
        if example.split == split:
            text = example.text[start:end]
            first.setdefault(example.id, ((row, start, end, *tokens), text))
    chosen = sorted(first, key=lambda name: seed_for(seed, "twins", name))
    if not chosen:
        return None
    text = first[chosen[0]][1]
    alike = [first[name][0] for name in chosen if first[name][1] == text]
    return _Identifier(type, text, dose, alike[:CONTEXTS])


def twin_sets(
    rows: Rows,
    known: Mapping[str, _Identifier],
    *,
    encode: Encode,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Record], int]:
    """Identifiers with their twins, and how many had to be left out.

    Parameters
    ----------
    rows
        All of them.
    known
        As :meth:`Identifiers.known` gives them.
    encode
        Token ids of texts, special tokens included.

    Returns
    -------
    list, int
        The manifest's records; identifiers with fewer than :data:`FEWEST` twins.
    """
    forms = Forms((one.type, one.text) for one in known.values())
    sides = [[k for k, x in known.items() if (x.dose > 0) == t] for t in (True, False)]
    # What one side does not fill is left to the other.
    bounds = (MOST - min(HELD_OUT, len(sides[1])), MOST)
    total = min(MOST, len(known))
    records: list[Record] = []
    lost = 0
    for keys, most in zip(sides, bounds, strict=True):
        for key in _in_turn({k: known[k].dose for k in keys}, seed):
            if len(records) == most:
                break
            rng = np.random.default_rng(seed_for(seed, "twins", key))
            places = known[key].read(rows)
            found = _fresh(known[key], places, forms, known, encode, rng)
            if len(found) < FEWEST:
                lost += 1
            else:
                name = str(len(records) + 1)
                records.append(_record(name, known[key], places, found, rng))
            if progress is not None and len(records) < total:
                progress(len(records), total)
    if progress is not None and total:
        progress(total, total)
    return records, lost


def _text(place: _Place) -> str:
    return place.row.example.text[place.start : place.end]


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
    places: Sequence[_Place],
    forms: Forms,
    known: Mapping[str, _Identifier],
    encode: Encode,
    rng: np.random.Generator,
) -> list[str]:
    """Strings of its kind that fit in all of its places, :data:`TWINS` at most."""
    found: list[str] = []
    seen = {one.text}
    near = [_near(place, encode) for place in places]
    whole = [_whole(place, encode) for place in places]
    for drawn in range(0, DRAWS, LOT):
        # Where hardly one in a hundred fits, the rest of the draws gives no set.
        if drawn >= DRAWS // 4 and len(found) < FEWEST // 4:
            break
        lot = dict.fromkeys(forms.draw(one.type, one.text, rng, LOT))
        fresh = [x for x in lot if x not in seen and folded(x.strip()) not in known]
        seen.update(fresh)
        for fits in near:
            fresh = fits(fresh)
        fresh = fresh[: TWINS - len(found)]
        for fits in whole:
            fresh = fits(fresh)
        found += fresh
        if len(found) == TWINS:
            break
    return found


Fits = Callable[[list[str]], list[str]]


def _near(place: _Place, encode: Encode) -> Fits:
    """Those that take as many tokens as the identifier between the text beside it."""
    text = place.row.example.text
    before = text[max(place.start - NEAR, 0) : place.start]
    after = text[place.end : place.end + NEAR]
    (own,) = encode([before + _text(place) + after])

    def keep(strings: list[str]) -> list[str]:
        rows = encode([before + x + after for x in strings]) if strings else []
        return [x for x, ids in zip(strings, rows, strict=True) if len(ids) == len(own)]

    return keep


def _whole(place: _Place, encode: Encode) -> Fits:
    """Those that change no token of the whole text but the identifier's own."""
    text, own = place.row.example.text, place.row.encoding.ids.tolist()
    before, after = text[: place.start], text[place.end :]
    start, end = place.tokens

    def same(ids: list[int]) -> bool:
        edges = ids[:start] == own[:start] and ids[end:] == own[end:]
        return edges and len(ids) == len(own)

    def keep(strings: list[str]) -> list[str]:
        rows = encode([before + x + after for x in strings]) if strings else []
        return [x for x, ids in zip(strings, rows, strict=True) if same(ids)]

    return keep


def _record(
    name: str,
    one: _Identifier,
    places: Sequence[_Place],
    twins: list[str],
    rng: np.random.Generator,
) -> Record:
    index = int(rng.integers(len(twins) + 1))
    return {
        "id": name,
        "type": one.type,
        "contexts": [
            {"example": p.row.example.id, "char_start": p.start, "char_end": p.end}
            for p in places
        ],
        "candidates": [*twins[:index], one.text, *twins[index:]],
        "true_index": index,
        "dose": one.dose,
    }
