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
from spark_audit.data.occurrences import dose_group, doses, folded
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


Place = tuple[int, int, int, int, int]
"""A row, and an identifier's characters and tokens in it, from and to."""


@dataclass(frozen=True)
class _Identifier:
    type: str
    text: str
    dose: int
    places: list[Place]


class Identifiers:
    """Where identifiers stand that can be read in their rows, in 20 bytes per place."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._places: dict[str, array[int]] = {}

    def add(self, texts: Corpus, *, first: int) -> None:
        """Take a slice of rows, of which the first has this number among all."""
        for i, row in enumerate(texts.rows):
            scored = texts.unll[texts.of(i)] >= 0
            for span, tokens in row.spans:
                key = folded(row.example.text[span.start : span.end].strip())
                if span.part is not None or not key:
                    continue
                self._types.setdefault(key, span.type)
                # Canaries are audited by themselves, and some rows are repeated.
                if tokens is None or row.example.canary is not None:
                    continue
                at = tokens.start, tokens.end
                if scored[slice(*at)].all():
                    place = first + i, span.start, span.end, *at
                    self._places.setdefault(key, array("i")).extend(place)

    def known(self, examples: Sequence[Example], seed: int) -> dict[str, _Identifier]:
        """Folded string -> identifier, of those that can be read on their side."""
        texts = (example.text * (example.split == "train") for example in examples)
        counts = doses(texts, map(_own, examples), self._types)
        found = {}
        for key in sorted(self._places):
            side = "train" if counts[key] else "test"
            first: dict[str, tuple[Place, str]] = {}
            for place in zip(*[iter(self._places[key])] * 5, strict=True):
                example = examples[place[0]]
                if example.split == side:
                    text = example.text[place[1] : place[2]]
                    first.setdefault(example.id, (place, text))
            names = sorted(first, key=lambda name: seed_for(seed, "twins", name))
            if names:
                text = first[names[0]][1]
                alike = [first[name][0] for name in names if first[name][1] == text]
                found[key] = _Identifier(
                    self._types[key], text, counts[key], alike[:CONTEXTS]
                )
        return found


def _own(example: Example) -> set[str]:
    """The strings annotated in a row that are no part of a canary, folded."""
    return {
        folded(example.text[span.start : span.end].strip())
        for span in example.spans
        if span.part is None
    }


def twin_sets(
    rows: Rows,
    known: Mapping[str, _Identifier],
    *,
    encode: Encode,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
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
            places = [(rows[place[0]], *place[1:]) for place in known[key].places]
            twins = _fresh(known[key], places, forms, known, encode, rng)
            if len(twins) < FEWEST:
                lost += 1
            else:
                index = int(rng.integers(len(twins) + 1))
                twins.insert(index, known[key].text)
                contexts = [
                    {"example": row.example.id, "char_start": start, "char_end": end}
                    for row, start, end, *_ in places
                ]
                records.append(
                    {
                        "id": str(len(records) + 1),
                        "type": known[key].type,
                        "contexts": contexts,
                        "candidates": twins,
                        "true_index": index,
                        "dose": known[key].dose,
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
    places: Sequence[tuple[Layout, int, int, int, int]],
    forms: Forms,
    known: Mapping[str, _Identifier],
    encode: Encode,
    rng: np.random.Generator,
) -> list[str]:
    """Strings of its kind that fit in all of its places, :data:`TWINS` at most."""
    found: list[str] = []
    seen = {one.text}
    near = [
        (text[max(start - NEAR, 0) : start], text[end : end + NEAR])
        for row, start, end, *_ in places
        for text in (row.example.text,)
    ]
    sizes = [len(encode([before + one.text + after])[0]) for before, after in near]

    def read(strings: list[str], before: str, after: str) -> list[list[int]]:
        return encode([before + x + after for x in strings]) if strings else []

    for drawn in range(0, DRAWS, LOT):
        # Where hardly one in a hundred fits, the rest of the draws gives no set.
        if drawn >= DRAWS // 4 and len(found) < FEWEST // 4:
            break
        lot = dict.fromkeys(forms.draw(one.type, one.text, rng, LOT))
        fresh = [x for x in lot if x not in seen and folded(x.strip()) not in known]
        seen.update(fresh)
        # As many tokens between the text beside it, which is quickly read; then no
        # other token of the whole text may change.
        for edges, size in zip(near, sizes, strict=True):
            ids = read(fresh, *edges)
            fresh = [x for x, y in zip(fresh, ids, strict=True) if len(y) == size]
        fresh = fresh[: TWINS - len(found)]
        for row, start, end, low, high in places:
            text, own = row.example.text, row.encoding.ids.tolist()
            size, others = len(own), (own[:low], own[high:])
            ids = read(fresh, text[:start], text[end:])
            fresh = [
                x
                for x, y in zip(fresh, ids, strict=True)
                if len(y) == size and (y[:low], y[high:]) == others
            ]
        found += fresh
        if len(found) == TWINS:
            break
    return found
