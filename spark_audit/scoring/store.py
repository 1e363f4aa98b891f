"""Scores on disk: Parquet parts that any number of workers add to and resume from.

A score's key hashes everything it depends on, the checkpoint included, with a salt
that stays in the folder, so that a part tells nothing about the texts. A part's name
carries the hash of its bytes: a damaged part is recognised, left out, and its items are
scored again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit import files
from spark_audit.errors import OutputError, out_of_memory
from spark_audit.provenance import sha256_json
from spark_audit.scoring.table import COLUMN_TYPES, Pass, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.items import AnyItem

SCHEMA = 1
"""Part of every key: raised whenever the same key would mean other numbers."""

FLUSH_SECONDS = 10.0
FLUSH_TOKENS = 200_000
SALT_BYTES = 32


Rows: TypeAlias = dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]
"""Store key -> positions and columns of an item, arrays of shape ``(n,)``."""


class Store:
    """A folder of scores, or with ``None`` a store in memory.

    Parameters
    ----------
    own
        Whether it is of one command alone, which says what its scores are for
        (:meth:`only_for`).

    Attributes
    ----------
    notes
        What was left out while reading: one line per part.
    """

    def __init__(self, folder: Path | None, *, own: bool = False) -> None:
        self.folder = folder
        self._own, self._purpose = own, ""
        self.notes: list[str] = []
        self._pending: Rows = {}
        self._pending_tokens = 0
        self._layout: list[tuple[str, np.dtype]] = []
        self._flushed = time.monotonic()
        self._remarks: list[str] = []
        # The first digits of the keys in each part: a store may hold many checkpoints,
        # and one number per score is all of it that stays in memory.
        self._parts: dict[Path, tuple[np.ndarray, list[str]]] = {}
        self.refresh()

    @cached_property
    def _salt(self) -> bytes:
        """The folder's salt; of several workers that start at once, one makes it.

        The folder is made when it is needed: what fails before leaves none behind.
        """
        if self.folder is None:
            return b""
        path = self.folder / "salt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists():
                with files.alone(self.folder / ".salt.lock"):
                    if not path.exists():
                        new = secrets.token_bytes(SALT_BYTES)
                        files.write_atomically(
                            path, lambda file: file.write(new), mode=0o600
                        )
            salt = files.read_regular(path)
        except OSError as error:
            raise files.cannot_write(self.folder, error) from error
        if len(salt) != SALT_BYTES:
            fix = "remove the whole folder, or give another one"
            raise OutputError("is no score store's salt", where=str(path), fix=fix)
        return salt

    def only_for(self, what: str) -> None:
        """Of a command's own store: know no score that was made for anything else."""
        self._purpose = what * self._own

    def keys(self, loaded: Loaded, items: Sequence[AnyItem], kind: Pass) -> Keys:
        """What the scores of items are stored under.

        A key hashes the schema version, the checkpoint, the pass and its settings, the
        mask of usable vocabulary rows, and, with the folder's salt, the item's content:
        token ids and positions, a prefix and its candidates, a prompt and its answer.

        Raises
        ------
        OutputError
            If the folder cannot be made or written.
        """
        usable = hashlib.sha256(loaded.usable.astype(np.uint8).tobytes()).hexdigest()
        frame = [SCHEMA, loaded.model_id, list(astuple(kind)), usable]
        told = self._purpose + sha256_json(frame)
        start = hashlib.sha256(self._salt + told.encode())
        return Keys(start, items, kind)

    def left(self, keys: Keys) -> dict[str, AnyItem]:
        """Items that nobody has scored, as far as was seen, by store key: each once."""
        names = keys()
        items = {names[item.key]: item for item in keys.items}
        return {key: items[key] for key in self.lacking(items)}

    def lacking(self, keys: Iterable[str]) -> list[str]:
        """Those of the keys that no score is stored under, as far as was seen."""
        wanted = [key for key in keys if key not in self._pending]
        numbers, lacks = _numbers(wanted), np.ones(len(wanted), dtype=bool)
        for own, _ in self._parts.values():
            lacks &= ~np.isin(numbers, own)
        return [*compress(wanted, lacks)]

    def add(
        self, key: str, position: np.ndarray, columns: Mapping[str, np.ndarray]
    ) -> None:
        """Take an item's rows, ``(n,)`` each; the next flush brings them to disk.

        Rows with other columns, those of another pass, begin a part of their own.
        """
        layout = [(name, values.dtype) for name, values in columns.items()]
        if layout != self._layout:
            self.flush()
            self._layout = layout
        self._pending[key] = (position.astype(np.int32), dict(columns))
        self._pending_tokens += len(position)
        waited = time.monotonic() - self._flushed
        if self._pending_tokens >= FLUSH_TOKENS or waited >= FLUSH_SECONDS:
            self.flush()

    def take(self, rows: Rows, remarks: Iterable[str]) -> None:
        """Take rows that a node scored, with what a reader must know of them."""
        self.flush()  # rows that wait have other remarks
        for text in remarks:
            self.remark(text)
        for key, own in rows.items():
            self.add(key, *own)

    def remark(self, text: str) -> None:
        """Keep what a reader of the pending rows must know with their part."""
        if text not in self._remarks:
            self._remarks.append(text)

    def flush(self) -> None:
        """Write pending rows as one part.

        Raises
        ------
        OutputError
            If the disk is full or the folder is gone; everything written before stays
            valid, and the rows stay pending.
        """
        self._flushed = time.monotonic()
        if self.folder is None or not self._pending:
            return
        table = TokenTable.from_items([(k, *own) for k, own in self._pending.items()])
        sink = pa.BufferOutputStream()
        told = {"remarks": json.dumps(self._remarks)}
        pq.write_table(table.arrow().replace_schema_metadata(told), sink)
        data = sink.getvalue()
        name = f"{hashlib.sha256(data).hexdigest()[:32]}.parquet"
        path = self.folder / name
        files.write_atomically(path, lambda file: file.write(data), mode=0o600)
        self._parts[path] = _numbers(self._pending), self._remarks
        self._pending, self._pending_tokens, self._remarks = {}, 0, []

    def refresh(self) -> None:
        """Find parts that this or other workers have written since."""
        if self.folder is None:
            return
        for path in sorted({*self.folder.glob("*.parquet")} - self._parts.keys()):
            try:
                self._parts[path] = _read_part(path)
            except (OSError, ValueError, KeyError, pa.ArrowException) as error:
                if out_of_memory(error):
                    raise
                self._parts[path] = _numbers([]), []
                note = f"score part {path.name} is damaged or of another version; its "
                self.notes.append(f"{note}items are scored again")

    def gather(self, keys: Mapping[str, str], *, kind: Pass) -> TokenTable:
        """The table of items, by their own keys; what is not stored yet is left out.

        ``keys`` are those of :meth:`keys` for ``kind``. Columns are read when they
        are asked for.

        Raises
        ------
        OutputError
            If a part vanished.
        """
        self.flush()
        self.refresh()
        if paths := self._holding(keys.values()):
            return TokenTable.read(*paths, keys=keys)
        # Nothing waits any more, unless the store is in memory.
        held = self._pending
        items = [(name, *held[key]) for name, key in keys.items() if key in held]
        return TokenTable.from_items(items, kind=kind.kind)

    def _holding(self, keys: Iterable[str]) -> list[Path]:
        """The parts that hold any of the keys."""
        numbers, parts = _numbers(keys), self._parts.items()
        return [path for path, (own, _) in parts if np.isin(own, numbers).any()]

    def remarks(self, keys: Iterable[str]) -> list[str]:
        """What was remarked on the parts that hold these keys, without repeats."""
        texts = dict.fromkeys(self._remarks)
        for path in sorted(self._holding(keys)):
            texts |= dict.fromkeys(self._parts[path][1])
        return list(texts)


class Scores(Mapping[Pass, TokenTable]):
    """The tables of a checkpoint: each is gathered when it is asked for, and not kept.

    So no more of them are in memory than whoever asks holds at a time.

    Attributes
    ----------
    lacks
        Why there is no column but the NLL, as of a served checkpoint; else empty.
    """

    def __init__(
        self, store: Store, keys: Mapping[Pass, Keys], *, served: bool = False
    ) -> None:
        self._keys = keys
        self._store = store
        self.lacks = "its server gives log-probabilities of tokens alone" * served

    def __getitem__(self, kind: Pass) -> TokenTable:
        table = self._store.gather(self._keys[kind](), kind=kind)
        if self.lacks and kind.kind == "plain":
            return replace(table, columns={"nll": table.columns["nll"]})
        return table

    def __iter__(self) -> Iterator[Pass]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class Digest(Protocol):
    """A hash that goes on from where it stands, as those of ``hashlib`` do."""

    def copy(self) -> Digest:
        """Return a hash that stands where this one does."""

    def update(self, data: bytes, /) -> None:
        """Go on with these bytes."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far, in hexadecimal digits."""


@dataclass(frozen=True)
class Keys:
    """What a store calls the scores of a pass: worked out anew when asked for.

    Keys of a hundred checkpoints would be larger than their items.
    """

    start: Digest
    items: Sequence[AnyItem]
    kind: Pass

    def __call__(self) -> dict[str, str]:
        """Item key -> store key: 64 hexadecimal digits."""
        keys = {}
        for item in self.items:
            digest = self.start.copy()
            digest.update(item.content())
            keys[item.key] = digest.hexdigest()
        return keys


def _numbers(keys: Iterable[str]) -> np.ndarray:
    """The first 64 bits of keys."""
    return np.fromiter((int(key[:16], 16) for key in keys), np.uint64)


_SCHEMAS = [
    pa.schema(
        {"key": pa.string(), "position": pa.list_(pa.int32())}
        | {name: pa.list_(pa.from_numpy_dtype(t)) for name, t in layout.items()}
    )
    for layout in COLUMN_TYPES.values()
]


def _read_part(path: Path) -> tuple[np.ndarray, list[str]]:
    """The first digits of the keys of a part, and its remarks; damage is an error."""
    data = files.read_regular(path, most=files.data_bytes())
    table = pq.read_table(pa.BufferReader(data))
    remarks = json.loads((table.schema.metadata or {})[b"remarks"])
    keys, *lists = map(pa.ChunkedArray.combine_chunks, table.columns)
    # The name fits the bytes of a file that somebody else wrote, too.
    if (
        hashlib.sha256(data).hexdigest()[:32] != path.stem
        or table.schema.remove_metadata() not in _SCHEMAS
        or keys.null_count
        or not all(isinstance(text, str) for text in remarks)
    ):
        raise ValueError(path.name)
    for name, column in zip(table.column_names[1:], lists, strict=True):
        values = column.flatten()
        numbers = np.asarray(values)
        # What a server cannot tell is NaN in the whole column.
        told = name == "nll" or not np.isnan(numbers).all()
        bad = told and not np.isfinite(numbers).all()
        if bad or values.null_count or not column.offsets.equals(lists[0].offsets):
            raise ValueError(path.name)
    return _numbers(keys.to_pylist()), remarks
