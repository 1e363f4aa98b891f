"""The token table: one row per scored token, columnar, what every audit reads.

Rows of one item stand together with rising positions. No token id and no text is in
it, only the item's key (an example id) and the position in the full tokenisation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit.errors import InputError, OutputError
from spark_audit.files import check_regular, write_atomically

_COLUMNS: Mapping[str, str] = {
    "plain": "nll:f4 rank_lo:i4 ties:i4 mean_logp:f4 sd_logp:f4 top1_margin:f4 "
    "top40_logp:f4 top40_cold:f4",
    "prompted": "nll:f4 rank_lo:i4 ties:i4 top40_logp:f4 top40_cold:f4",
    "candidates": "nll_sum:f4 nll_mean:f4",
    "noise": "nll:f4 relative:f4",
    "generate": "strict:i1 normalised:i1 stop:i1 n_tokens:i4",
}
LAYOUTS: Mapping[str, Mapping[str, np.dtype]] = {
    kind: {
        name: np.dtype(dtype)
        for name, dtype in (column.split(":") for column in columns.split())
    }
    for kind, columns in _COLUMNS.items()
}
"""Kind of pass -> its columns, as its file in ``passes/`` explains them."""

ITEMS: Mapping[str, str] = {
    "plain": "texts",
    "prompted": "continuations",
    "candidates": "candidates",
    "noise": "texts",
    "generate": "prompts",
}
"""Kind of pass -> what of a manifest it goes through."""

COLUMNS = LAYOUTS["plain"]


@dataclass(frozen=True, repr=False)
class TokenTable:
    """Columns over scored tokens.

    Parameters
    ----------
    ids
        Item keys, unique, in the order their rows stand.
    offsets
        Shape ``(len(ids) + 1,)``, int64: item ``i`` owns rows
        ``offsets[i]:offsets[i + 1]``.
    position
        Shape ``(n,)``, int32: index of the token in the full tokenisation.
    columns
        Name -> array of shape ``(n,)``; those of a file are read when asked for.
    """

    ids: tuple[str, ...]
    offsets: np.ndarray
    position: np.ndarray
    columns: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        n = int(self.offsets[-1]) if len(self.offsets) else 0
        if len(self.offsets) != len(self.ids) + 1 or len(self.position) != n:
            raise ValueError("offsets, ids and positions disagree")
        # A file's columns are as long as its positions, and not read yet.
        given = {} if isinstance(self.columns, _Columns) else self.columns
        for name, values in given.items():
            if len(values) != n:
                raise ValueError(f"column {name} has {len(values)} rows, not {n}")
        if len(self._row) != len(self.ids):
            raise ValueError("item keys are not unique")

    def __repr__(self) -> str:
        """How much it holds; scores of tokens are as good as their text."""
        return f"TokenTable({len(self.ids)} items, {len(self)} rows, {[*self.columns]})"

    @cached_property
    def _row(self) -> dict[str, int]:
        return {key: i for i, key in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.position)

    def __contains__(self, key: str) -> bool:
        return key in self._row

    @classmethod
    def from_items(
        cls,
        items: Sequence[tuple[str, np.ndarray, Mapping[str, np.ndarray]]],
        *,
        kind: str = "plain",
    ) -> TokenTable:
        """Build from ``(key, positions, columns)``, one an item, in any order.

        Parameters
        ----------
        kind
            The kind of pass; an empty table has its columns.
        """
        items = sorted(items, key=lambda item: item[0])
        counts = [len(positions) for _, positions, _ in items]
        empty = LAYOUTS.get(kind, COLUMNS)
        names = list(items[0][2]) if items else list(empty)
        return cls(
            ids=tuple(key for key, _, _ in items),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            position=_join([p for _, p, _ in items], np.dtype(np.int32)),
            columns={
                name: np.concatenate([c[name] for _, _, c in items])
                if items
                else np.zeros(0, empty[name])
                for name in names
            },
        )

    def rows(self, key: str) -> slice:
        """Rows of one item; an unknown key is an ``InputError``."""
        if key not in self._row:
            raise InputError(
                "the score table lacks an item of the manifest",
                where=f"example {key!r}",
                fix="score again with the same manifest",
            )
        i = self._row[key]
        return slice(int(self.offsets[i]), int(self.offsets[i + 1]))

    def span(self, key: str, start: int, end: int) -> slice:
        """Rows of the tokens ``start:end`` of one item; all must have been scored."""
        rows = self.rows(key)
        positions = self.position[rows]
        low, high = np.searchsorted(positions, [start, end])
        if high - low != end - start:
            raise InputError(
                f"tokens {start}:{end} were not all scored",
                where=f"example {key!r}",
                fix="score again with the same manifest",
            )
        return slice(rows.start + int(low), rows.start + int(high))

    def write(self, path: Path) -> None:
        """Write Parquet whole or not at all, readable by the owner only."""
        write_tables([self], path)

    def _arrow(self) -> pa.Table:
        lengths = np.diff(self.offsets)
        # 32-bit indices: pyarrow would otherwise pick int8 and fail at 128 items.
        index = pa.array(np.repeat(np.arange(len(self.ids), dtype=np.int32), lengths))
        names = pa.array(list(self.ids), type=pa.string())
        data = {
            "example": pa.DictionaryArray.from_arrays(index, names),
            "position": pa.array(self.position),
            **{k: pa.array(v) for k, v in self.columns.items()},
        }
        return pa.table(data)

    @classmethod
    def read(cls, path: Path) -> TokenTable:
        """Read what :meth:`write` or :func:`write_tables` wrote.

        Columns are read when they are asked for, and kept as long as the table is.
        """
        ids: list[str] = []
        starts = [np.zeros(0, np.int64)]
        rows = 0
        with _opened(path) as file:
            for part in range(file.num_row_groups):
                keys = file.read_row_group(part, ["example"])["example"]
                codes, names = _codes(keys)
                first = np.flatnonzero(np.diff(codes, prepend=-1))
                # An item may begin in the part before.
                if len(first) and ids and names[codes[0]] == ids[-1]:
                    first = first[1:]
                ids += names[codes[first]].tolist()
                starts.append(first + rows)
                rows += len(codes)
            known = [n for n in file.schema_arrow.names if n not in _PLACES]
            # Items without any row have none that could hold their key.
            said = (file.metadata.metadata or {}).get(b"empty", b"[]")
            empty = [str(key) for key in json.loads(said)]
        ends = np.full(len(empty) + 1, rows)
        columns = _Columns(path, tuple(known))
        return cls(
            ids=(*ids, *empty),
            offsets=np.concatenate([*starts, ends]).astype(np.int64),
            position=columns.read("position"),
            columns=columns,
        )


_PLACES = ("example", "position")


class _Columns(Mapping[str, np.ndarray]):
    """The columns of a file, each read when it is first asked for."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path, self._names = path, names
        self._known: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._known:
            self._known[name] = self.read(name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def read(self, name: str) -> np.ndarray:
        """Read one column, piece by piece, without keeping it."""
        with _opened(self._path) as file:
            kind = file.schema_arrow.field(name).type.to_pandas_dtype()
            found, at = np.empty(file.metadata.num_rows, kind), 0
            for batch in file.iter_batches(columns=[name]):
                found[at : at + len(batch)] = batch.column(0)
                at += len(batch)
        return found


Key = TypeVar("Key")


class StoredTables(Mapping[Key, TokenTable]):
    """Tables that lie in files: each is read when it is asked for, and not kept.

    So no more of them are in memory than whoever asks holds at a time.
    """

    def __init__(self, files: Mapping[Key, Path]) -> None:
        self.files = files

    def __getitem__(self, key: Key) -> TokenTable:
        return TokenTable.read(self.files[key])

    def __contains__(self, key: object) -> bool:
        return key in self.files

    def __iter__(self) -> Iterator[Key]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def write_tables(parts: Iterable[TokenTable], path: Path) -> int:
    """Write tables of one pass as one file, whole or not at all; how many items.

    Parameters
    ----------
    parts
        One at least. No two hold the same item. One at a time is in memory.
    """
    count, empty = 0, list[str]()
    rest = iter(parts)
    first = next(rest)

    def write(file: IO[bytes]) -> None:
        nonlocal count
        with pq.ParquetWriter(file, first._arrow().schema) as writer:
            for part in chain([first], rest):
                # Of more than 2^20 rows Arrow would make several groups.
                writer.write_table(part._arrow(), row_group_size=max(len(part), 1))
                count += len(part.ids)
                lengths = zip(part.ids, np.diff(part.offsets), strict=True)
                empty.extend(key for key, length in lengths if not length)
            if empty:
                writer.add_key_value_metadata({"empty": json.dumps(empty)})

    write_atomically(path, write, mode=0o600)
    return count


def _codes(keys: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and names of a column of text, whether or not it is a dictionary."""
    if not pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_encode()
    whole = keys.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # no row at all
        return np.zeros(0, np.int32), np.zeros(0, object)
    return whole.indices.to_numpy(), whole.dictionary.to_numpy(zero_copy_only=False)


def _join(parts: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)


@dataclass(frozen=True, order=True)
class Pass:
    """One pass over the items that audits can ask for.

    ``kind`` is the file of :mod:`spark_audit.scoring.passes`; ``sigma`` (the scale of
    its noise) and ``draw`` (which one) are 0 where it has none.
    """

    kind: str = "plain"
    sigma: float = 0.0
    draw: int = 0

    @property
    def label(self) -> str:
        """What progress and file names call it."""
        if not self.sigma:
            return self.kind
        return f"{self.kind} {self.sigma:g} {self.draw}"


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a Parquet file whole or not at all: temporary name, fsync, rename."""
    write_atomically(path, lambda file: pq.write_table(table, file), mode=0o600)


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file of ours.

    Raises
    ------
    OutputError
        If it cannot be read.
    """
    with _opened(path) as file:
        return file.read()


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        check_regular(path)
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, pa.ArrowException) as error:
        raise OutputError(
            "is not a readable score table", where=str(path), fix="score again"
        ) from error
