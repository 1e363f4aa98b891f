"""Find twins of identifiers that nobody planted: fresh strings of the same form.

Each chosen identifier stands among fresh strings of its type and format. They take as
many tokens in its place and change no other token of its rows.

:class:`Identifiers` collects the places while rows are matched, slice by slice.
:func:`twin_sets` then chooses identifiers (:func:`_drawn_in_turn`) and draws twins
(:func:`_fresh_strings`) from :mod:`spark_audit.manifest.identifier_forms`. A *string*
is an identifier in its form for comparison (``data/occurrences.py``, ``string_of``).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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

MOST_TWIN_SETS = 200
"""Most identifiers that get twins."""

HELD_OUT_TWIN_SETS = 50
"""Sets reserved for held-out identifiers, if there are as many."""

TWINS_PER_IDENTIFIER = 31
"""Twins per identifier."""

MIN_TWINS = 8
"""Fewest twins with which an identifier is kept."""

MAX_TWIN_CONTEXTS = 2
"""Most rows in which an identifier is read."""

MAX_TWIN_DRAWS = 1024
"""Most strings that are drawn for an identifier."""

DRAWS_AT_ONCE = 128
"""Strings that are drawn in one lot; a divisor of :data:`MAX_TWIN_DRAWS`."""

NEARBY_CHARACTERS = 48
"""Characters on each side of an identifier between which a string must fit, before the
slower test on whole texts."""


class _Place(NamedTuple):
    """An identifier's place in a row of the data.

    Attributes
    ----------
    row_number
        Number of the row among all rows, from 0.
    char_start, char_end, token_start, token_end
        Its ranges in that row, end exclusive.
    """

    row_number: int
    char_start: int
    char_end: int
    token_start: int
    token_end: int


class _Identifier(NamedTuple):
    """An identifier that can be read in its rows.

    Attributes
    ----------
    type, text
        Its type, and its spelling in all of its places.
    dose
        Number of trained rows that hold it; 0 if it is held out.
    places
        Places at which it is read, in different rows; at most
        :data:`MAX_TWIN_CONTEXTS`.
    """

    type: str
    text: str
    dose: int
    places: list[_Place]


class _Surroundings(NamedTuple):
    """The text around an identifier, in characters and in tokens.

    Attributes
    ----------
    before, after
        The text on both sides.
    ids
        Token ids of both sides with the identifier between them.
    token_start, token_end
        Range of the identifier's tokens in ``ids``.
    encode
        Turns texts into token ids, as for this row.
    """

    before: str
    after: str
    ids: list[int]
    token_start: int
    token_end: int
    encode: Encode

    def strings_that_fit(self, strings: Sequence[str]) -> list[str]:
        """Return the strings that take as many tokens and change no other token."""
        if not strings:
            return []

        fitting = []
        texts = [self.before + string + self.after for string in strings]
        for string, ids in zip(strings, self.encode(texts), strict=True):
            is_same_length = len(ids) == len(self.ids)
            is_same_before = ids[: self.token_start] == self.ids[: self.token_start]
            is_same_behind = ids[self.token_end :] == self.ids[self.token_end :]
            if is_same_length and is_same_before and is_same_behind:
                fitting.append(string)
        return fitting


class Identifiers:
    """Places of identifiers that can be read in their rows, in 20 bytes per place."""

    def __init__(self) -> None:
        # String -> the type of its first annotation.
        self._types: dict[str, str] = {}
        # String -> the fields of its places, one place after the other.
        self._places: dict[str, array[int]] = defaultdict(lambda: array("i"))
        # Row id -> the characters that training read, where this is known.
        self._fed_texts: dict[str, tuple[int, int]] = {}

    def add(self, corpus: TokenCorpus, *, first_row: int) -> None:
        """Add a slice of rows; ``first_row`` is its first row's number among all."""
        for i, row in enumerate(corpus.rows):
            nll_micronats = corpus.nll_micronats[corpus.tokens_of(i)]
            is_scored = nll_micronats >= 0  # (tokens of the row,)

            # What training read is needed at the end, for identifiers that it cut off.
            if row.training_input is not None:
                self._fed_texts[row.example.id] = row.fed_text

            for span, tokens in row.spans:
                string = string_of(row.example, span)
                is_of_canary = span.part is not None
                if is_of_canary or not string:
                    continue

                self._types.setdefault(string, span.type)
                # An identifier beside a canary is not read there, because such a row
                # may be repeated many times.
                if tokens is None or row.example.canary is not None:
                    continue

                if is_scored[tokens.start : tokens.end].all():
                    place = _Place(
                        row_number=first_row + i,
                        char_start=span.start,
                        char_end=span.end,
                        token_start=tokens.start,
                        token_end=tokens.end,
                    )
                    self._places[string].extend(place)

    def readable_by_string(
        self, examples: Sequence[Example], *, seed: int
    ) -> dict[str, _Identifier]:
        """Return the identifiers that can be read on their own side, by folded string.

        A trained identifier must stand in a trained row, a held-out one in another row.
        Each has the spelling of its first row by hash, and further rows with that
        spelling.

        Parameters
        ----------
        examples
            All rows, in the order in which they were added.
        """
        fed_texts = self._fed_texts
        # The dose is the number of trained rows that hold a string; 0: held out.
        dose_of = doses(examples, self._types, fed_texts=fed_texts)
        # Strings that training cut off are neither trained on nor held out.
        cut_off = cut_off_strings(examples, dose_of, fed_texts=fed_texts)

        identifiers = dict[str, _Identifier]()
        for string in sorted(self._places.keys() - cut_off):
            dose = dose_of[string]
            place_by_row = self._places_on_side(string, examples, is_trained=dose > 0)
            if not place_by_row:
                continue

            # The order is by a hash of their ids, so that no row is preferred.
            rows_by_hash = sorted(
                place_by_row, key=lambda row_id: seed_for(seed, "twins", row_id)
            )
            places = [place_by_row[row_id] for row_id in rows_by_hash]

            # Only rows with the same spelling can hold the same twins.
            first_text = _text_at(examples, places[0])
            places_spelled_alike = [
                place for place in places if _text_at(examples, place) == first_text
            ]
            identifiers[string] = _Identifier(
                type=self._types[string],
                text=first_text,
                dose=dose,
                places=places_spelled_alike[:MAX_TWIN_CONTEXTS],
            )
        return identifiers

    def _places_on_side(
        self, string: str, examples: Sequence[Example], *, is_trained: bool
    ) -> dict[str, _Place]:
        """Return a string's first place in each row of one side, by row id.

        A trained identifier is read in trained rows, a held-out one in other rows.
        """
        place_by_row: dict[str, _Place] = {}
        for place in self._places_of(string):
            example = examples[place.row_number]
            if (example.split == "train") == is_trained:
                place_by_row.setdefault(example.id, place)
        return place_by_row

    def _places_of(self, string: str) -> Iterator[_Place]:
        """Yield the places of a string, which are stored as consecutive numbers."""
        numbers = self._places[string]
        n_fields = len(_Place._fields)
        for start in range(0, len(numbers), n_fields):
            yield _Place(*numbers[start : start + n_fields])


def _text_at(examples: Sequence[Example], place: _Place) -> str:
    """Return an identifier in its spelling at a place."""
    return examples[place.row_number].text[place.char_start : place.char_end]


def twin_sets(
    rows: Rows,
    identifiers: Identifiers,
    *,
    encode: Encode,
    encode_special_in_text: Encode | None = None,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Record], int]:
    """Return identifiers with their twins, and the number that had too few twins.

    Parameters
    ----------
    rows
        All rows.
    identifiers
        The identifiers of all rows.
    encode
        Turns texts into token ids, special tokens included.
    encode_special_in_text
        The same for texts that contain their special tokens; needed only with such
        rows.

    Returns
    -------
    list, int
        The manifest's records, and the number of identifiers with fewer than
        :data:`MIN_TWINS` twins.
    """
    readable = identifiers.readable_by_string(rows.examples, seed=seed)
    forms = Forms(
        (identifier.type, identifier.text) for identifier in readable.values()
    )
    doses_of_trained = {
        string: identifier.dose
        for string, identifier in readable.items()
        if identifier.dose
    }
    doses_of_held_out = {
        string: 0 for string, identifier in readable.items() if not identifier.dose
    }

    records: list[Record] = []
    n_lost = 0
    n_wanted = min(MOST_TWIN_SETS, len(readable))

    # Trained identifiers come first, and leave room for some held-out ones. Sets that
    # they do not fill go to held-out identifiers.
    most_trained = MOST_TWIN_SETS - min(HELD_OUT_TWIN_SETS, len(doses_of_held_out))
    sides = ((doses_of_trained, most_trained), (doses_of_held_out, MOST_TWIN_SETS))
    for dose_of, n_records_at_end in sides:
        for string in _drawn_in_turn(dose_of, seed):
            if len(records) == n_records_at_end:
                break

            # A separate stream: the twins do not depend on other identifiers.
            rng = np.random.default_rng(seed_for(seed, "twins", string))
            identifier = readable[string]
            layouts = [rows[place.row_number] for place in identifier.places]
            surroundings = _surroundings_of(
                identifier, layouts, encode, encode_special_in_text
            )
            twins = _fresh_strings(identifier, surroundings, forms, readable, rng)
            if len(twins) < MIN_TWINS:
                n_lost += 1
                continue

            record_id = str(len(records) + 1)
            records.append(_twin_record(record_id, identifier, layouts, twins, rng))
            if len(records) < n_wanted:
                progress(len(records), n_wanted)

    # If identifiers were lost, the last count is below the total.
    if n_wanted:
        progress(n_wanted, n_wanted)
    return records, n_lost


def _twin_record(
    record_id: str,
    identifier: _Identifier,
    layouts: Sequence[ManifestLayout],
    twins: Sequence[str],
    rng: np.random.Generator,
) -> Record:
    """Return the record of an identifier, at a random index among its twins."""
    true_index = int(rng.integers(len(twins) + 1))
    contexts = [
        {
            "example": row.example.id,
            "char_start": place.char_start,
            "char_end": place.char_end,
        }
        for row, place in zip(layouts, identifier.places, strict=True)
    ]
    return {
        "id": record_id,
        "type": identifier.type,
        "contexts": contexts,
        "candidates": [*twins[:true_index], identifier.text, *twins[true_index:]],
        "true_index": true_index,
        "dose": identifier.dose,
    }


def _drawn_in_turn(dose_of: Mapping[str, int], seed: int) -> Iterator[str]:
    """Yield strings in an order by hash, taking the bands of doses in turn.

    The highest band comes first, then one string of each further band, and so on. So no
    band is lost if only some strings are used.
    """
    # Strings are added by falling dose, so the bands are in that order, too.
    bands: dict[str, list[str]] = defaultdict(list)
    for string in sorted(dose_of, key=lambda string: (-dose_of[string], string)):
        dose = dose_of[string]
        bands[dose_group(dose) if dose else "0"].append(string)

    for strings in bands.values():
        strings.sort(key=lambda string: seed_for(seed, "twins", string))

    n_turns = max((len(strings) for strings in bands.values()), default=0)
    for turn in range(n_turns):
        for strings in bands.values():
            if turn < len(strings):
                yield strings[turn]


def _surroundings_of(
    identifier: _Identifier,
    layouts: Sequence[ManifestLayout],
    encode: Encode,
    encode_special_in_text: Encode | None,
) -> list[_Surroundings]:
    """Return the surroundings into which a string must fit, in the order of the tests.

    The first half is the nearby text of each place: it is quick to test, and a string
    must keep its number of tokens. The second half is the whole row of each place.
    """
    near = list[_Surroundings]()
    whole = list[_Surroundings]()
    for row, place in zip(layouts, identifier.places, strict=True):
        training = row.example.training_input
        encode_row = encode
        if training is not None and training.special_tokens == "in_text":
            assert encode_special_in_text is not None
            encode_row = encode_special_in_text

        before = row.example.text[: place.char_start]
        after = row.example.text[place.char_end :]
        whole.append(
            _Surroundings(
                before=before,
                after=after,
                ids=row.encoding.ids.tolist(),
                token_start=place.token_start,
                token_end=place.token_end,
                encode=encode_row,
            )
        )

        # Tokens of a cut text may differ from those of the row. So here the place is
        # all tokens: only their number must match.
        near_before = before[-NEARBY_CHARACTERS:]
        near_after = after[:NEARBY_CHARACTERS]
        (near_ids,) = encode_row([near_before + identifier.text + near_after])
        near.append(
            _Surroundings(
                before=near_before,
                after=near_after,
                ids=near_ids,
                token_start=0,
                token_end=len(near_ids),
                encode=encode_row,
            )
        )
    return [*near, *whole]


def _fresh_strings(
    identifier: _Identifier,
    surroundings: Sequence[_Surroundings],
    forms: Forms,
    readable: Collection[str],
    rng: np.random.Generator,
) -> list[str]:
    """Return strings of an identifier's form that fit in all of its places.

    There are at most :data:`TWINS_PER_IDENTIFIER`.

    Parameters
    ----------
    surroundings
        As :func:`_surroundings_of` returns them.
    readable
        Folded identifiers of the data, none of which may be a twin.
    """
    twins = list[str]()
    seen = {identifier.text}
    near = surroundings[: len(surroundings) // 2]
    whole = surroundings[len(surroundings) // 2 :]
    for n_drawn in range(0, MAX_TWIN_DRAWS, DRAWS_AT_ONCE):
        # If hardly one draw in a hundred fits, further draws will not fill a set.
        if n_drawn >= MAX_TWIN_DRAWS // 4 and len(twins) < MIN_TWINS // 4:
            break

        drawn = dict.fromkeys(
            forms.draw(identifier.type, identifier.text, rng, DRAWS_AT_ONCE)
        )
        fresh = [
            text
            for text in drawn
            if text not in seen and folded(text.strip()) not in readable
        ]
        seen.update(fresh)

        # Whole rows are slow to test, so only as many strings are tested as are needed.
        n_needed = TWINS_PER_IDENTIFIER - len(twins)
        for near_text in near:
            fresh = near_text.strings_that_fit(fresh)
        fresh = fresh[:n_needed]
        for whole_row in whole:
            fresh = whole_row.strings_that_fit(fresh)

        twins += fresh
        if len(twins) == TWINS_PER_IDENTIFIER:
            break
    return twins
