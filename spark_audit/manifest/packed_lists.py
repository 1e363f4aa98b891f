"""Lists of a manifest as JSON in Arrow arrays; an object is made when it is read.

A row with two pairs takes 12 KB as objects and 2 KB as JSON; making it again takes 40
us. The digest is that of canonical JSON, and fields of later versions are kept: so an
array holds the JSON of each record rather than its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from operator import eq
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ValidationError, WrapSerializer

from spark_audit.provenance import canonical_json

P = TypeVar("P")

MANIFEST_CHUNK = 512
"""Records that are packed together."""
HELD, FEW = 2048, 256
"""Objects that are kept: all of a table of up to ``HELD``, else the last ``FEW``."""


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
        self.kind, self.name = kind, name
        self.json = pa.chunked_array([*chunks], pa.binary())
        n_kept = HELD if len(self) <= HELD else FEW
        self._record = lru_cache(n_kept)(self._make)

    @classmethod
    def of(cls, kind: type[P], records: Iterable[Any], *, name: str) -> Records[P]:
        """Pack objects, or records as they stand in a file, which are checked later."""
        return cls(kind, packed(records), name=name)

    def pieces(self) -> Iterator[bytes]:
        """JSON of the whole list, piece by piece."""
        yield b"["
        separator = b""
        for chunk in self.json.chunks:
            yield separator + b",".join(chunk.to_pylist())
            separator = b","
        yield b"]"

    def _make(self, place: int) -> P:
        """Return the record at a place, checked."""
        model: Any = self.kind
        try:
            record: P = model.model_validate_json(self.json[place].as_py())
        except ValidationError as error:
            error.add_note(f"{self.name}.{place}")
            raise
        return record

    def __getitem__(self, place: Any) -> Any:
        places = range(len(self))[place]
        if isinstance(places, range):
            return [self._record(each) for each in places]
        return self._record(places)

    def __iter__(self) -> Iterator[P]:
        for place in range(len(self)):
            yield self._record(place)

    def __len__(self) -> int:
        return len(self.json)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | Records):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Records, name=self.name), (self.kind, self.json.chunks)


def packed(records: Iterable[Any]) -> Iterator[pa.Array]:
    """Yield canonical JSON of objects or records, some together.

    Raises
    ------
    ValueError, RecursionError
        If one cannot be written as JSON.
    """
    lines = map(_json_line, records)
    while chunk := list(islice(lines, MANIFEST_CHUNK)):
        yield pa.array(chunk, pa.binary())


def _json_line(record: Any) -> bytes:
    """Return canonical JSON of an object or a record."""
    if isinstance(record, BaseModel):
        record = record.model_dump(mode="json")
    return canonical_json(record)


Packed = WrapSerializer(lambda parts, serialised: serialised([*parts]))
"""For a model's field of a list that may be a table: type checking knows nothing of
it, and whoever reads a list reads either."""
