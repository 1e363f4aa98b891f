"""A manifest's long lists: JSON in Arrow tables, and objects made when they are read.

A row with two pairs takes 12 KB as objects and 2 KB as JSON; making it again takes 40
microseconds. The digest is that of canonical JSON, and fields of later versions are
kept: so a column holds the JSON of each record rather than its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from operator import eq
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ValidationError, WrapSerializer

from spark_audit.data.examples import (
    Example,
    as_json,
    from_json,
    placed_examples,
    read_examples,
)
from spark_audit.files import parse_json, write_atomically
from spark_audit.provenance import canonical_json

P = TypeVar("P")

CHUNK = 512
"""Records that are packed together."""
HELD, FEW = 2048, 256
"""Objects that are kept: all of a table of up to ``HELD``, else the last ``FEW``."""
MAGIC = b"ARROW1"
"""How an Arrow file begins."""
_SCHEMA = pa.schema([("part", pa.string()), ("json", pa.binary())])


class Table(Sequence[P], Generic[P]):
    """Records of one kind; each is made when it is asked for.

    Parameters
    ----------
    make
        The object of a record's JSON.
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
        make: Callable[[bytes], P],
        chunks: Iterable[pa.Array],
        *,
        name: str = "",
    ) -> None:
        self.make, self.name = make, name
        self.json = pa.chunked_array([*chunks], pa.binary())
        self._held = lru_cache(HELD if len(self) <= HELD else FEW)(self._made)

    @classmethod
    def of(cls, kind: type[P], records: Iterable[Any], *, name: str) -> Table[P]:
        """Pack objects, or records as they stand in a file, which are checked later."""
        model: Any = kind
        return cls(model.model_validate_json, packed(records), name=name)

    def pieces(self) -> Iterator[bytes]:
        """JSON of the whole list, piece by piece."""
        yield b"["
        for k, chunk in enumerate(self.json.chunks):
            yield (b"," if k else b"") + b",".join(chunk.to_pylist())
        yield b"]"

    def _made(self, at: int) -> P:
        try:
            return self.make(self.json[at].as_py())
        except ValidationError as error:
            error.add_note(f"{self.name}.{at}")
            raise

    def __getitem__(self, at: Any) -> Any:
        rows = range(len(self))[at]
        return [*map(self._held, rows)] if isinstance(at, slice) else self._held(rows)

    def __iter__(self) -> Iterator[P]:
        return map(self._held, range(len(self)))

    def __len__(self) -> int:
        return len(self.json)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | Table):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Table, name=self.name), (self.make, self.json.chunks)


def packed(records: Iterable[Any]) -> Iterator[pa.Array]:
    """Canonical JSON of objects or records, some together.

    Raises
    ------
    ValueError, RecursionError
        If one cannot be written as JSON.
    """
    return _chunks(
        canonical_json(
            one.model_dump(mode="json") if isinstance(one, BaseModel) else one
        )
        for one in records
    )


def _chunks(lines: Iterator[bytes]) -> Iterator[pa.Array]:
    while chunk := list(islice(lines, CHUNK)):
        yield pa.array(chunk, pa.binary())


Packed = WrapSerializer(lambda parts, serialised: serialised([*parts]))
"""For a model's field of a list that may be a table: type checking knows nothing of
it, and whoever reads a list reads either."""


def stored_examples(*paths: Path) -> Table[Example]:
    """The rows of data files by id.

    Parameters and errors are those of :func:`spark_audit.data.examples.read_examples`.
    """
    number: dict[str, int] = {}

    def lines() -> Iterator[bytes]:
        for i, (_, example) in enumerate(placed_examples(*paths)):
            if number.setdefault(example.id, i) != i:
                read_examples(*paths)  # it names both places
            yield as_json(example)

    stored = pa.chunked_array([*_chunks(lines())], pa.binary())
    order = pa.array([number[key] for key in sorted(number)], pa.int64())
    return Table(from_json, stored.take(order).chunks)


def write_arrow(content: Mapping[str, Any], path: Path) -> None:
    """Write a manifest's content: records in rows, the rest as metadata of the schema.

    Raises
    ------
    OutputError
        If it cannot be written; a file that stood there before is as it was.
    """
    tables = {k: v for k, v in content.items() if isinstance(v, Table)}
    # A table without a record has no row that could name it.
    head = {k: [] if k in tables else v for k, v in content.items()}
    schema = _SCHEMA.with_metadata({"manifest": canonical_json(head)})

    def write(file: IO[bytes]) -> None:
        with pa.ipc.new_file(file, schema) as writer:
            for name, table in tables.items():
                for chunk in table.json.chunks:
                    columns = [pa.repeat(name, len(chunk)), chunk]
                    writer.write_batch(pa.record_batch(columns, schema=schema))

    write_atomically(path, write, mode=0o600)


def read_arrow(path: Path, kinds: Mapping[str, type[Any]]) -> Any:
    """The content of :func:`write_arrow`; records stay on disk.

    Raises
    ------
    KeyError, pyarrow.ArrowException
        If the file is damaged, or another one.
    InputError
        If its metadata is no JSON.
    """
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    table.validate(full=True)
    if not table.schema.equals(_SCHEMA):
        raise KeyError
    chunks: dict[str, list[pa.Array]] = {}
    for batch in table.to_batches():
        chunks.setdefault(batch["part"][0].as_py(), []).append(batch["json"])
    content = parse_json(table.schema.metadata[b"manifest"], place=str(path))
    for name, own in chunks.items():
        content[name] = Table(kinds[name].model_validate_json, own, name=name)
    return content
