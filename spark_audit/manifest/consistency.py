"""Whether a manifest's parts fit one another, and its examples by id."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from spark_audit.manifest.packed_lists import MOST

E = TypeVar("E")
"""What an example is: the schema's, which is checked by this."""


class ById(Mapping[str, E], Generic[E]):
    """Examples by id: of each it holds the number, and what checks ask for.

    Attributes
    ----------
    index
        Id -> place among the examples.
    train
        Shape ``(n,)``, bool.
    n_letters, n_tokens
        Shape ``(n,)``, int64: sizes of text and tokenisation; 0 where redacted.
    """

    def __init__(self, examples: Sequence[E]) -> None:
        self._examples = examples
        self.index: dict[str, int] = {}
        train, letters, tokens = array("b"), array("q"), array("q")
        example: Any
        for i, example in enumerate(examples):
            if self.index.setdefault(example.id, i) != i:
                raise ValueError(f"examples.{i} stands twice")
            train.append(example.split == "train")
            letters.append(len(example.prompt) + len(example.response))
            tokens.append(len(example.reference_unll))
        self.train = np.array(train, dtype=bool)
        self.n_letters, self.n_tokens = np.array(letters), np.array(tokens)

    def __getitem__(self, key: str) -> E:
        return self._examples[self.index[key]]

    def __contains__(self, key: object) -> bool:
        return key in self.index

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"{len(self)} examples"


def check_inside(field: str, ranges: Collection[tuple[int, int]], length: int) -> None:
    """Refuse a range that is empty, or outside of what is that long."""
    for start, end in ranges:
        if not 0 <= start < end <= length:
            raise ValueError(f"{field}: {start}:{end} is empty or outside 0:{length}")


def check_joined(manifest: Any) -> None:
    """What names an example names one that is here, and a place in it.

    Raises
    ------
    ValueError
        With the part that does not fit.
    """
    known = manifest.by_id
    _once("canaries", ((c.canary_id, c.part) for c in manifest.canaries))
    _once("twins", (one.id for one in manifest.twins))
    whole = manifest.redacted_from is None
    if whole and not (known.n_letters.all() and known.n_tokens.all()):
        i = int(np.flatnonzero((known.n_letters == 0) | (known.n_tokens == 0))[0])
        raise ValueError(f"examples.{i} has no text or no tokens")
    _check_pairs(manifest, whole)
    for field, key, at in _places(manifest):
        _check_place(known, field, key, at)
    for field, split in (("members", "train"), ("non_members", "test")):
        keys = getattr(manifest.membership, field)
        _once(f"membership.{field}", keys)
        for key in keys:
            i = known.index.get(key, -1)
            if i < 0 or known.train[i] != (split == "train"):
                raise ValueError(f"membership.{field} holds no {split} row's id")


def _check_pairs(manifest: Any, whole: bool) -> None:
    known, places = manifest.by_id, array("q")
    for i, pair in enumerate(manifest.pairs):
        field = f"pairs.{i}"
        for side in (pair.pii, pair.control):
            at = side.char_start, side.char_end
            _check_place(known, field, pair.example, at)
            row = known.index[pair.example]
            tokens = int(known.n_tokens[row]) or MOST
            check_inside(field, [(side.token_start, side.token_end)], tokens)
            if whole and (side.nll is None or pair.distance is None):
                raise ValueError(f"{field} has no nll or no distance")
        places.extend((row, pair.pii.token_start, pair.pii.token_end))
    held = np.array(places).reshape(-1, 3)
    order = np.lexsort(held.T)
    twice = (np.diff(held[order], axis=0) == 0).all(axis=1)
    if twice.any():
        raise ValueError(f"pairs.{order[1:][twice].min()} stands twice")


def _places(manifest: Any) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """What stands in an example, by the name of its field, with its characters."""
    for i, span in enumerate(manifest.unmatched):
        yield f"unmatched.{i}", span.example, (span.char_start, span.char_end)
    for name in ("canaries", "twins"):
        for i, held in enumerate(getattr(manifest, name)):
            for one in held.contexts:
                place = one.char_start, one.char_end
                yield f"{name}.{i}.contexts", one.example, place


def _check_place(known: ById[E], field: str, key: str, at: tuple[int, int]) -> None:
    if key not in known:
        raise ValueError(f"{field} names an example that is not here")
    check_inside(field, [at], int(known.n_letters[known.index[key]]) or MOST)


def _once(field: str, keys: Iterable[object]) -> None:
    known: set[object] = set()
    for i, key in enumerate(keys):
        if key in known:
            raise ValueError(f"{field}.{i} stands twice")
        known.add(key)
