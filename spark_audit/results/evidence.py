"""Evidence of an audit: units without text, and a matrix of their scores.

An audit collects evidence from scores (:meth:`Evidence.of`) and concludes from it; the
report keeps it as a Parquet file in ``scores/``, so that reports can be compared and
checked without model and manifest. :mod:`~spark_audit.results.evidence_file` reads such
a file, and :mod:`~spark_audit.results.evidence_columns` lists what it must have.
"""

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
"""Each checkpoint with its scores by name, shape ``(units,)``; NaN if not scored.

It is often a generator, and is read once. (The field type ``Measured`` of
``results/rows.py`` is another thing: a number of a report.)
"""

LARGE_MATRIX_BYTES = 1 << 28
"""Bytes beyond which a matrix is mapped from a file instead of held in memory."""

BYTES_PER_SCORE = 8
"""Bytes of one score, a float64."""

UNITS_PER_ROW_GROUP = 100_000
"""Number of units that are written at a time."""


@dataclass(frozen=True)
class Evidence:
    """Units without text, and scores of checkpoints.

    Attributes
    ----------
    units
        One line per unit: an identifier, an example, a candidate set, or what else the
        audit looks at.
    checkpoints
        Names of the scored checkpoints, in order.
    values
        Name -> float64, shape ``(checkpoints, units)``; NaN where not scored.
    facts
        Facts on all units together, for
        :meth:`~spark_audit.audits.base.Audit.conclude`.
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
        """Collect evidence from scores that arrive one checkpoint at a time.

        Parameters
        ----------
        units
            One row per unit.
        measured
            Read once, so that memory holds the scores of one checkpoint at a time. Each
            checkpoint must have the same scores.
        facts
            Default: none.

        Raises
        ------
        OutputError
            If a temporary file cannot be written.
        """
        checkpoints: list[str] = []
        files: dict[str, IO[bytes]] = {}
        try:
            with ExitStack() as stack:
                # Each score has its own file, to which every checkpoint appends one
                # row.
                for checkpoint, scores_by_name in measured:
                    checkpoints.append(checkpoint)
                    for name, scores in scores_by_name.items():
                        if name not in files:
                            file = SpooledTemporaryFile(LARGE_MATRIX_BYTES)
                            files[name] = stack.enter_context(file)
                        row_of_matrix = np.asarray(scores, np.float64)  # (units,)
                        files[name].write(row_of_matrix.tobytes())

                # A matrix that is mapped stays readable when its file is closed.
                shape = (len(checkpoints), len(units))
                values = {name: _matrix(file, shape) for name, file in files.items()}
        except OSError as error:
            raise cannot_write(Path(gettempdir()), error) from error
        return cls(units, tuple(checkpoints), values, facts or {})

    def __len__(self) -> int:
        """Return checkpoints times units: the rows of :meth:`frame` without gaps."""
        return len(self.checkpoints) * len(self.units)

    def row(self, checkpoint: str, column: str) -> np.ndarray:
        """Return a score of a checkpoint, shape ``(units,)``; NaN where it has none."""
        # An unknown checkpoint counts as not scored, as does one without this score.
        if checkpoint not in self.checkpoints or column not in self.values:
            return np.full(len(self.units), np.nan)

        return np.asarray(self.values[column][self.checkpoints.index(checkpoint)])

    def frame(self) -> pd.DataFrame:
        """Return one row per checkpoint and unit that has a score.

        Returns
        -------
        Columns ``checkpoint``, those of the units, and one for each score.
        """
        names = [*self.values]
        scored = []
        for checkpoint in self.checkpoints:
            with_all_units = self.whole(checkpoint)
            scored.append(with_all_units.dropna(subset=names, how="all"))

        if not scored:
            return pd.DataFrame(columns=["checkpoint", *self.units, *names])
        return pd.concat(scored, ignore_index=True)

    def whole(self, name: str) -> pd.DataFrame:
        """Return one row per unit of a checkpoint, including units without a score.

        Parameters
        ----------
        name
            The checkpoint's; one that was not scored has NaN only.

        Returns
        -------
        Columns as of :meth:`frame`, in the order of the units.
        """
        scores = {column: self.row(name, column) for column in self.values}
        units = self.units.assign(checkpoint=name, **scores)

        # Audits select rows thousands of times, which is slow with Arrow's strings.
        as_objects = {
            column: object for column, dtype in units.dtypes.items() if dtype == "str"
        }
        return units.astype(as_objects)[["checkpoint", *self.units, *scores]]

    def write(self, path: Path) -> None:
        """Write a Parquet file of the units, with a column per ``SCORE/CHECKPOINT``."""
        table = pa.Table.from_pandas(self.units, preserve_index=False)
        for value, matrix in self.values.items():
            for checkpoint, scores in zip(self.checkpoints, matrix, strict=True):
                column = f"{value}/{checkpoint}"
                table = table.append_column(column, pa.array(scores))

        # The reader takes all names from this metadata, not from the column names.
        about = {
            "units": [*self.units],
            "checkpoints": self.checkpoints,
            "values": [*self.values],
            "facts": dict(self.facts),
        }
        table = table.replace_schema_metadata({"evidence": json.dumps(about)})

        def write_table(file: IO[bytes]) -> None:
            pq.write_table(table, file, row_group_size=UNITS_PER_ROW_GROUP)

        write_atomically(path, write_table, mode=0o600)

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """Read a file that :meth:`write` wrote, here or at somebody else's site.

        Raises
        ------
        OutputError
            If the file cannot be read, is larger than memory allows, or does not fit
            the audit that its name stands for.
        """
        from spark_audit.results.evidence_file import opened_evidence

        with opened_evidence(path) as content:
            return cls.of(content.units, content.scores, content.facts)

    def renamed(self, names: Mapping[str, str]) -> Evidence:
        """Return the same evidence with its checkpoints renamed.

        Parameters
        ----------
        names
            Name -> new name; checkpoints that it lacks keep their names.
        """
        new_names = [names.get(name, name) for name in self.checkpoints]
        return replace(self, checkpoints=tuple(new_names))

    @classmethod
    def united(cls, all_evidence: Sequence[Evidence]) -> Evidence:
        """Return the evidence of several reports on one manifest.

        Each unit counts once; two are the same if they agree in the columns that all
        reports have, since those of an earlier version can lack some. Each checkpoint
        counts once, too, with the scores of the first report that contains it. Its
        scores are NaN on units that only other reports have.

        Parameters
        ----------
        all_evidence
            That of each report, of the same audit; facts are those of the first.
        """
        units = all_evidence[0].units
        shared = [
            column
            for column in units
            if all(column in evidence.units for evidence in all_evidence)
        ]
        for evidence in all_evidence[1:]:
            keys_of_report = _keys(evidence.units[shared])
            is_new = ~keys_of_report.isin(
                _keys(units[shared])
            )  # (units of the report,)
            units = pd.concat([units, evidence.units[is_new]], ignore_index=True)
        keys = _keys(units[shared])

        score_names = dict.fromkeys(
            name for evidence in all_evidence for name in evidence.values
        )
        scores_of: dict[str, dict[str, np.ndarray]] = {}
        for evidence in all_evidence:
            # Where the units of this report stand among all of them.
            keys_of_report = _keys(evidence.units[shared])
            indices = keys.get_indexer(keys_of_report)  # (units of the report,)
            for checkpoint in evidence.checkpoints:
                if checkpoint in scores_of:
                    continue

                scores_of[checkpoint] = {
                    name: _spread(evidence.row(checkpoint, name), indices, len(units))
                    for name in score_names
                }
        return cls.of(units, scores_of.items(), all_evidence[0].facts)


def _spread(scores: np.ndarray, indices: np.ndarray, n_units: int) -> np.ndarray:
    """Return scores at their indices among more units, shape ``(n_units,)``; else NaN.

    ``scores``, ``indices``: shape ``(units of the report,)``.
    """
    of_all_units = np.full(n_units, np.nan)
    of_all_units[indices] = scores
    return of_all_units


def _keys(units: pd.DataFrame) -> pd.MultiIndex:
    """Return a key per unit: a hash of its columns, and a number among equal units.

    So units of two reports that are equal in all columns are paired in their order.
    """
    hashes = pd.util.hash_pandas_object(units, index=False)
    number_among_equals = hashes.groupby(hashes).cumcount()
    return pd.MultiIndex.from_arrays([hashes, number_among_equals])


def _matrix(file: IO[bytes], shape: tuple[int, int]) -> np.ndarray:
    """Return the scores of a file as a matrix, which stays in the file if it is large.

    Parameters
    ----------
    file
        Rows of float64, one for each checkpoint.
    shape
        Number of checkpoints, number of units.
    """
    file.flush()
    n_checkpoints, n_units = shape
    if BYTES_PER_SCORE * n_checkpoints * n_units > LARGE_MATRIX_BYTES:
        return np.memmap(file, np.float64, "r", shape=shape)

    file.seek(0)
    return np.frombuffer(file.read()).reshape(shape)
