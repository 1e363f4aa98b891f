"""Scores on disk: append-only shards that any number of workers fill and resume from.

A score's key hashes everything it depends on, the checkpoint included, with a salt
that stays in the folder, so that a shard tells nothing about the texts. A shard's
name carries the hash of its bytes: what was damaged is recognised, left out, and
scored again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit.errors import OutputError
from spark_audit.files import (
    cannot_write,
    check_regular,
    read_regular,
    write_atomically,
)
from spark_audit.memory import out_of_memory
from spark_audit.provenance import sha256_file, sha256_json
from spark_audit.scoring.table import LAYOUTS, Pass, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.items import AnyItem

SCHEMA = 1
"""Part of every key: raised whenever the same key would mean other numbers."""

FLUSH_SECONDS = 10.0
FLUSH_TOKENS = 500_000
PART_TOKENS = 100_000
"""Tokens of a table that are in memory at once while it is written; an item of fifty
takes 3 KB until it stands in a column."""
SALT_BYTES = 32

Rows = tuple[np.ndarray, dict[str, np.ndarray]]


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
        What was left out while reading: a line per shard.
    """

    def __init__(self, folder: Path | None, *, own: bool = False) -> None:
        self.folder = folder
        self._own, self._purpose = own, ""
        self.notes: list[str] = []
        self._pending: dict[str, Rows] = {}
        self._pending_tokens = 0
        self._layout: list[tuple[str, np.dtype]] = []
        self._flushed = time.monotonic()
        self._remarks: list[str] = []
        # What each shard holds, by the first digits of its keys: a store may be of
        # many checkpoints, and a number a score is all of it that stays in memory.
        self._shards: dict[Path, np.ndarray] = {}
        self._shard_remarks: dict[Path, list[str]] = {}
        self._seen: set[Path] = set()
        self.refresh()

    @property
    def empty(self) -> bool:
        """Whether no shard was found."""
        return not self._shards

    @cached_property
    def _salt(self) -> bytes:
        # The folder is made when it is needed: what fails before leaves none behind.
        return b"" if self.folder is None else _salt(self.folder)

    def only_for(self, what: str) -> None:
        """Of a command's own store: know no score that was made for anything else."""
        self._purpose = what * self._own

    def keys(
        self, loaded: Loaded, items: Sequence[AnyItem], kind: Pass
    ) -> dict[str, str]:
        """Item key -> store key: 64 hexadecimal digits.

        It hashes the schema version, the checkpoint, the pass and its settings, the
        mask of usable vocabulary rows, and, with the folder's salt, the item's content:
        token ids and positions, a prefix and its candidates, a prompt and its answer.

        Raises
        ------
        OutputError
            If the folder cannot be made or written.
        """
        return self.named(loaded, items, kind)()

    def named(self, loaded: Loaded, items: Sequence[AnyItem], kind: Pass) -> Keys:
        """:meth:`keys`, worked out when they are asked for, without the model."""
        usable = hashlib.sha256(loaded.usable.astype(np.uint8).tobytes()).hexdigest()
        frame = [SCHEMA, loaded.model_id, list(astuple(kind)), usable]
        told = self._purpose + sha256_json(frame)
        start = hashlib.sha256(self._salt + told.encode())
        return Keys(start, items)

    def __contains__(self, key: str) -> bool:
        return not self.lacking([key])

    def lacking(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that no score is stored under, as far as was seen."""
        wanted = set(keys) - self._pending.keys()
        numbers = _numbers(wanted)
        held = [own[_among(own, numbers)] for own in self._shards.values()]
        found = set(np.concatenate([np.zeros(0, np.uint64), *held]).tolist())
        return {key for key in wanted if _number(key) not in found}

    def add(
        self, key: str, position: np.ndarray, columns: Mapping[str, np.ndarray]
    ) -> None:
        """Take an item's rows, ``(n,)`` each; the next flush brings them to disk.

        Rows with other columns, those of another pass, begin a shard of their own.
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

    def take(
        self, table: TokenTable, keys: Mapping[str, str], remarks: Iterable[str]
    ) -> None:
        """Take what was scored elsewhere, with what a reader must know of it.

        Parameters
        ----------
        keys
            As :meth:`keys` gave them for the pass of the table.
        """
        layout = [(name, values.dtype) for name, values in table.columns.items()]
        remarks = [*remarks]
        if layout != self._layout or {*remarks} - {*self._remarks}:
            self.flush()  # of rows that wait nobody has remarked this
        for text in remarks:
            self.remark(text)
        lacking = self.lacking(keys[key] for key in table.ids)
        for key in table.ids:
            if keys[key] in lacking:
                rows = table.rows(key)
                columns = {name: values[rows] for name, values in table.columns.items()}
                self.add(keys[key], table.position[rows], columns)

    def remark(self, text: str) -> None:
        """Keep what a reader of the pending rows must know with their shard."""
        if text not in self._remarks:
            self._remarks.append(text)

    def flush(self) -> None:
        """Write pending rows as one shard.

        Raises
        ------
        OutputError
            If the disk is full or the folder is gone; everything written before stays
            valid, and the rows stay pending.
        """
        self._flushed = time.monotonic()
        if self.folder is None or not self._pending:
            return
        data = _to_parquet(self._pending, self._remarks)
        name = f"{hashlib.sha256(data).hexdigest()[:32]}.parquet"
        path = self.folder / name
        write_atomically(path, lambda file: file.write(data), mode=0o600)
        self._shards[path] = _numbers(self._pending)
        self._shard_remarks[path] = self._remarks
        self._seen.add(path)
        self._pending, self._pending_tokens, self._remarks = {}, 0, []

    def refresh(self) -> None:
        """Find shards that this or other workers have written since."""
        if self.folder is None:
            return
        for path in sorted(self.folder.glob("*.parquet")):
            if path in self._seen:
                continue
            try:
                _, spans, remarks = _read_shard(path, whole=True)
                numbers = _numbers(key for key, _ in spans)
            except (OSError, ValueError, KeyError, pa.ArrowException) as error:
                if out_of_memory(error):
                    raise
                self.notes.append(
                    f"score shard {path.name} is damaged or of another version; its "
                    "items are scored again"
                )
            else:
                self._shards[path] = numbers
                self._shard_remarks[path] = remarks
            self._seen.add(path)

    def gather(self, keys: Mapping[str, str], *, kind: Pass) -> TokenTable:
        """The table of items, by their own keys; what is not stored yet is left out.

        ``keys`` are as :meth:`keys` gave them for ``kind``.
        """
        (table,) = self.parts(keys, kind=kind, most=None)
        return table

    def parts(
        self, keys: Mapping[str, str], *, kind: Pass, most: int | None = PART_TOKENS
    ) -> Iterator[TokenTable]:
        """:meth:`gather` in parts of about ``most`` tokens, one at least.

        Each is sorted by the items' keys; no two hold the same item.
        """
        self.refresh()
        # Those that share a score stand apart: a list for each of many takes 90 bytes.
        items: dict[str, str] = {}
        twins: dict[str, list[str]] = {}
        for name, key in keys.items():
            if items.setdefault(key, name) != name:
                twins.setdefault(key, []).append(name)
        held: list[tuple[str, np.ndarray, dict[str, np.ndarray]]] = []
        tokens, yielded = 0, False
        for key, own in self._rows(items):
            if key not in items:
                continue
            for name in (items.pop(key), *twins.get(key, ())):
                held.append((name, *own))
                tokens += len(own[0])
            if most is not None and tokens >= most:
                yield TokenTable.from_items(held, kind=kind.kind)
                held, tokens, yielded = [], 0, True
        if held or not yielded:
            yield TokenTable.from_items(held, kind=kind.kind)

    def _rows(self, items: Mapping[str, object]) -> Iterator[tuple[str, Rows]]:
        """Rows of those of the keys that are there, what waits first, then by shard."""
        yield from [(k, own) for k, own in self._pending.items() if k in items]
        numbers = _numbers(items)
        for path, own in self._shards.items():
            if not _among(own, numbers).any():
                continue
            try:
                table, spans, _ = _read_shard(path)
            except (OSError, pa.ArrowException) as error:
                raise OutputError(
                    "a score shard vanished while it was read",
                    where=str(path),
                    fix="run the same command again",
                ) from error
            arrays = {
                name: table[name].to_numpy()
                for name in table.column_names
                if name != "key"
            }
            position, every = arrays.pop("position"), arrays.items()
            # Copies: a part holds few rows of many shards, or all rows of some.
            for key, at in spans:
                if key in items:
                    yield (
                        key,
                        (position[at].copy(), {k: v[at].copy() for k, v in every}),
                    )

    def remarks(self, keys: Iterable[str]) -> list[str]:
        """What was remarked on the shards that hold these keys, without repeats."""
        found, numbers = dict.fromkeys(self._remarks), _numbers(keys)
        paths = [p for p, own in self._shards.items() if _among(own, numbers).any()]
        for path in sorted(paths):
            found |= dict.fromkeys(self._shard_remarks[path])
        return list(found)


@dataclass(frozen=True)
class Keys:
    """What a store calls the scores of some items: worked out anew when asked for.

    Keys of a hundred checkpoints would be larger than their items.
    """

    start: Any
    items: Sequence[AnyItem]

    def __call__(self) -> dict[str, str]:
        """Item key -> store key."""
        found = {}
        for item in self.items:
            digest = self.start.copy()
            digest.update(item.content())
            found[item.key] = digest.hexdigest()
        return found


def _number(key: str) -> int:
    """The first 64 bits of a key."""
    return int(key[:16], 16)


def _numbers(keys: Iterable[str]) -> np.ndarray:
    return np.unique(np.fromiter(map(_number, keys), np.uint64))


def _among(own: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which of some numbers are among others; both sorted."""
    at = np.searchsorted(wanted, own).clip(max=max(len(wanted) - 1, 0))
    return wanted[at] == own if len(wanted) else np.zeros(len(own), bool)


def _to_parquet(rows: Mapping[str, Rows], remarks: Sequence[str]) -> bytes:
    counts = [len(position) for position, _ in rows.values()]
    index = pa.array(np.repeat(np.arange(len(rows), dtype=np.int32), counts))
    data = {
        "key": pa.DictionaryArray.from_arrays(index, pa.array(list(rows))),
        "position": pa.array(np.concatenate([p for p, _ in rows.values()])),
    }
    names = next(iter(rows.values()))[1]
    for name in names:
        data[name] = pa.array(np.concatenate([c[name] for _, c in rows.values()]))
    table = pa.table(data).replace_schema_metadata(
        {
            "schema_version": str(SCHEMA),
            "remarks": json.dumps(list(remarks)),
            # Items of one token have no row that could hold their key.
            "empty": json.dumps([key for key, (p, _) in rows.items() if not len(p)]),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def _read_shard(
    path: Path, *, whole: bool = False
) -> tuple[pa.Table, list[tuple[str, slice]], list[str]]:
    """A shard, its keys with their rows, and its remarks.

    With ``whole`` any damage is an error, and of the shard there is its key alone.
    """
    check_regular(path)
    if whole and sha256_file(path)[:32] != path.stem:
        raise ValueError(path.name)
    with pq.ParquetFile(path) as file:
        if whole:
            _check_layout(file)
        table = file.read(["key"] if whole else None)
    said = table.schema.metadata or {}
    remarks, empty = (json.loads(said[name]) for name in (b"remarks", b"empty"))
    for texts in (remarks, empty):
        if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
            raise ValueError(path.name)
    spans = [(key, slice(0, 0)) for key in empty]
    keys = table["key"].combine_chunks()
    codes, names = keys.indices.to_numpy(), keys.dictionary.to_pylist()
    edges = np.flatnonzero(np.diff(codes, prepend=-1, append=-1))
    for start, end in itertools.pairwise(edges.tolist()):
        spans.append((names[codes[start]], slice(start, end)))
    return table, spans, remarks


def _check_layout(file: pq.ParquetFile) -> None:
    """A shard has the columns of one pass, of its types, and nothing is missing.

    Its name fits its bytes, whoever wrote them.
    """
    schema = file.schema_arrow
    given = {field.name: field.type for field in schema}
    key, position = given.pop("key", None), given.pop("position", None)
    layouts = (
        {name: pa.from_numpy_dtype(dtype) for name, dtype in layout.items()}
        for layout in LAYOUTS.values()
    )
    whole = len(schema) == len(given) + 2 and pa.types.is_dictionary(key)
    if not whole or position != pa.int32() or given not in layouts:
        raise ValueError("is no shard")
    for name in schema.names:
        values = file.read([name])[name]
        unknown = 0
        if pa.types.is_floating(values.type):
            unknown = int(np.isnan(values.to_numpy()).sum())
        # What a server cannot tell is NaN in the whole column.
        untold = name != "nll" and unknown == len(values)
        if values.null_count or (unknown and not untold):
            raise ValueError("holds nothing or NaN")


def _salt(folder: Path) -> bytes:
    """The folder's salt; of several workers that start at once, one makes it."""
    path = folder / "salt"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        salt = read_regular(path) if path.exists() else b""
        if len(salt) < SALT_BYTES:
            salt = _make_salt(path)
    except OSError as error:
        raise cannot_write(folder, error) from error
    if len(salt) == SALT_BYTES:
        return salt
    raise OutputError(
        "is no score store's salt",
        where=str(path),
        fix="remove the whole folder, or give another one",
    )


def _make_salt(path: Path) -> bytes:
    """Write the salt, or read it once whoever is writing it has ended.

    It is written in place, locked: one that a killed worker left half-written belongs
    to a folder without a score, and is written anew; so is one that was removed, by
    which no score is found any more.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+b") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        salt = file.read()
        if len(salt) >= SALT_BYTES or (salt and any(path.parent.glob("*.parquet"))):
            return salt
        salt = secrets.token_bytes(SALT_BYTES)
        file.seek(0)
        file.write(salt)
        file.flush()
        os.fsync(file.fileno())
        return salt
