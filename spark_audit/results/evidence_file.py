"""Read a file of evidence that may come from somebody else.

Sizes are checked before anything is decoded: a file of a kilobyte can stand for fifty
million equal rows. Then names, types and ranges are checked, so that an audit concludes
only from what it could have written itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_audit.errors import InputError, OutputError, memory_size
from spark_audit.files import SETTINGS_BYTES, check_regular, data_bytes, parse_json
from spark_audit.results.evidence_columns import (
    FREE_OR_NONE,
    LAYOUTS,
    EvidenceLayout,
    Range,
)

CheckpointScores: TypeAlias = tuple[str, Mapping[str, Any]]
"""A checkpoint and its scores by name."""
AGAIN = "audit again with this version"
NUMBER_BYTES, TEXT_BYTES = 8, 64
"""Bytes that a number and a text take at least once they are decoded."""
MAPPED = 8
"""Scores may take so many times what memory allows: they are mapped from a file."""
MOST_COLUMNS = 100_000
LONGEST_TEXT = 10_000
"""Characters of an id or a name."""
LONGEST_NAME = 500
"""Characters of the name of a checkpoint or a column."""


class _UnfitError(Exception):
    """What is wrong with a file, in words."""


@dataclass(frozen=True)
class _About:
    """What a file says of itself: names of columns, checkpoints, scores, and facts."""

    units: list[str]
    checkpoints: list[str]
    values: list[str]
    facts: dict[str, Any]

    def columns(self) -> Iterator[str]:
        """Yield the name of each column that is read."""
        yield from self.units
        for value in self.values:
            for checkpoint in self.checkpoints:
                yield f"{value}/{checkpoint}"


@contextmanager
def opened_evidence(
    path: Path,
) -> Iterator[tuple[pd.DataFrame, Iterator[CheckpointScores], dict[str, Any]]]:
    """Give units, scores by checkpoint (read one after the other), and facts of a file.

    Raises
    ------
    OutputError
        If it cannot be read, is larger than memory allows, or holds something else
        than the audit of its name writes.
    """
    layout = LAYOUTS.get(path.name)
    try:
        check_regular(path)
        with pq.ParquetFile(path) as file:
            about = _about(file, layout)
            texts = _checked_columns(file, about)
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            units = _units(file, about, texts, layout)
            yield units, _scores(file, about, layout), about.facts
    except _UnfitError as error:
        what = f"is not readable evidence: it {error}"
        raise OutputError(what, where=str(path), fix=AGAIN) from error
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        what = "is not readable evidence"
        raise OutputError(what, where=str(path), fix=AGAIN) from error


def _about(file: pq.ParquetFile, layout: EvidenceLayout | None) -> _About:
    """Return what the file says of itself, checked."""
    raw = (file.schema_arrow.metadata or {}).get(b"evidence")
    if raw is None:
        raise _UnfitError("was not written by an audit")
    if len(raw) > SETTINGS_BYTES:
        raise _UnfitError("says too much of itself")
    try:
        content = parse_json(raw, place="evidence")
    except InputError as error:
        raise _UnfitError("does not say what it holds") from error
    if not isinstance(content, dict) or not isinstance(content.get("facts"), dict):
        raise _UnfitError("does not say what it holds")
    about = _About(
        units=_names(content.get("units")),
        checkpoints=_names(content.get("checkpoints")),
        values=_names(content.get("values")),
        facts=content["facts"],
    )
    if not about.checkpoints or not about.values:
        raise _UnfitError("has no scores")
    if "checkpoint" in about.units or {*about.units} & {*about.values}:
        raise _UnfitError("names two columns alike")
    if layout is not None:
        _check_names(about, layout)
    return about


def _names(value: object) -> list[str]:
    """Return a list of different names that can be shown."""
    if not isinstance(value, list) or len(value) > MOST_COLUMNS:
        raise _UnfitError("does not say what it holds")
    for name in value:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise _UnfitError("has a name that is none")
        if not name.isprintable():
            raise _UnfitError("has a name that cannot be shown")
    if len({*value}) < len(value):
        raise _UnfitError("names two columns alike")
    return value


def _check_names(about: _About, layout: EvidenceLayout) -> None:
    lacking = [name for name in layout.units if name not in about.units]
    lacking += [name for name in layout.values if name not in about.values]
    lacking += [name for name in layout.facts if name not in about.facts]
    if lacking:
        raise _UnfitError(f"lacks {', '.join(lacking)}")
    for name, is_fit in layout.facts.items():
        if not is_fit(about.facts[name]):
            raise _UnfitError(f"has something else as {name}")


def _checked_columns(file: pq.ParquetFile, about: _About) -> list[str]:
    """Return the columns of text; refuse a file that memory would not hold."""
    schema, rows = file.schema_arrow, file.metadata.num_rows
    if not rows:
        raise _UnfitError("has no units")
    if len({*schema.names}) < len(schema.names):
        raise _UnfitError("names two columns alike")
    known = {*schema.names}
    texts, of_units, of_scores = list[str](), 0, 0
    for count, name in enumerate(about.columns()):
        if count > MOST_COLUMNS:
            raise _UnfitError("has too many columns")
        if name not in known:
            raise _UnfitError("lacks a column that it names")
        if count >= len(about.units):
            of_scores += rows * NUMBER_BYTES
        elif _is_text(schema.field(name).type):
            texts.append(name)
            of_units += rows * TEXT_BYTES
        else:
            of_units += rows * NUMBER_BYTES
    groups = range(file.metadata.num_row_groups)
    stored = max(file.metadata.row_group(k).total_byte_size for k in groups)
    # Scores are mapped from a file where they are large, units are held in memory.
    most = data_bytes()
    if max(of_units, stored) > most or of_scores > MAPPED * most:
        size = memory_size(of_units + of_scores)
        raise _UnfitError(f"would take {size} of memory")
    return texts


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _units(
    file: pq.ParquetFile,
    about: _About,
    texts: Sequence[str],
    layout: EvidenceLayout | None,
) -> pd.DataFrame:
    """Return the units, each column of its type and range."""
    columns: dict[str, pa.ChunkedArray] = {}
    room = data_bytes()
    for name in about.units:
        column = file.read([name]).column(0)
        if name in texts:
            room -= _text_bytes(column)
            if room < 0:
                raise _UnfitError("would take too much memory")
            column = pa.chunked_array(
                [_decoded(chunk) for chunk in column.chunks], type=pa.large_string()
            )
        columns[name] = column
        wanted = layout.units.get(name) if layout is not None else None
        _check_type(name, column, wanted)
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    for name in about.units:
        wanted = layout.units.get(name) if layout is not None else None
        is_number = pa.types.is_integer(columns[name].type) or _is_float(columns[name])
        if is_number:
            _check_range(name, frame[name].to_numpy(), wanted or FREE_OR_NONE)
    return frame


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of a column of text once it is decoded, without decoding it."""
    total = 0
    for chunk in column.chunks:
        if not pa.types.is_dictionary(chunk.type):
            lengths = pc.binary_length(chunk)
            taken = lengths
        else:
            lengths = pc.binary_length(chunk.dictionary)
            taken = pc.take(lengths, chunk.indices)
        if (pc.max(lengths).as_py() or 0) > LONGEST_TEXT:
            raise _UnfitError("holds a text that is no name")
        total += pc.sum(pc.cast(taken, pa.int64())).as_py() or 0
    return total


def _decoded(chunk: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    return chunk.cast(pa.large_string())


def _is_float(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_floating(column.type))


def _check_type(name: str, column: pa.ChunkedArray, wanted: Range | None) -> None:
    kind = column.type
    is_whole = bool(pa.types.is_integer(kind))
    is_number = is_whole or _is_float(column)
    fits = {
        "text": _is_text(kind),
        "flag": bool(pa.types.is_boolean(kind)),
        "whole": is_whole,
        "number": is_number,
    }
    if not (fits[wanted.kind] if wanted is not None else any(fits.values())):
        raise _UnfitError(f"holds another type as {name}")
    has_gaps = is_number and (wanted is None or wanted.gaps)
    if column.null_count and not has_gaps:
        raise _UnfitError(f"lacks values of {name}")


def _check_range(name: str, values: np.ndarray, wanted: Range) -> None:
    if fault := wanted.fault(values):
        raise _UnfitError(f"{fault}: {name}")


def _scores(
    file: pq.ParquetFile, about: _About, layout: EvidenceLayout | None
) -> Iterator[CheckpointScores]:
    """Yield the scores of each checkpoint by name, shape ``(units,)`` each.

    Of a score that is not known here, such as one from a file of somebody else's
    attack, infinite values are as good as any.
    """
    for checkpoint in about.checkpoints:
        own: dict[str, Any] = {}
        for value in about.values:
            column = file.read([f"{value}/{checkpoint}"]).column(0)
            if not _is_float(column):
                raise _UnfitError(f"holds another type as {value}")
            numbers = column.to_numpy().astype(np.float64)
            wanted = layout.values.get(value) if layout is not None else None
            if wanted is not None:
                _check_range(value, numbers, wanted)
            own[value] = numbers
        yield checkpoint, own
