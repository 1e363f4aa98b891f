"""A manifest's parts in little memory: packed as JSON, made when they are asked for.

A row with two pairs takes 12 KB as objects, and 0.4 KB as compressed JSON; making it
again takes 40 microseconds. What was asked for last stays, so that of a manifest of up
to some thousand rows nothing is made twice. Of many rows the JSON lies in a file that
has no name, and is gone with the process.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Generic, TypeVar, cast, overload
from weakref import finalize

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, PlainSerializer, TypeAdapter
from pydantic import ValidationError as Invalid

from spark_audit.data.examples import (
    Example,
    as_json,
    from_json,
    id_twice,
    placed_examples,
)
from spark_audit.files import field_path
from spark_audit.provenance import canonical_json

_SETS: dict[frozenset[str], set[str]] = {}
_NONE: dict[str, Any] = {}


P = TypeVar("P")


class Indexed(Sequence[P], Generic[P]):
    """A sequence whose members are made when they are asked for; a slice is a list."""

    __slots__ = ()

    def _at(self, at: int) -> P:
        raise NotImplementedError

    @overload
    def __getitem__(self, at: int) -> P: ...
    @overload
    def __getitem__(self, at: slice) -> list[P]: ...
    def __getitem__(self, at: int | slice) -> P | list[P]:
        if isinstance(at, slice):
            return [self._at(i) for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._at(at % len(self))


class Scores(Indexed[int | None]):
    """Micro-nats of a text's tokens, 8 bytes each; ``None`` where none was scored.

    Attributes
    ----------
    array
        Shape ``(T,)``, int64, read-only; -1 stands for ``None``.
    """

    __slots__ = ("array",)

    def __init__(self, values: Sequence[int | None]) -> None:
        known = (-1 if value is None else value for value in values)
        self.array = np.fromiter(known, np.int64, len(values))
        self.array.flags.writeable = False

    def _at(self, at: int) -> int | None:
        value = int(self.array[at])
        return None if value < 0 else value

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[int | None]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Scores):
            return np.array_equal(self.array, other.array)
        return isinstance(other, list) and self.tolist() == other

    __hash__ = None  # type: ignore[assignment]

    def tolist(self) -> list[int | None]:
        """As it stands in the file."""
        return [None if value < 0 else value for value in self.array.tolist()]


MOST = 10**9
"""No count, position or dose is larger: it is beyond any text or vocabulary."""
MOST_NATS = 1e4
"""No token is this unlikely to a model whose logits are finite."""
MicroNats = Annotated[int, Field(ge=0, le=round(1e6 * MOST_NATS))]
Unlls = Annotated[
    list[MicroNats | None],
    AfterValidator(Scores),
    PlainSerializer(Scores.tolist, return_type=list[int | None]),
]


def share(part: BaseModel) -> None:
    """Let a part, which nobody may change, share what pydantic keeps of each of them.

    That are the names of the fields that were given, and fields that are not known:
    most of what a span takes.
    """
    given = part.model_fields_set
    own = _SETS.setdefault(frozenset(given), given)
    object.__setattr__(part, "__pydantic_fields_set__", own)
    if not part.model_extra:
        object.__setattr__(part, "__pydantic_extra__", _NONE)


SLICE = 128
"""Parts that are packed, and made, together."""
HELD = 32
"""Slices up to which all of a sequence stay made."""
FEW = 4
"""Slices that stay made of a longer one, which is gone through from end to end."""
IN_MEMORY = 8 << 20
"""Bytes of a sequence's slices that are no file yet."""


class Misfit(ValueError):
    """A part is not as it must be; the text says which, and never what it holds."""


class Scratch:
    """Bytes at places: in memory until they are many, then in a file without a name.

    Threads and forks may read them. Where no file can be made, or has room, they stay
    in memory.
    """

    def __init__(self) -> None:
        self._held, self._size = bytearray(), 0
        self._file: IO[bytes] | None = None

    def write(self, at: int, data: bytes) -> None:
        """Put bytes at a place; what was skipped is zero."""
        if self._size < IN_MEMORY <= at + len(data):  # tried once
            with suppress(OSError):
                file = tempfile.TemporaryFile(buffering=0)  # only its owner opens it
                finalize(self, file.close)
                _put(file, 0, self._held)
                self._file, self._held = file, bytearray()
        before, self._size = self._size, max(self._size, at + len(data))
        if self._file is not None:
            try:
                return _put(self._file, at, data)
            except OSError:  # there is no room any more
                self._held = bytearray(self.read(0, before))
                self._file = None
        self._held.extend(bytes(self._size - len(self._held)))
        self._held[at : at + len(data)] = data

    def read(self, at: int, size: int) -> bytes:
        """So many bytes from a place on."""
        if self._file is None:
            return bytes(self._held[at : at + size])
        return os.pread(self._file.fileno(), size, at)


class Slices(Indexed[bytes]):
    """Byte strings, one behind the other."""

    def __init__(self) -> None:
        self._bytes, self._ends = Scratch(), array("q", [0])

    def append(self, data: bytes) -> None:
        """Take one more."""
        self._bytes.write(self._ends[-1], data)
        self._ends.append(self._ends[-1] + len(data))

    def _at(self, at: int) -> bytes:
        start, end = self._ends[at], self._ends[at + 1]
        return self._bytes.read(start, end - start)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Elsewhere there is no such file."""
        return list, ([*self],)


class Packed(Indexed[P]):
    """Parts of one kind, packed.

    Parameters
    ----------
    kind
        What each is: a model, or ``str``.
    slices
        Compressed canonical JSON of :data:`SLICE` parts each; of the last one fewer.
    name
        What the sequence is called where a part is not as it must be.
    """

    __slots__ = ("_count", "_held", "_slices", "kind", "name")

    def __init__(
        self, kind: type[P], slices: Sequence[bytes], count: int, *, name: str
    ) -> None:
        self.kind, self.name = kind, name
        self._slices, self._count = slices, count
        self._held: OrderedDict[int, list[P]] = OrderedDict()

    @classmethod
    def of(cls, kind: type[P], records: Iterable[Any], *, name: str) -> Packed[P]:
        """Pack parts, or records as they stand in a file, which are checked later."""
        packer, rest = Packer(kind, name=name), iter(records)
        while part := list(islice(rest, SLICE)):
            packer.add(part)
        return packer.packed()

    def settled(self) -> Packed[P]:
        """The same, written as what was read of it: 1.0 where 1 was given."""
        return self.of(self.kind, self, name=self.name)

    def json(self) -> Iterator[bytes]:
        """Canonical JSON of the list, piece by piece."""
        yield b"["
        for k, part in enumerate(self._slices):
            yield (b"," if k else b"") + zlib.decompress(part)[1:-1]
        yield b"]"

    def records(self) -> Iterator[list[Any]]:
        """The parts as they stand in a file, slice by slice."""
        for part in self._slices:
            yield json.loads(zlib.decompress(part))

    def _made(self, number: int) -> list[P]:
        held = self._held
        if (found := held.get(number)) is not None:
            held.move_to_end(number)
            return found
        raw = zlib.decompress(self._slices[number])
        try:
            found = _adapter(cast(Any, self.kind)).validate_json(raw, strict=True)
        except Invalid as error:
            first = error.errors(include_input=False, include_url=False)[0]
            at, *rest = first["loc"]
            kind = self.kind
            schema = kind.model_json_schema() if issubclass(kind, BaseModel) else {}
            inside = field_path(rest, schema)
            place = f"{self.name}.{SLICE * number + int(at)}" + f".{inside}" * bool(
                rest
            )
            # Whatever a check of ours says stands behind "Value error, ".
            said = first["msg"].lower().removeprefix("value error, ")
            raise Misfit(f"field {place}: {said}") from error
        held[number] = found
        if len(held) > (HELD if len(self._slices) <= HELD else FEW):
            held.popitem(last=False)
        return found

    def _at(self, at: int) -> P:
        number, inside = divmod(at, SLICE)
        return self._made(number)[inside]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[P]:
        for number in range(len(self._slices)):
            yield from self._made(number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | Packed):
            return NotImplemented
        alike = zip(self, other, strict=False)
        return len(self) == len(other) and all(one == two for one, two in alike)

    __hash__ = None  # type: ignore[assignment]


class Packer(Generic[P]):
    """Packs parts as they come; parameters are those of :meth:`Packed.of`."""

    def __init__(self, kind: type[P], *, name: str) -> None:
        self._kind, self._name = kind, name
        self._slices, self._count, self._waiting = Slices(), 0, list[Any]()

    def add(self, records: Iterable[Any]) -> None:
        """Take some more."""
        self._waiting += (
            part.model_dump(mode="json") if isinstance(part, BaseModel) else part
            for part in records
        )
        while len(self._waiting) >= SLICE:
            self._pack()

    def packed(self) -> Packed[P]:
        """All that was added."""
        if self._waiting:
            self._pack()
        return Packed(self._kind, self._slices, self._count, name=self._name)

    def _pack(self) -> None:
        part, self._waiting = self._waiting[:SLICE], self._waiting[SLICE:]
        self._slices.append(zlib.compress(canonical_json(part), 1))
        self._count += len(part)


def packing(kind: type[Any], name: str) -> tuple[AfterValidator, PlainSerializer]:
    """What makes a model's field of type ``list[kind]`` a packed one.

    Files know nothing of it, and neither does type checking: whoever reads a list reads
    this.
    """
    return (
        AfterValidator(lambda parts: Packed.of(kind, parts, name=name)),
        PlainSerializer(list, return_type=list[kind]),  # type: ignore[valid-type]
    )


def canonical(content: Any) -> Iterator[bytes]:
    """Canonical JSON of what holds packed parts, piece by piece."""
    if isinstance(content, Packed):
        yield from content.json()
    elif isinstance(content, Mapping):
        for k, key in enumerate(sorted(content)):
            yield (b"," if k else b"{") + canonical_json(key) + b":"
            yield from canonical(content[key])
        yield b"}" if content else b"{}"
    else:
        yield canonical_json(content)


def _put(file: IO[bytes], at: int, data: bytes | bytearray) -> None:
    if os.pwrite(file.fileno(), data, at) != len(data):
        raise OSError


@cache
def _adapter(kind: type[P]) -> TypeAdapter[list[P]]:
    return TypeAdapter(list[kind])  # type: ignore[valid-type]


def as_packed(kind: type[P], parts: Sequence[P], *, name: str) -> Packed[P]:
    """The parts as they are, if they are packed, and else packed."""
    if isinstance(parts, Packed):
        return cast(Packed[P], parts)
    return Packed.of(kind, parts, name=name)


class Stored(Indexed[Example]):
    """The rows of data files by id; in memory is of each its id and its place.

    Parameters
    ----------
    paths
        As :func:`spark_audit.data.examples.read_examples` takes them.

    Raises
    ------
    InputError, OutputError
        As that one does.

    Attributes
    ----------
    ids
        The rows' ids, rising.
    """

    def __init__(self, *paths: Path) -> None:
        self._lines = Slices()
        number: dict[str, int] = {}
        for i, (place, example) in enumerate(placed_examples(*paths)):
            if number.setdefault(example.id, i) != i:
                before = islice(placed_examples(*paths), number[example.id], None)
                raise id_twice(place, next(before)[0])
            self._lines.append(as_json(example))
        self.ids = sorted(number)
        self._order = array("q", map(number.__getitem__, self.ids))

    def _at(self, at: int) -> Example:
        return from_json(self._lines[self._order[at]])

    def __len__(self) -> int:
        return len(self.ids)
