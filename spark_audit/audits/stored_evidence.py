"""Evidence of many checkpoints: written as it is made, and concluded from in turns.

What an audit says of a checkpoint rests on its own evidence, on that of its baseline
and on that of the base. Where the evidence of all is too large to be held at once,
only these are in memory at a time: ``conclude`` is called once a checkpoint (once a
method, where that has replicates), and what it says of others is left out. What rests
on all of them is the audit's ``finish``, which sees rows and tables alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_audit.files import cannot_write

TOGETHER = 500_000
"""Rows of evidence up to which all checkpoints are concluded from at once."""
RECORDS = 20_000
"""Records that are held as such while a frame is made of them."""
GROUP = 50_000
"""Rows of evidence that are written at once."""


class StoredEvidence:
    """Evidence in a file, which is read by checkpoint.

    Attributes
    ----------
    names
        The checkpoints, in the order that they were written in.
    """

    def __init__(self, path: Path, groups: Mapping[str, list[int]], rows: int) -> None:
        self.path, self._groups, self._rows = path, groups, rows
        self.names = list(groups)

    def __len__(self) -> int:
        return self._rows

    @property
    def empty(self) -> bool:
        """Whether it has no row."""
        return not self._rows

    def of(self, names: Iterable[str], *, coded: bool = False) -> pd.DataFrame:
        """The rows of some checkpoints, in the order of :attr:`names`.

        Parameters
        ----------
        coded
            Whether columns of text are categories, sorted: a quarter of the room.
        """
        wanted = set(names)
        groups = [g for n in self.names if n in wanted for g in self._groups[n]]
        fields = pq.read_schema(self.path) if coded else ()
        kinds = (pa.types.is_string, pa.types.is_large_string)
        texts = [f.name for f in fields if any(is_a(f.type) for is_a in kinds)]
        with pq.ParquetFile(self.path, read_dictionary=texts) as file:
            table = file.read_row_groups(groups)
        if coded:  # what it says of pandas would make them text again
            table = table.replace_schema_metadata(None)
        for name in texts:
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, _in_order(table[name]))
        # Column by column, each gone from the table once it stands in the frame.
        found: pd.DataFrame = table.to_pandas(self_destruct=True, split_blocks=True)
        return found


def _in_order(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """The same texts by codes of a sorted dictionary: a million sort in Arrow alone."""
    whole = column.unify_dictionaries().combine_chunks()
    order = pc.sort_indices(whole.dictionary)
    codes = np.empty(len(order), np.int32)
    codes[order] = np.arange(len(order), dtype=np.int32)
    fresh = pa.array(codes).take(whole.indices)
    return pa.DictionaryArray.from_arrays(fresh, whole.dictionary.take(order))


Evidence: TypeAlias = pd.DataFrame | StoredEvidence


def names_in(evidence: Evidence | None) -> list[str]:
    """The checkpoints that evidence tells of."""
    if evidence is None or evidence.empty:
        return []
    if isinstance(evidence, StoredEvidence):
        return evidence.names
    return list(dict.fromkeys(evidence["checkpoint"]))


def part_of(evidence: Evidence, name: str) -> pd.DataFrame:
    """The rows of one checkpoint."""
    if isinstance(evidence, StoredEvidence):
        return evidence.of([name])
    return evidence[evidence["checkpoint"] == name]


def joined(frames: Iterable[pd.DataFrame], columns: Sequence[str] = ()) -> pd.DataFrame:
    """Evidence of checkpoints as one frame; without any, an empty one."""
    parts = list(frames)
    if not parts:
        return pd.DataFrame(columns=list(columns))
    return pd.concat(parts, ignore_index=True)


def framed(records: Iterable[Any], columns: Sequence[str]) -> pd.DataFrame:
    """A frame of records; a record takes ten times the room that its row does."""
    rest = iter(records)
    parts = []
    while part := list(islice(rest, RECORDS)):
        parts.append(pd.DataFrame.from_records(part, columns=list(columns)))
    return joined(parts, columns)


def stored(frames: Iterable[pd.DataFrame], spare: Callable[[], Path]) -> Evidence:
    """Evidence as one frame; written to a file as it comes, where it is too large.

    Parameters
    ----------
    spare
        Makes the file.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    held: list[pd.DataFrame] = []
    rest = iter(frames)
    for frame in rest:
        held.append(frame)
        if sum(map(len, held)) > TOGETHER:
            every = chain(held, rest)
            del held, frame
            return _written(filter(len, every), spare())
    return joined(held)


def _written(frames: Iterator[pd.DataFrame], path: Path) -> StoredEvidence:
    groups: dict[str, list[int]] = {}
    count = rows = 0
    first = next(frames)
    schema = pa.Table.from_pandas(first, preserve_index=False).schema
    every = chain([first], frames)
    del first
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for frame in every:
                for name, part in _pieces(frame):
                    table = pa.Table.from_pandas(part, schema, preserve_index=False)
                    writer.write_table(table)
                    groups.setdefault(name, []).append(count)
                    count, rows = count + 1, rows + len(part)
                del frame, part, table  # before the next one is made
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    return StoredEvidence(path, groups, rows)


def _pieces(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each checkpoint, :data:`GROUP` of them at a time."""
    names = frame["checkpoint"].unique().tolist()
    for name in names:
        own = frame if len(names) == 1 else frame[frame["checkpoint"] == name]
        for at in range(0, len(own), GROUP):
            yield name, own.iloc[at : at + GROUP]
