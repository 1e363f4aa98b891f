"""Read a file of evidence that may come from somebody else.

Sizes are checked before anything is decoded: a file of a kilobyte can stand for fifty
million equal rows. Then names, types and ranges are checked, so that an audit gets only
evidence that it could have written itself.

:meth:`~spark_audit.results.evidence.Evidence.write` writes these files: columns of the
units, columns ``SCORE/CHECKPOINT``, and metadata that names both. A further check goes
into the function of what it checks (metadata, sizes, units, scores) and raises
:class:`_UnfitError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_audit.errors import InputError, OutputError, memory_failure, memory_size
from spark_audit.files import SETTINGS_BYTES, check_regular, data_bytes, parse_json
from spark_audit.results.evidence_columns import (
    FREE_OR_NONE,
    LAYOUTS,
    EvidenceLayout,
    Range,
)

CheckpointScores: TypeAlias = tuple[str, Mapping[str, np.ndarray]]
"""A checkpoint, and its scores by name, shape ``(units,)`` each."""

AGAIN = "audit again with this version"
"""What to do about a file that is not readable evidence."""

NUMBER_BYTES = 8
"""Bytes that a decoded number takes."""

TEXT_BYTES = 64
"""Least bytes that a decoded text takes."""

MAX_MAPPED_SHARE = 8
"""Scores may take this many times the allowed memory, since they are mapped from a
file."""

MOST_COLUMNS = 100_000
"""Most columns, and most names of one list, of a file."""

LONGEST_TEXT = 10_000
"""Most characters of an id or a name of a unit."""

LONGEST_NAME = 500
"""Most characters of the name of a checkpoint or a column."""


class _UnfitError(Exception):
    """A fault of a file; the message continues a sentence that begins with "it"."""


@dataclass(frozen=True)
class _About:
    """The metadata of a file: names of columns, checkpoints and scores, and facts."""

    units: list[str]
    checkpoints: list[str]
    values: list[str]
    facts: dict[str, object]

    def columns(self) -> Iterator[str]:
        """Yield the names of the columns to read, first those of the units."""
        yield from self.units
        for value in self.values:
            for checkpoint in self.checkpoints:
                yield f"{value}/{checkpoint}"


class EvidenceContent(NamedTuple):
    """Contents of an evidence file.

    ``scores`` reads one checkpoint after the other while the file is open.
    """

    units: pd.DataFrame
    scores: Iterator[CheckpointScores]
    facts: dict[str, object]


@contextmanager
def opened_evidence(path: Path) -> Iterator[EvidenceContent]:
    """Open an evidence file and give its contents until the context ends.

    Raises
    ------
    OutputError
        If the file cannot be read, is larger than memory allows, or does not fit the
        audit that its name stands for.
    """
    # Evidence of another package's audit has no layout and may have any columns.
    layout = LAYOUTS.get(path.name)
    try:
        check_regular(path)
        with pq.ParquetFile(path) as file:
            about = _about(file, layout)
            text_columns = _text_columns(file, about)
            _check_size(file, about, text_columns)

        # Texts stay dictionary-encoded, so that their decoded size can be checked
        # first.
        with pq.ParquetFile(path, read_dictionary=text_columns) as file:
            units = _units(file, about, text_columns, layout)
            yield EvidenceContent(units, _scores(file, about, layout), about.facts)
    except _UnfitError as error:
        what = f"is not readable evidence: it {error}"
        raise OutputError(what, where=str(path), fix=AGAIN) from error
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        what = "is not readable evidence"
        raise OutputError(what, where=str(path), fix=AGAIN) from memory_failure(error)


def _about(file: pq.ParquetFile, layout: EvidenceLayout | None) -> _About:
    """Return the checked metadata of the file.

    Parameters
    ----------
    layout
        The contents that it must have; ``None``: not known.
    """
    metadata = file.schema_arrow.metadata or {}
    raw = metadata.get(b"evidence")
    if raw is None:
        raise _UnfitError("was not written by an audit")
    if len(raw) > SETTINGS_BYTES:
        raise _UnfitError("says too much of itself")

    try:
        content = parse_json(raw, place="evidence")
    except InputError:
        raise _UnfitError("does not say what it holds") from None
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
    # All names become columns of one frame next to "checkpoint": none may repeat.
    if "checkpoint" in about.units or {*about.units} & {*about.values}:
        raise _UnfitError("names two columns alike")
    if layout is not None:
        _check_names(about, layout)
    return about


def _names(value: object) -> list[str]:
    """Return a list of names if they are distinct and printable; else refuse it."""
    if not isinstance(value, list) or len(value) > MOST_COLUMNS:
        raise _UnfitError("does not say what it holds")

    # Errors and tables show these names, and frames use them as columns.
    for name in value:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise _UnfitError("has a name that is none")
        if not name.isprintable():
            raise _UnfitError("has a name that cannot be shown")

    if len({*value}) < len(value):
        raise _UnfitError("names two columns alike")
    return value


def _check_names(about: _About, layout: EvidenceLayout) -> None:
    """Refuse a file without a column or a fact that its audit needs."""
    lacking = [name for name in layout.units if name not in about.units]
    lacking += [name for name in layout.values if name not in about.values]
    lacking += [name for name in layout.facts if name not in about.facts]
    if lacking:
        raise _UnfitError(f"lacks {', '.join(lacking)}")

    # Facts have no range, but a type.
    for name, is_fit in layout.facts.items():
        if not is_fit(about.facts[name]):
            raise _UnfitError(f"has something else as {name}")


def _text_columns(file: pq.ParquetFile, about: _About) -> list[str]:
    """Return the names of the units' columns of text.

    The stored columns are checked on the way, before anything is read.

    Raises
    ------
    _UnfitError
        If the file has no rows, or lacks columns that its metadata names.
    """
    schema = file.schema_arrow
    if not file.metadata.num_rows:
        raise _UnfitError("has no units")
    stored = {*schema.names}
    if len(stored) < len(schema.names):
        raise _UnfitError("names two columns alike")

    # Stop at the limit while counting, since a file can name millions of columns.
    for n_before, name in enumerate(about.columns()):
        if n_before > MOST_COLUMNS:
            raise _UnfitError("has too many columns")
        if name not in stored:
            raise _UnfitError("lacks a column that it names")
    return [name for name in about.units if _is_text(schema.field(name).type)]


def _check_size(
    file: pq.ParquetFile, about: _About, text_columns: Sequence[str]
) -> None:
    """Refuse a file whose decoded contents do not fit into memory.

    Texts count here with the least that they can take; :func:`_units` counts them
    exactly.
    """
    n_units = file.metadata.num_rows
    n_text_columns = len(text_columns)
    n_number_columns = len(about.units) - n_text_columns
    n_score_columns = len(about.values) * len(about.checkpoints)
    unit_bytes = n_units * (
        n_text_columns * TEXT_BYTES + n_number_columns * NUMBER_BYTES
    )
    score_bytes = n_units * n_score_columns * NUMBER_BYTES

    # The reader decompresses a row group as a whole.
    groups = range(file.metadata.num_row_groups)
    largest_group = max(file.metadata.row_group(i).total_byte_size for i in groups)

    # Units stay in memory; large scores are mapped from a file.
    allowed = data_bytes()
    fits = (
        max(unit_bytes, largest_group) <= allowed
        and score_bytes <= MAX_MAPPED_SHARE * allowed
    )
    if not fits:
        size = memory_size(unit_bytes + score_bytes)
        raise _UnfitError(f"would take {size} of memory")


def _is_text(stored_type: pa.DataType) -> bool:
    """Return whether a column has texts, dictionary-encoded or plain."""
    # Arrow stores repeated texts once, in a dictionary.
    if pa.types.is_dictionary(stored_type):
        stored_type = stored_type.value_type
    is_small = pa.types.is_string(stored_type)
    return bool(is_small or pa.types.is_large_string(stored_type))


def _units(
    file: pq.ParquetFile,
    about: _About,
    text_columns: Sequence[str],
    layout: EvidenceLayout | None,
) -> pd.DataFrame:
    """Return the units, each column of its type and range.

    Parameters
    ----------
    text_columns
        Names of the columns of text, which are decoded only if memory holds them.
    layout
        Types and ranges of the columns; ``None``: not known.
    """
    ranges: Mapping[str, Range] = {}
    if layout is not None:
        ranges = layout.units

    # Check the stored types, since pandas converts some of them.
    columns: dict[str, pa.ChunkedArray] = {}
    free_bytes = data_bytes()
    for name in about.units:
        column = file.read([name]).column(0)
        if name in text_columns:
            free_bytes -= _text_bytes(column)
            if free_bytes < 0:
                raise _UnfitError("would take too much memory")
            chunks = [_decoded(chunk) for chunk in column.chunks]
            column = pa.chunked_array(chunks, type=pa.large_string())
        _check_type(name, column, ranges.get(name))
        columns[name] = column

    units: pd.DataFrame = pa.table(columns).to_pandas()
    for name, column in columns.items():
        is_number = pa.types.is_integer(column.type) or _is_float(column)
        if is_number:
            _check_range(name, units[name].to_numpy(), ranges.get(name, FREE_OR_NONE))
    return units


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Return the decoded size of a column of text in bytes, without decoding it."""
    n_bytes = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            # The dictionary holds a text once, but decoding repeats it for each of its
            # rows.
            text_lengths = pc.binary_length(chunk.dictionary)
            row_lengths = pc.take(text_lengths, chunk.indices)
        else:
            text_lengths = pc.binary_length(chunk)
            row_lengths = text_lengths

        longest = pc.max(text_lengths).as_py() or 0
        if longest > LONGEST_TEXT:
            raise _UnfitError("holds a text that is no name")
        n_bytes += pc.sum(pc.cast(row_lengths, pa.int64())).as_py() or 0
    return n_bytes


def _decoded(chunk: pa.Array) -> pa.Array:
    """Return a column of text without its dictionary."""
    if pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    return chunk.cast(pa.large_string())


def _is_float(column: pa.ChunkedArray) -> bool:
    """Return whether a column has numbers with a fraction."""
    return bool(pa.types.is_floating(column.type))


def _check_type(name: str, column: pa.ChunkedArray, wanted: Range | None) -> None:
    """Refuse a column of another type, or with gaps where it must have none.

    Parameters
    ----------
    wanted
        ``None``: the column may be of any type that evidence has.
    """
    stored_type = column.type
    is_whole = bool(pa.types.is_integer(stored_type))
    is_number = is_whole or _is_float(column)
    # By the kind of a Range: whether the stored type is of it.
    fits_kind = {
        "text": _is_text(stored_type),
        "flag": bool(pa.types.is_boolean(stored_type)),
        "whole": is_whole,
        "number": is_number,
    }

    # A null is a gap, which only numbers can have: pandas reads it as NaN.
    if wanted is None:
        is_fit = any(fits_kind.values())
        may_have_gaps = is_number
    else:
        is_fit = fits_kind[wanted.kind]
        may_have_gaps = is_number and wanted.has_gaps
    if not is_fit:
        raise _UnfitError(f"holds another type as {name}")
    if column.null_count and not may_have_gaps:
        raise _UnfitError(f"lacks values of {name}")


def _check_range(name: str, values: np.ndarray, wanted: Range) -> None:
    """Refuse values, shape ``(units,)``, that are out of their range."""
    if fault := wanted.fault(values):
        raise _UnfitError(f"{fault}: {name}")


def _scores(
    file: pq.ParquetFile, about: _About, layout: EvidenceLayout | None
) -> Iterator[CheckpointScores]:
    """Yield the scores of each checkpoint by name, shape ``(units,)`` each.

    A score that the layout does not name has no range and may be infinite: it can come
    from a file of another attack.
    """
    ranges: Mapping[str, Range] = {}
    if layout is not None:
        ranges = {**layout.values, **layout.further_values}

    for checkpoint in about.checkpoints:
        # Reading per checkpoint keeps only its scores in memory.
        scores_by_name: dict[str, np.ndarray] = {}
        for name in about.values:
            column = file.read([f"{name}/{checkpoint}"]).column(0)
            if not _is_float(column):
                raise _UnfitError(f"holds another type as {name}")

            scores = column.to_numpy().astype(np.float64)
            if name in ranges:
                _check_range(name, scores, ranges[name])
            scores_by_name[name] = scores
        yield checkpoint, scores_by_name
