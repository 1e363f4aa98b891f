"""Hold lists of a manifest as JSON in Arrow arrays, and make objects on demand.

A row of data with two pairs takes 12 KB as objects and 2 KB as JSON, and it takes 40 us
to make the objects again. Columns of values would lose unknown fields of later versions
and so change the digest, which is that of canonical JSON, so each record's JSON is
stored as it is.

A *record* is an instance of a pydantic model; a *raw record* is its parsed JSON. The
manifest's packed lists are those of ``MANIFEST_PARTS``
(:mod:`spark_audit.manifest.content`).
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

RECORDS_PER_CHUNK = 512
"""Records in one Arrow array."""

KEEP_ALL_UP_TO = 2048
"""Lists of up to so many records keep all those that were made."""

KEPT_OF_LONGER = 256
"""Longer lists keep so many records: the last asked for."""


class Records(Sequence[P], Generic[P]):
    """A list of a manifest whose records are made on demand.

    It reads like a list. Iteration, ``reversed`` and ``in`` make one record at a time,
    too.

    Parameters
    ----------
    record_class
        Pydantic model of the records.
    chunks
        Binary arrays with the JSON of each record.
    name
        Name of the list in the manifest, such as ``pairs``, for errors on malformed
        records.

    Attributes
    ----------
    json
        One JSON per record, as a chunked Arrow array of bytes.

    Raises
    ------
    ValidationError
        When a malformed record is requested; a note gives its place.
    """

    def __init__(
        self,
        record_class: type[P],
        chunks: Iterable[pa.Array],
        *,
        name: str = "",
    ) -> None:
        self.record_class = record_class
        self.name = name
        self.json = pa.chunked_array([*chunks], pa.binary())  # one JSON per record

        # Audits use the same few examples again and again.
        n_kept = len(self) if len(self) <= KEEP_ALL_UP_TO else KEPT_OF_LONGER
        self._record = lru_cache(n_kept)(self._make)

    @classmethod
    def pack(
        cls, record_class: type[P], records: Iterable[object], *, name: str
    ) -> Records[P]:
        """Pack records or raw records; raw ones are checked when they are asked for."""
        return cls(record_class, packed_chunks(records), name=name)

    def json_pieces(self) -> Iterator[bytes]:
        """Yield the JSON of the whole list, piece by piece, for its digest and file."""
        yield b"["
        # Canonical JSON has no blank behind a comma.
        separator = b""
        for chunk in self.json.chunks:
            yield separator + b",".join(chunk.to_pylist())
            separator = b","
        yield b"]"

    def _make(self, number: int) -> P:
        """Return the record with a number, checked."""
        model: Any = self.record_class
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
        # A range translates negative indices and slices, and raises the IndexError.
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
        return _unpickled, (self.record_class, self.json.chunks, self.name)

    def __repr__(self) -> str:
        # Records hold identifiers, which must not appear in a log or traceback.
        class_name = self.record_class.__name__
        return f"Records[{class_name}](name={self.name!r}, length={len(self)})"


def _unpickled(record_class: type[P], chunks: list[pa.Array], name: str) -> Records[P]:
    """Return the list that :meth:`Records.__reduce__` took apart."""
    return Records(record_class, chunks, name=name)


def packed_chunks(records: Iterable[object]) -> Iterator[pa.Array]:
    """Yield the canonical JSON of records or raw records, in arrays of bytes.

    Raises
    ------
    ValueError, RecursionError
        If a record cannot be written as JSON.
    """
    remaining = iter(records)
    while chunk := list(islice(remaining, RECORDS_PER_CHUNK)):
        yield pa.array([_json_line(record) for record in chunk], pa.binary())


def _json_line(record: object) -> bytes:
    """Return the canonical JSON of a record or a raw record."""
    if isinstance(record, BaseModel):
        record = record.model_dump(mode="json")
    return canonical_json(record)


# Pydantic would serialise Records as an unknown type: turn it into a list first.
WRITTEN_AS_LIST = WrapSerializer(lambda records, serialise: serialise([*records]))
"""Annotation of a model's field that holds a list or :class:`Records`. The field's type
is ``list``, so that readers need not tell the two apart."""
