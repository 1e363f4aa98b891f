"""What an audit concludes from: units once, and a matrix of scores beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import IO, Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit.files import cannot_write, write_atomically

Measured: TypeAlias = Iterable[tuple[str, Mapping[str, Any]]]
"""Checkpoint and its scores by name, shape ``(units,)``; NaN: not scored."""
LARGE_MATRIX_BYTES = 1 << 28
"""Bytes beyond which a matrix is mapped from a file instead of held in memory."""
UNITS_PER_ROW_GROUP = 100_000
"""Units that are written at once."""


@dataclass(frozen=True)
class Evidence:
    """Units without text, and scores of checkpoints.

    Attributes
    ----------
    units
        One row per unit (identifier, row, candidate set, ...).
    checkpoints
        Those that have scores, in order.
    values
        Name -> float64, shape ``(checkpoints, units)``; NaN where not scored.
    facts
        Facts on all units that :meth:`~spark_audit.audits.base.Audit.conclude` needs.
    """

    units: pd.DataFrame = field(default_factory=pd.DataFrame)
    checkpoints: tuple[str, ...] = ()
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        units: pd.DataFrame,
        measured: Measured,
        facts: Mapping[str, Any] | None = None,
    ) -> Evidence:
        """From the scores of one checkpoint after the other."""
        names: list[str] = []
        files: dict[str, IO[bytes]] = {}
        try:
            with ExitStack() as stack:
                for name, columns in measured:
                    names.append(name)
                    for column, scores in columns.items():
                        if column not in files:
                            file = stack.enter_context(
                                SpooledTemporaryFile(LARGE_MATRIX_BYTES)
                            )
                            files[column] = file
                        files[column].write(np.asarray(scores, np.float64).tobytes())
                shape = len(names), len(units)
                values = {name: _matrix(file, shape) for name, file in files.items()}
        except OSError as error:
            raise cannot_write(Path(gettempdir()), error) from error
        return cls(units, tuple(names), values, facts or {})

    def __len__(self) -> int:
        """Rows of :meth:`frame` if everything was scored."""
        return len(self.checkpoints) * len(self.units)

    def row(self, checkpoint: str, column: str) -> np.ndarray:
        """Scores of one checkpoint, shape ``(units,)``; NaN if it has none."""
        if checkpoint not in self.checkpoints or column not in self.values:
            return np.full(len(self.units), np.nan)
        return np.asarray(self.values[column][self.checkpoints.index(checkpoint)])

    def frame(self) -> pd.DataFrame:
        """One row per checkpoint and unit that has a score."""
        scores = [*self.values]
        wholes = map(self.whole, self.checkpoints)
        parts = [one.dropna(subset=scores, how="all") for one in wholes]
        if not parts:
            return pd.DataFrame(columns=["checkpoint", *self.units, *scores])
        return pd.concat(parts, ignore_index=True)

    def whole(self, name: str) -> pd.DataFrame:
        """One row per unit of a checkpoint, those without a score included."""
        scores = {column: self.row(name, column) for column in self.values}
        # Rows are chosen thousands of times, which Arrow's strings make slow.
        part = self.units.assign(checkpoint=name, **scores)
        texts = {k: object for k, kind in part.dtypes.items() if kind == "str"}
        return part.astype(texts)[["checkpoint", *self.units, *scores]]

    def write(self, path: Path) -> None:
        """Write one Parquet file: units, and a column ``VALUE/CHECKPOINT`` each."""
        about: dict[str, Any] = {"units": [*self.units]}
        about |= {"checkpoints": self.checkpoints, "values": [*self.values]}
        about |= {"facts": dict(self.facts)}
        table = pa.Table.from_pandas(self.units, preserve_index=False)
        for value, matrix in self.values.items():
            for name, scores in zip(self.checkpoints, matrix, strict=True):
                table = table.append_column(f"{value}/{name}", pa.array(scores))
        table = table.replace_schema_metadata({"evidence": json.dumps(about)})
        write_atomically(
            path,
            lambda file: pq.write_table(
                table, file, row_group_size=UNITS_PER_ROW_GROUP
            ),
            mode=0o600,
        )

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """Read what :meth:`write` wrote; the file may be somebody else's.

        Raises
        ------
        OutputError
            If it cannot be read, is larger than memory allows, or holds something else
            than the audit of its name writes.
        """
        from spark_audit.results.evidence_file import opened_evidence

        with opened_evidence(path) as (units, scores, facts):
            return cls.of(units, scores, facts)

    def renamed(self, names: Mapping[str, str]) -> Evidence:
        """The same evidence with other names of checkpoints."""
        names = {one: names.get(one, one) for one in self.checkpoints}
        return replace(self, checkpoints=tuple(names.values()))

    @classmethod
    def united(cls, parts: Sequence[Evidence]) -> Evidence:
        """Evidence over one manifest; each checkpoint and each unit counts once."""
        units = parts[0].units
        for other in parts[1:]:
            fresh = ~_keys(other.units).isin(_keys(units))
            units = pd.concat([units, other.units[fresh]], ignore_index=True)
        keys = _keys(units)
        seen: dict[str, Mapping[str, np.ndarray]] = {}
        columns = dict.fromkeys(column for part in parts for column in part.values)
        for part in parts:
            at = keys.get_indexer(_keys(part.units))
            for name in (n for n in part.checkpoints if n not in seen):
                scores = {column: np.full(len(units), np.nan) for column in columns}
                for column, row in scores.items():
                    row[at] = part.row(name, column)
                seen[name] = scores
        return cls.of(units, seen.items(), parts[0].facts)


def _keys(units: pd.DataFrame) -> pd.MultiIndex:
    """A key per unit; equal units are numbered."""
    hashes = pd.util.hash_pandas_object(units, index=False)
    return pd.MultiIndex.from_arrays([hashes, hashes.groupby(hashes).cumcount()])


def _matrix(file: IO[bytes], shape: tuple[int, int]) -> np.ndarray:
    file.flush()
    if 8 * shape[0] * shape[1] > LARGE_MATRIX_BYTES:
        return np.memmap(file, np.float64, "r", shape=shape)
    file.seek(0)
    return np.frombuffer(file.read()).reshape(shape)
