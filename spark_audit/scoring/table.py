"""The token table: one row per scored token, columnar, what every audit reads.

Rows of one item stand together with rising positions. No token id and no text is in
it, only the item's key (an example id) and the position in the full tokenisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit.errors import InputError, OutputError
from spark_audit.files import check_regular, write_atomically
from spark_audit.scoring.passes import PASSES

LAYOUTS: Mapping[str, Mapping[str, np.dtype]] = {
    kind: {
        name: np.dtype(dtype) for name, dtype in PASSES.literal(kind, "LAYOUT").items()
    }
    for kind in PASSES.names()
}
"""Kind of pass -> its columns, as its file says."""

ITEMS: Mapping[str, str] = {
    kind: PASSES.literal(kind, "ITEMS") for kind in PASSES.names()
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
        Name -> array of shape ``(n,)``.
    """

    ids: tuple[str, ...]
    offsets: np.ndarray
    position: np.ndarray
    columns: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        n = int(self.offsets[-1]) if len(self.offsets) else 0
        if len(self.offsets) != len(self.ids) + 1 or len(self.position) != n:
            raise ValueError("offsets, ids and positions disagree")
        for name, values in self.columns.items():
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
        lengths = np.diff(self.offsets)
        # 32-bit indices: pyarrow would otherwise pick int8 and fail at 128 items.
        index = pa.array(np.repeat(np.arange(len(self.ids), dtype=np.int32), lengths))
        names = pa.array(list(self.ids), type=pa.string())
        data = {
            "example": pa.DictionaryArray.from_arrays(index, names),
            "position": pa.array(self.position),
            **{k: pa.array(v) for k, v in self.columns.items()},
        }
        write_parquet(pa.table(data), path)

    @classmethod
    def read(cls, path: Path) -> TokenTable:
        """Read what :meth:`write` wrote."""
        table = read_parquet(path)
        keys = np.asarray(table["example"].cast(pa.string()).to_pylist(), dtype=object)
        position = table["position"].to_numpy()
        # Items without any row are not in the file; no audit asks for them.
        first = np.ones(len(keys), dtype=bool)
        first[1:] = keys[1:] != keys[:-1]
        starts = np.flatnonzero(first)
        return cls(
            ids=tuple(str(keys[i]) for i in starts),
            offsets=np.append(starts, len(keys)).astype(np.int64),
            position=position,
            columns={
                name: table[name].to_numpy()
                for name in table.column_names
                if name not in ("example", "position")
            },
        )


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


@dataclass(frozen=True)
class Column:
    """What a column of a file holds.

    Parameters
    ----------
    low, high
        Least and largest number; NaN is none.
    null
        Whether values may be missing.
    """

    kind: Literal["text", "whole", "number", "flag"]
    low: float = -1e12
    high: float = 1e12
    null: bool = False

    def flaw(self, values: pa.ChunkedArray) -> str:
        """What is wrong with some values; nothing, if all is well."""
        type, is_a = values.type, pa.types
        if is_a.is_dictionary(type):
            type = type.value_type
        known = {
            "text": is_a.is_string(type) or is_a.is_large_string(type),
            "whole": is_a.is_integer(type),
            "number": is_a.is_floating(type) or is_a.is_integer(type),
            "flag": is_a.is_boolean(type),
        }
        # All missing: Arrow writes no type then.
        if not (known[self.kind] or (self.null and is_a.is_null(type))):
            return f"is no column of {self.kind}s"
        if values.null_count and not self.null:
            return "has missing values"
        if self.kind == "text":
            names = values.drop_null().unique().to_pylist()
            return "" if all(n.isprintable() for n in names) else "holds control marks"
        if self.kind == "flag" or is_a.is_null(type):
            return ""
        numbers = values.drop_null().to_numpy().astype(np.float64)
        if self.null:
            numbers = numbers[~np.isnan(numbers)]
        inside = bool(((numbers >= self.low) & (numbers <= self.high)).all())
        return "" if inside else "holds a number that cannot be"


def check_columns(
    table: pa.Table, columns: Mapping[str, Column], *, where: str
) -> None:
    """Make sure that a table has these columns, once and as they are described.

    Files of scores and evidence are looked at here, when they are read, and nowhere
    behind. Other columns may stand beside them.

    Raises
    ------
    OutputError
        Naming the column.
    """
    for name, column in columns.items():
        at = table.schema.get_all_field_indices(name)
        flaw = column.flaw(table.column(at[0])) if len(at) == 1 else "is not there once"
        if flaw:
            raise OutputError(f"column {name} {flaw}", where=where, fix="audit again")


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file of ours.

    Raises
    ------
    OutputError
        If it cannot be read.
    """
    try:
        check_regular(path)
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise OutputError(
            "is not a readable score table", where=str(path), fix="score again"
        ) from error
