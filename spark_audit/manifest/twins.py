"""Twins of the identifiers that nobody planted: which are drawn, and fresh strings.

Each drawn identifier stands among fresh strings of its type and format that take as
many tokens in its place and change no other token of its rows.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from spark_audit.data.canary_candidates import Encode
from spark_audit.data.examples import Example
from spark_audit.data.occurrences import (
    cut_off_strings,
    dose_group,
    doses,
    folded,
    string_of,
)
from spark_audit.manifest.identifier_forms import Forms
from spark_audit.manifest.layout import ManifestLayout, Rows
from spark_audit.manifest.records import Record
from spark_audit.manifest.token_corpus import TokenCorpus
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
