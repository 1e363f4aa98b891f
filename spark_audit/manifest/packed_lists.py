"""Hold lists of a manifest as JSON in Arrow arrays, and make objects on demand.

A row with two pairs takes 12 KB as objects and 2 KB as JSON, and it takes 40 us to make
the objects again. An array holds the JSON of each record instead of its values, because
the digest is that of canonical JSON, and fields of later versions must be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, TypeVar, overload

import pyarrow as pa
from pydantic import BaseModel, ValidationError, WrapSerializer

from spark_audit.provenance import canonical_json

P = TypeVar("P")

MANIFEST_CHUNK = 512
"""Records that are packed together."""
HELD = 2048
"""Lists up to this length keep all objects that were made."""
FEW = 256
"""Longer lists keep this many objects, the most recently used ones."""


class Records(Sequence[P], Generic[P]):
    """Records of one class, made on demand.

    Parameters
    ----------
    kind
        Class of the records.
    chunks
        Binary arrays with the JSON of each record.
    name
        Name of the list, for errors on malformed records.

    Raises
    ------
    ValidationError
        When a malformed record is requested; a note gives its place.
    """

    def __init__(
        self,
        kind: type[P],
        chunks: Iterable[pa.Array],
        *,
        name: str = "",
    ) -> None:
        self.kind = kind
        self.name = name
        self.json = pa.chunked_array([*chunks], pa.binary())

        # Audits use the same few examples again and again.
        n_kept = HELD if len(self) <= HELD else FEW
        self._record = lru_cache(n_kept)(self._make)

    @classmethod
    def of(cls, kind: type[P], records: Iterable[object], *, name: str) -> Records[P]:
        """Pack objects or unchecked records of a file; they are checked when read."""
        return cls(kind, packed(records), name=name)

    def pieces(self) -> Iterator[bytes]:
        """Yield the JSON of the whole list, piece by piece."""
        yield b"["
        # Canonical JSON has no blank behind a comma.
        separator = b""
        for chunk in self.json.chunks:
            yield separator + b",".join(chunk.to_pylist())
            separator = b","
        yield b"]"

    def _make(self, number: int) -> P:
        """Return the record with a number, checked."""
        model: Any = self.kind  # all kinds are pydantic models
        try:
            record: P = model.model_validate_json(self.json[number].as_py())
        except ValidationError as error:
            error.add_note(f"{self.name}.{number}")
            raise
        return record

    @overload
    def __getitem__(self, index: int) -> P: ...

    @overload
    def __getitem__(self, index: slice) -> list[P]: ...

    def __getitem__(self, index: int | slice) -> P | list[P]:
        # A range translates negative indices and slices.
        numbers = range(len(self))
        if isinstance(index, slice):
            return [self._record(number) for number in numbers[index]]
        return self._record(numbers[index])

    def __iter__(self) -> Iterator[P]:
        for number in range(len(self)):
            yield self._record(number)

    def __len__(self) -> int:
        return len(self.json)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | Records):
            return NotImplemented

        # Records are compared one by one, because a file may omit default values.
        if len(self) != len(other):
            return False
        for record, other_record in zip(self, other, strict=True):
            if record != other_record:
                return False
        return True

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(
        self,
    ) -> tuple[
        Callable[[type[P], list[pa.Array], str], Records[P]],
        tuple[type[P], list[pa.Array], str],
    ]:
        # The cache cannot be pickled, and another process does not need it.
        return _unpickled, (self.kind, self.json.chunks, self.name)


def _unpickled(kind: type[P], chunks: list[pa.Array], name: str) -> Records[P]:
    """Return the records of a pickled list."""
    return Records(kind, chunks, name=name)


def packed(records: Iterable[object]) -> Iterator[pa.Array]:
    """Yield the canonical JSON of objects or records, in chunks.

    Raises
    ------
    ValueError, RecursionError
        If a record cannot be written as JSON.
    """
    remaining = iter(records)
    while chunk := list(islice(remaining, MANIFEST_CHUNK)):
        yield pa.array([_json_line(record) for record in chunk], pa.binary())


def _json_line(record: object) -> bytes:
    """Return the canonical JSON of an object or a record."""
    if isinstance(record, BaseModel):
        record = record.model_dump(mode="json")
    return canonical_json(record)


# For type checking, Records counts as a list, so that readers accept both. In files,
# both are written as a list.
Packed = WrapSerializer(lambda records, serialise: serialise([*records]))
"""The type of a model's field with a list that may be packed."""
