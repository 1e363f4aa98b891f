"""Lists of a manifest as JSON in Arrow arrays; an object is made when it is read.

A row with two pairs takes 12 KB as objects and 2 KB as JSON; making it again takes 40
us. The digest is that of canonical JSON, and fields of later versions are kept: so an
array holds the JSON of each record rather than its values.
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
"""All objects of a list of up to so many are kept once they are made."""
FEW = 256
"""So many objects of a longer list are kept, those that were last asked for."""


class Records(Sequence[P], Generic[P]):
    """Records of one kind; each is made when it is asked for.

    Parameters
    ----------
    kind
        The class of the records.
    chunks
        JSON of each record, binary.
    name
        What the list is called where a record is malformed.

    Raises
    ------
    ValidationError
        When a malformed record is asked for; its place stands in a note.
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

        # Audits ask for the same few examples again and again.
        n_kept = HELD if len(self) <= HELD else FEW
        self._record = lru_cache(n_kept)(self._make)

    @classmethod
    def of(cls, kind: type[P], records: Iterable[object], *, name: str) -> Records[P]:
        """Pack objects, or records as they stand in a file, which are checked later."""
        return cls(kind, packed(records), name=name)

    def pieces(self) -> Iterator[bytes]:
        """Yield JSON of the whole list, piece by piece."""
        yield b"["
        # Canonical JSON has no blank behind a comma.
        separator = b""
        for chunk in self.json.chunks:
            yield separator + b",".join(chunk.to_pylist())
            separator = b","
        yield b"]"

    def _make(self, number: int) -> P:
        """Return the record of a number, checked."""
        model: Any = self.kind  # all kinds are pydantic's models
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
        # A range knows what a negative index and a slice mean.
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

        # Record by record: a field that has its default may be written or left out.
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
        # The cache cannot be pickled, and is not needed in another process.
        return _unpickled, (self.kind, self.json.chunks, self.name)


def _unpickled(kind: type[P], chunks: list[pa.Array], name: str) -> Records[P]:
    """Return records as another process had them."""
    return Records(kind, chunks, name=name)


def packed(records: Iterable[object]) -> Iterator[pa.Array]:
    """Yield canonical JSON of objects or records, some together.

    Raises
    ------
    ValueError, RecursionError
        If one cannot be written as JSON.
    """
    remaining = iter(records)
    while chunk := list(islice(remaining, MANIFEST_CHUNK)):
        yield pa.array([_json_line(record) for record in chunk], pa.binary())


def _json_line(record: object) -> bytes:
    """Return canonical JSON of an object or a record."""
    if isinstance(record, BaseModel):
        record = record.model_dump(mode="json")
    return canonical_json(record)


# Type checking takes Records for a list: whoever reads a list reads either. Written,
# both are a list.
Packed = WrapSerializer(lambda records, serialise: serialise([*records]))
"""For a field of a model: a list that may be packed."""
