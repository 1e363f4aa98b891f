"""Twins of the identifiers that nobody planted: which are drawn, and in which rows.

Each drawn identifier stands among fresh strings of its kind
(:mod:`spark_audit.data.twins`) that take as many tokens in its place and change no
other token of its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from spark_audit.data.canaries import Encode
from spark_audit.data.occurrences import dose_group, doses, folded
from spark_audit.data.twins import Forms
from spark_audit.manifest.covariates import Corpus
from spark_audit.manifest.layout import Layout
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
    places: list[_Place]


def twin_sets(
    rows: Sequence[Layout],
    texts: Corpus,
    *,
    encode: Encode,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Record], int]:
    """Identifiers with their twins, and how many had to be left out.

    Parameters
    ----------
    encode
        Token ids of texts, special tokens included.

    Returns
    -------
    list, int
        The manifest's records; identifiers with fewer than :data:`FEWEST` twins.
    """
    known = _identifiers(rows, texts, seed)
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
            found = _fresh(known[key], forms, known, encode, rng)
            if len(found) < FEWEST:
                lost += 1
            else:
                name = str(len(records) + 1)
                records.append(_record(name, known[key], found, rng))
            if progress is not None:
                progress(min(len(records) + lost, total), total)
    return records, lost


def _identifiers(
    rows: Sequence[Layout], texts: Corpus, seed: int
) -> dict[str, _Identifier]:
    """Folded string -> identifier, of those that can be read in a row of their side."""
    places: dict[str, list[_Place]] = defaultdict(list)
    types: dict[str, str] = {}
    annotated: list[set[str]] = []
    for i, row in enumerate(rows):
        text, own = row.example.text, set[str]()
        scored = texts.unll[texts.of(i)] >= 0
        for span, tokens in zip(row.example.spans, row.spans, strict=True):
            key = folded(text[span.start : span.end].strip())
            if span.part is not None or not key:
                continue
            own.add(key)
            types.setdefault(key, span.type)
            # Canaries are audited by themselves, and some of their rows are repeated.
            if tokens is None or row.example.canary is not None:
                continue
            if scored[tokens.start : tokens.end].all():
                at = tokens.start, tokens.end
                places[key].append(_Place(row, span.start, span.end, at))
        annotated.append(own)
    trained = [row.example.text * (row.example.split == "train") for row in rows]
    dose = doses(trained, annotated)
    found = {}
    for key in sorted(places):
        split = "train" if dose[key] else "test"
        first: dict[str, _Place] = {}
        for place in places[key]:
            if place.row.example.split == split:
                first.setdefault(place.row.example.id, place)
        chosen = sorted(first, key=lambda name: seed_for(seed, "twins", name))
        if not chosen:
            continue
        text = _text(first[chosen[0]])
        alike = [first[name] for name in chosen if _text(first[name]) == text]
        found[key] = _Identifier(types[key], text, dose[key], alike[:CONTEXTS])
    return found


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
    forms: Forms,
    known: Mapping[str, _Identifier],
    encode: Encode,
    rng: np.random.Generator,
) -> list[str]:
    """Strings of its kind that fit in all of its places, :data:`TWINS` at most."""
    found: list[str] = []
    seen = {one.text}
    near = [_near(place, encode) for place in one.places]
    whole = [_whole(place, encode) for place in one.places]
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
    name: str, one: _Identifier, twins: list[str], rng: np.random.Generator
) -> Record:
    index = int(rng.integers(len(twins) + 1))
    return {
        "id": name,
        "type": one.type,
        "contexts": [
            {"example": p.row.example.id, "char_start": p.start, "char_end": p.end}
            for p in one.places
        ],
        "candidates": [*twins[:index], one.text, *twins[index:]],
        "true_index": index,
        "dose": one.dose,
    }
