"""Store scores in Parquet parts, to which many workers add and which can resume.

The key of a score hashes everything that the score depends on, including the checkpoint
and a salt that stays in the folder. So a part reveals nothing about the texts. The name
of a part contains the hash of its bytes: a damaged part is recognised and left out, and
its items are scored again.

An *item key* names an item in tables (an example id), a *store key* its scores here. A
*key number* is the beginning of a store key; ``key_index.py`` finds parts by it.

A further setting on which scores depend goes into :meth:`Store.pass_items`; a further
column needs nothing here, as the columns of a part are those of ``scoring/table.py``.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit import files
from spark_audit.errors import OutputError, out_of_memory
from spark_audit.provenance import sha256_json
from spark_audit.scoring.key_index import KeyIndex, key_numbers
from spark_audit.scoring.table import COLUMN_TYPES, Pass, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.scoring.items import AnyItem

SCHEMA = 1
"""Part of every key; it is raised when the same key would mean other numbers."""

FLUSH_SECONDS = 10.0
FLUSH_TOKENS = 200_000
"""Pending scores are written after so long, or when they are of so many tokens."""

SALT_BYTES = 32

Rows: TypeAlias = dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]
"""Store key -> positions and columns of an item, arrays of shape ``(n,)``."""


class _PartContent(NamedTuple):
    """What a store keeps of a part in memory.

    Attributes
    ----------
    numbers
        Key numbers of its items, shape ``(items,)``, for the index.
    remarks
        Remarks for readers on its scores.
    """

    numbers: np.ndarray
    remarks: list[str]


class Store:
    """A folder of scores, or with ``None`` a store in memory.

    New scores are pending until :meth:`flush` writes them as one part. In memory they
    stay pending.

    Parameters
    ----------
    own
        Whether the store belongs to one command, which declares the purpose of its
        scores (:meth:`only_for`).

    Attributes
    ----------
    notes
        One line for each part that was left out.
    """

    def __init__(self, folder: Path | None, *, own: bool = False) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._is_own = own
        self._purpose = ""

        self._pending: Rows = {}
        self._pending_tokens = 0
        self._pending_layout: list[tuple[str, np.dtype]] = []
        self._pending_remarks: list[str] = []
        self._flushed_at = time.monotonic()

        # Only keys and remarks stay in memory, as a store may hold the scores of many
        # checkpoints. The index numbers the parts in the order of this dictionary.
        self._remarks_of_part: dict[Path, list[str]] = {}
        self._index = KeyIndex()
        # Part of the index -> its file.
        self._indexed_paths: list[Path] = []
        self.refresh()

    @cached_property
    def _salt(self) -> bytes:
        """Return the folder's salt; if several workers start at once, one makes it.

        The folder is made here, when the first key is worked out: a command that fails
        before leaves no folder behind.
        """
        if self.folder is None:
            return b""

        path = self.folder / "salt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists():
                with files.alone(self.folder / ".salt.lock"):
                    # Another worker may have made it while this one waited.
                    if not path.exists():
                        _write_salt(path)
            salt = files.read_regular(path)
        except OSError as error:
            raise files.cannot_write(self.folder, error) from error

        if len(salt) != SALT_BYTES:
            raise OutputError(
                "is not the salt of a score store",
                where=str(path),
                fix="remove the whole folder, or give another one",
            )
        return salt

    def only_for(self, purpose: str) -> None:
        """Ignore scores that were made for another purpose.

        Does nothing for a store that several commands share.
        """
        self._purpose = purpose if self._is_own else ""

    def pass_items(
        self, loaded: Checkpoint, items: Sequence[AnyItem], scoring_pass: Pass
    ) -> PassItems:
        """Return the items of one pass over a checkpoint, which know their store keys.

        A store key hashes the schema version, the checkpoint, the pass and its
        settings, the mask of usable vocabulary rows, and, with the folder's salt, the
        item's content: token ids and positions, a prefix and its candidates, a prompt
        and its answer.

        Raises
        ------
        OutputError
            If the folder cannot be made or written.
        """
        usable = hashlib.sha256(loaded.usable.astype(np.uint8).tobytes()).hexdigest()
        settings = list(astuple(scoring_pass))
        without_item = sha256_json([SCHEMA, loaded.model_id, settings, usable])
        start = hashlib.sha256(self._salt + (self._purpose + without_item).encode())
        return PassItems(start, items, scoring_pass)

    def left(self, pass_items: PassItems) -> dict[str, AnyItem]:
        """Return the items whose scores are not stored, by store key.

        Parts that other workers wrote since the last :meth:`refresh` are not seen.
        Items with the same content share a store key, and only one is returned.
        """
        # Mostly all scores are stored, and then no store key is needed.
        if self._index.holds(pass_items.key_numbers).all():
            return {}

        store_keys = pass_items.store_keys()
        items = {store_keys[item.key]: item for item in pass_items.items}
        return {key: items[key] for key in self.lacking(items)}

    def lacking(self, keys: Iterable[str]) -> list[str]:
        """Return the store keys that no score is stored under, as of the last refresh.

        Parameters
        ----------
        keys
            Store keys.
        """
        not_pending = [key for key in keys if key not in self._pending]
        is_lacking = ~self._index.holds(key_numbers(not_pending))  # (keys,)
        return [not_pending[i] for i in np.flatnonzero(is_lacking)]

    def add(
        self, key: str, position: np.ndarray, columns: Mapping[str, np.ndarray]
    ) -> None:
        """Add an item's scores, arrays of shape ``(n,)``; a later flush writes them.

        Scores of another pass have other columns, and begin a part of their own.

        Parameters
        ----------
        key
            Store key of the item.
        position
            Positions of its rows: ``row_positions`` of ``scoring/items.py``.
        """
        layout = [(name, values.dtype) for name, values in columns.items()]
        if layout != self._pending_layout:
            self.flush()
            self._pending_layout = layout

        self._pending[key] = (position.astype(np.int32), dict(columns))
        self._pending_tokens += len(position)
        seconds = time.monotonic() - self._flushed_at
        if self._pending_tokens >= FLUSH_TOKENS or seconds >= FLUSH_SECONDS:
            self.flush()

    def take(self, rows: Rows, remarks: Iterable[str]) -> None:
        """Add rows that another machine scored, with its remarks for readers."""
        # Remarks concern a whole part, and rows that are still pending have others.
        self.flush()
        for text in remarks:
            self.remark(text)
        for key, (position, columns) in rows.items():
            self.add(key, position, columns)

    def remark(self, text: str) -> None:
        """Store a remark for readers with the pending rows."""
        if text not in self._pending_remarks:
            self._pending_remarks.append(text)

    def flush(self) -> None:
        """Write pending rows as one part.

        Raises
        ------
        OutputError
            If the disk is full or the folder is gone. Earlier parts stay valid, and the
            rows stay pending.
        """
        self._flushed_at = time.monotonic()
        if self.folder is None or not self._pending:
            return

        items = []
        for key, (position, columns) in self._pending.items():
            items.append((key, position, columns))
        metadata = {"remarks": json.dumps(self._pending_remarks)}
        table = TokenTable.from_items(items).arrow().replace_schema_metadata(metadata)

        # The bytes are made in memory, because their hash is the name of the file.
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        data = sink.getvalue()
        path = self.folder / f"{hashlib.sha256(data).hexdigest()[:32]}.parquet"
        files.write_atomically(path, lambda file: file.write(data), mode=0o600)

        self._add_part(
            path, _PartContent(key_numbers([*self._pending]), self._pending_remarks)
        )
        self._pending = {}
        self._pending_tokens = 0
        self._pending_remarks = []

    def refresh(self) -> None:
        """Find parts that this or other workers have written since the last refresh."""
        if self.folder is None:
            return

        unread = set(self.folder.glob("*.parquet")) - self._remarks_of_part.keys()
        for path in sorted(unread):
            try:
                content = _read_part(path)
            except (OSError, ValueError, KeyError, pa.ArrowException) as error:
                if out_of_memory(error):
                    raise
                # The part counts as one without keys from now on, so its items are
                # missing.
                content = _PartContent(key_numbers([]), [])
                self.notes.append(
                    f"score part {path.name} is damaged or of another version; its "
                    "items are scored again"
                )
            self._add_part(path, content)

    def _add_part(self, path: Path, content: _PartContent) -> None:
        """Add a part of the folder to the index.

        A part that was damaged and is written anew has its former name, and is added
        twice.
        """
        self._remarks_of_part[path] = content.remarks
        self._indexed_paths.append(path)
        self._index.add_part(content.numbers)

    def gather(self, keys: Mapping[str, str], *, scoring_pass: Pass) -> TokenTable:
        """Return the table of the given items that are stored, by item key.

        Columns are read on demand.

        Parameters
        ----------
        keys
            Item key -> store key, as :meth:`PassItems.store_keys` returns them.
        scoring_pass
            The pass that the items belong to.

        Raises
        ------
        OutputError
            If a part has vanished.
        """
        self.flush()
        numbers = key_numbers([*keys.values()])  # (items,)
        # Another worker may have stored what is missing here.
        if not self._index.holds(numbers).all():
            self.refresh()
        if paths := self._paths_with(numbers):
            return TokenTable.read(*paths, keys=keys)

        # Nothing is pending after a flush, unless the store is in memory.
        items = []
        for item_key, store_key in keys.items():
            if store_key in self._pending:
                position, columns = self._pending[store_key]
                items.append((item_key, position, columns))
        return TokenTable.from_items(items, kind=scoring_pass.kind)

    def files(self) -> list[Path]:
        """Return the parts that the store has read or written, and its salt.

        There are none of a store in memory.
        """
        if self.folder is None:
            return []
        return [self.folder / "salt", *self._remarks_of_part]

    def _paths_with(self, numbers: np.ndarray) -> list[Path]:
        """Return the parts that hold any of these key numbers, shape ``(keys,)``."""
        parts = self._index.parts_with(numbers)
        return [*dict.fromkeys(self._indexed_paths[part] for part in parts)]

    def remarks(self, pass_items: PassItems) -> list[str]:
        """Return the remarks on the parts that hold scores of a pass, each once.

        Reports print them as notes of the checkpoint.
        """
        texts = dict.fromkeys(self._pending_remarks)
        for path in sorted(self._paths_with(pass_items.key_numbers)):
            texts |= dict.fromkeys(self._remarks_of_part[path])
        return list(texts)


class StoredScores(Mapping[Pass, TokenTable]):
    """The tables of a checkpoint, by pass, as audits read them.

    Each table is gathered from the store when the caller asks for it, and not kept: no
    more of them are in memory than the caller holds at a time.

    Attributes
    ----------
    lacks
        The reason why a served checkpoint has only the NLL; empty for others.
    """

    def __init__(
        self,
        store: Store,
        items_by_pass: Mapping[Pass, PassItems],
        *,
        served: bool = False,
    ) -> None:
        self._items_by_pass = items_by_pass
        self._store = store
        self.lacks = (
            "its server gives log-probabilities of tokens alone" if served else ""
        )

    def __getitem__(self, scoring_pass: Pass) -> TokenTable:
        store_keys = self._items_by_pass[scoring_pass].store_keys()
        table = self._store.gather(store_keys, scoring_pass=scoring_pass)
        if self.lacks and scoring_pass.kind == "plain":
            return replace(table, columns={"nll": table.columns["nll"]})
        return table

    def __iter__(self) -> Iterator[Pass]:
        return iter(self._items_by_pass)

    def __len__(self) -> int:
        return len(self._items_by_pass)


class Digest(Protocol):
    """A hash that can take more bytes, such as those of ``hashlib``."""

    def copy(self) -> Digest:
        """Return an independent hash of the same bytes."""

    def update(self, data: bytes, /) -> None:
        """Add bytes to the hash."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far, in hexadecimal digits."""


@dataclass(frozen=True)
class PassItems:
    """The items of one pass over one checkpoint, with the start of their store keys.

    Attributes
    ----------
    start
        The hash of everything in a store key except the item's content.
    scoring_pass
        The pass that reads the items.
    """

    start: Digest
    items: Sequence[AnyItem]
    scoring_pass: Pass

    def store_keys(self) -> dict[str, str]:
        """Return item key -> store key, of 64 hexadecimal digits.

        They are worked out anew at every call: the store keys of a hundred checkpoints
        would be larger than their items.
        """
        store_keys = {}
        for item in self.items:
            digest = self.start.copy()
            digest.update(item.content())
            store_keys[item.key] = digest.hexdigest()
        return store_keys

    @cached_property
    def key_numbers(self) -> np.ndarray:
        """The key numbers of the items, shape ``(items,)``, uint64.

        They are kept, as they are small and each question to the store needs them.
        """
        return key_numbers([*self.store_keys().values()])


def _write_salt(path: Path) -> None:
    """Draw a salt and write it, readable by the owner only.

    Without the salt nobody can tell from a key whether a guessed text was scored.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    files.write_atomically(path, lambda file: file.write(salt), mode=0o600)


def _schema(column_types: Mapping[str, np.dtype]) -> pa.Schema:
    """Return the Parquet schema of a part: one row per item, its columns as lists."""
    fields = {"key": pa.string(), "position": pa.list_(pa.int32())}
    for name, dtype in column_types.items():
        fields[name] = pa.list_(pa.from_numpy_dtype(dtype))
    return pa.schema(fields)


# The schemas that a part may have, one per kind of pass.
_SCHEMAS = [_schema(column_types) for column_types in COLUMN_TYPES.values()]


def _read_part(path: Path) -> _PartContent:
    """Return the keys and remarks of a part, after a check of all that it holds.

    Raises
    ------
    ValueError
        If the file is damaged, or was not written by a store. Other errors of the
        Parquet reader mean the same.
    """
    data = files.read_regular(path, most=files.data_bytes())
    table = pq.read_table(pa.BufferReader(data))
    remarks = json.loads((table.schema.metadata or {})[b"remarks"])
    # The columns are those of `_schema`: keys, positions, and the columns of the pass.
    keys, *lists = (column.combine_chunks() for column in table.columns)

    # A file from somebody else may also have the hash of its bytes as its name.
    if (
        hashlib.sha256(data).hexdigest()[:32] != path.stem
        or table.schema.remove_metadata() not in _SCHEMAS
        or keys.null_count
        or not all(isinstance(text, str) for text in remarks)
    ):
        raise ValueError(path.name)

    # Positions and all columns must have equally many numbers per item.
    offsets = lists[0].offsets
    for name, column in zip(table.column_names[1:], lists, strict=True):
        if not _is_readable(name, column, offsets):
            raise ValueError(path.name)
    return _PartContent(key_numbers(keys.to_pylist()), remarks)


def _is_readable(name: str, column: pa.ListArray, offsets: pa.Array) -> bool:
    """Return whether a column has a finite number for each position.

    A column for which a server gives no numbers is NaN as a whole.
    """
    values = column.flatten()
    if values.null_count or not column.offsets.equals(offsets):
        return False
    numbers = np.asarray(values)
    if name != "nll" and np.isnan(numbers).all():
        return True
    return bool(np.isfinite(numbers).all())
