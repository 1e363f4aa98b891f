"""The token table that every audit reads: columns, with one row per scored token.

The rows of an item are consecutive, with rising positions. The table holds no token ids
and no text, only an item's key (an example id) and positions in the full tokenisation.
(Candidates and prompts have other positions: ``row_positions`` in ``items.py``.)

A further pass has an entry in :data:`COLUMN_TYPES`, one in :data:`ITEMS` unless it
reads texts, and a file in ``scoring/passes``. A further setting of passes is a field of
:class:`Pass`, which is part of every store key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_audit.cells_html import counted
from spark_audit.errors import InputError, OutputError, memory_failure
from spark_audit.files import check_regular, write_atomically

FLOAT = np.dtype(np.float32)
COUNT = np.dtype(np.int32)
CODE = np.dtype(np.int8)

COLUMN_TYPES: Mapping[str, Mapping[str, np.dtype]] = {
    "plain": {
        "nll": FLOAT,  # nats
        "rank_lo": COUNT,  # 1 + tokens that are likelier
        "ties": COUNT,  # other tokens that are as likely
        "mean_logp": FLOAT,  # mean log probability of the next token, nats
        "sd_logp": FLOAT,  # its standard deviation, nats
        "top1_margin": FLOAT,  # the token's logit minus the largest other one
        "top40_logp": FLOAT,  # log of the mass of the 40 likeliest tokens, nats
    },
    "prompted": {
        "nll": FLOAT,
        "rank_lo": COUNT,
        "ties": COUNT,
        "top40_logp": FLOAT,
    },
    "nucleus": {
        "nll": FLOAT,
        "rank_lo": COUNT,
        "top_p90_size": COUNT,  # tokens of the nucleus of 0.9
        "top_p90_logp": FLOAT,  # log of their mass, nats
        "top_p95_size": COUNT,
        "top_p95_logp": FLOAT,
    },
    "candidates": {
        "nll_sum": FLOAT,  # nats
        "nll_mean": FLOAT,  # nats per token
    },
    "noise": {
        "nll": FLOAT,
        "relative": FLOAT,  # scale of the noise over the embeddings' root mean square
    },
    "generate": {
        "strict": CODE,  # 1: the answer is the expected one
        "normalised": CODE,  # 1: it is, but for case, punctuation and white space
        "stop": CODE,  # 0: end-of-text token, 1: end of the line, 2: the limit
        "n_tokens": COUNT,  # tokens that were written
    },
}
"""Kind of pass -> its columns, which the file of the pass explains."""

ITEMS: Mapping[str, str] = dict.fromkeys(COLUMN_TYPES, "texts") | {
    "prompted": "continuations",
    "candidates": "candidates",
    "generate": "prompts",
}
"""Kind of pass -> the items of a manifest that it reads."""

PLAIN_COLUMNS = COLUMN_TYPES["plain"]
WITH_NUCLEI = {**PLAIN_COLUMNS, **COLUMN_TYPES["nucleus"]}
"""The plain columns, and behind them those of nuclei."""

_SCORE_AGAIN = "score again with the same manifest"


@dataclass(frozen=True, repr=False)
class TokenTable:
    """Columns over scored tokens.

    Parameters
    ----------
    ids
        Unique item keys, in the order of their rows.
    offsets
        Shape ``(len(ids) + 1,)``, int64: item ``i`` owns rows
        ``offsets[i]:offsets[i + 1]``.
    position
        Shape ``(n,)``, int32: index of the token in the full tokenisation.
    columns
        Name -> array of shape ``(n,)``; columns of a file are read on demand.

    Examples
    --------
    >>> table = scores["base"][sa.Pass()]
    >>> isinstance(table, sa.TokenTable), len(table.ids) == len(rows)
    (True, True)
    """

    ids: tuple[str, ...]
    offsets: np.ndarray
    position: np.ndarray
    columns: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        """Refuse keys that occur twice."""
        if len(self._index_of) != len(self.ids):
            raise ValueError("item keys are not unique")

    def __repr__(self) -> str:
        """Return the size alone: scores of tokens reveal as much as their text."""
        items, rows = counted(len(self.ids), "item"), counted(len(self), "row")
        return f"TokenTable({items}, {rows}, {[*self.columns]})"

    @cached_property
    def _index_of(self) -> dict[str, int]:
        """Return item key -> its index in ``ids`` and ``offsets``."""
        return {key: index for index, key in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.position)

    def __contains__(self, key: str) -> bool:
        return key in self._index_of

    @classmethod
    def from_items(
        cls,
        items: Sequence[tuple[str, np.ndarray, Mapping[str, np.ndarray]]],
        *,
        kind: str = "plain",
    ) -> TokenTable:
        """Build a table from ``(key, positions, columns)`` of items, in any order.

        Parameters
        ----------
        kind
            Kind of the pass, whose columns an empty table has.
        """
        ids: list[str] = []
        # An empty first array makes offsets begin with 0.
        positions = [np.zeros(0, np.int32)]  # one array per item, behind the empty one
        columns_by_item: list[Mapping[str, np.ndarray]] = []
        for key, position, item_columns in sorted(items, key=lambda item: item[0]):
            ids.append(key)
            positions.append(position)
            columns_by_item.append(item_columns)

        # An empty table also has columns.
        if not columns_by_item:
            no_rows = {}
            for name, dtype in COLUMN_TYPES[kind].items():
                no_rows[name] = np.zeros(0, dtype)
            columns_by_item = [no_rows]

        columns = {}
        for name in columns_by_item[0]:
            columns[name] = np.concatenate(
                [item_columns[name] for item_columns in columns_by_item]
            )
        return cls(
            ids=tuple(ids),
            offsets=np.cumsum([len(array) for array in positions], dtype=np.int64),
            position=np.concatenate(positions, dtype=np.int32),
            columns=columns,
        )

    def rows(self, key: str) -> slice:
        """Return the rows of one item.

        Raises
        ------
        InputError
            If there is no such item.
        """
        index = self._index_of.get(key)
        if index is None:
            raise InputError(
                "the score table lacks an item of the manifest",
                where=f"example {key!r}",
                fix=_SCORE_AGAIN,
            )
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def span(self, key: str, start: int, end: int) -> slice:
        """Return the rows of the tokens ``start:end`` of one item.

        Raises
        ------
        InputError
            If one of the tokens was not scored.
        """
        rows = self.rows(key)
        positions = self.position[rows]  # (n,), rising

        # All tokens of the span are scored if it has as many rows.
        low, high = np.searchsorted(positions, [start, end])
        if high - low != end - start:
            raise InputError(
                f"tokens {start}:{end} were not all scored",
                where=f"example {key!r}",
                fix=_SCORE_AGAIN,
            )
        return slice(rows.start + int(low), rows.start + int(high))

    def items(self) -> Iterator[tuple[str, np.ndarray, dict[str, np.ndarray]]]:
        """Yield items in the form that :meth:`from_items` takes."""
        for key in self.ids:
            rows = self.rows(key)
            columns = {name: values[rows] for name, values in self.columns.items()}
            yield key, self.position[rows], columns

    def write(self, path: str | Path) -> None:
        """Write a Parquet file, whole or not at all, readable by the owner only."""
        table = self.arrow()
        write_atomically(
            Path(path), lambda file: pq.write_table(table, file), mode=0o600
        )

    def arrow(self) -> pa.Table:
        """Return one row per item: its key, and lists of its positions and columns."""
        # All lists of a table share their offsets.
        offsets = pa.array(self.offsets, pa.int32())
        table = {"key": pa.array(self.ids, pa.string())}
        for name, values in {"position": self.position, **self.columns}.items():
            table[name] = pa.ListArray.from_arrays(offsets, pa.array(values))
        return pa.table(table)

    @classmethod
    def read(cls, *paths: Path, keys: Mapping[str, str] | None = None) -> TokenTable:
        """Read tables from :meth:`write`, or parts of a store, as one table.

        Columns are read on demand, and kept as long as the table.

        Parameters
        ----------
        keys
            Item key -> its key in the files, for the wanted items. Items in no file are
            left out, and the others are sorted by key.
        """
        stored = read_parquet(*paths, columns=["key", "position"])
        ids = stored["key"]

        # Row numbers in the files, in the order of the table's items.
        file_rows = pa.array(np.arange(len(stored)))
        if keys is not None:
            item_keys = sorted(keys)
            store_keys = pa.array([keys[key] for key in item_keys], pa.string())
            # Null if no file has the key.
            file_rows = pc.index_in(store_keys, value_set=ids)
            is_stored = file_rows.is_valid()
            ids = pa.array(item_keys, pa.string()).filter(is_stored)
            file_rows = file_rows.drop_null()
        lengths = pc.list_value_length(stored["position"]).take(file_rows).to_numpy()

        def column(name: str) -> np.ndarray:
            """Read a column of the wanted items, one item after the other."""
            lists = read_parquet(*paths, columns=[name])[name].take(file_rows)
            return np.asarray(lists.combine_chunks().flatten())

        names = [
            name
            for name in pq.read_schema(paths[0]).names
            if name not in stored.column_names
        ]
        return cls(
            ids=tuple(ids.to_pylist()),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            position=column("position"),
            columns=LazyColumns(names, column),
        )


class LazyColumns(Mapping[str, np.ndarray]):
    """Columns that are read at their first use."""

    def __init__(self, names: Sequence[str], read: Callable[[str], np.ndarray]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read
        self._columns: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._columns:
            self._columns[name] = np.asarray(self._read(name))
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, order=True)
class Pass:
    """A pass over items that audits can request.

    ``kind`` is the name of a file in :mod:`spark_audit.scoring.passes`. ``sigma`` (the
    scale of its noise) and ``draw`` (the number of its draw) are 0 without noise.

    Examples
    --------
    >>> sa.Pass().label, sa.Pass("noise", sigma=0.01, draw=1).sigma
    ('plain', 0.01)
    """

    kind: str = "plain"
    sigma: float = 0.0
    draw: int = 0

    @property
    def label(self) -> str:
        """Return its name for progress and file names."""
        if not self.sigma:
            return self.kind
        return f"{self.kind} {self.sigma:g} {self.draw}"


@dataclass(frozen=True)
class PassSettings:
    """Settings with which a pass reads its items.

    Attributes
    ----------
    scoring_pass
        The pass with its settings.
    batch_size
        Most items of a batch; ``None``: limited by tokens.
    note
        Called with notes for readers of the report.
    """

    scoring_pass: Pass
    batch_size: int | None
    note: Callable[[str], None]


def read_parquet(*paths: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read several of our Parquet files as one table, in order.

    Raises
    ------
    OutputError
        If a file cannot be read.
    """
    tables = []
    for path in paths:
        try:
            check_regular(path)
            with pq.ParquetFile(path) as file:
                tables.append(file.read(columns))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise OutputError(
                "is not a readable score table", where=str(path), fix="score again"
            ) from memory_failure(error)
    return pa.concat_tables(tables)
