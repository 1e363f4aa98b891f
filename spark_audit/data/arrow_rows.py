"""Rows of Parquet and Arrow, with limits on what they decode to before it is decoded.

A dictionary may hold one long text that each of many rows points to, and a compressed
buffer any number of zeros: both are small files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from spark_audit.data.data_files import check_decoded, reading
from spark_audit.data.parquet_process import parquet_batches
from spark_audit.errors import InputError, SparkError
from spark_audit.files import open_regular, parse_json

Row: TypeAlias = dict[str, Any]
PARQUET, ARROW = b"PAR1", b"ARROW1"
CELL_BYTES = 1 << 24
"""The longest text of a cell that is read."""
SLICE_ROWS, SLICE_BYTES = 1024, 1 << 26
"""Rows that are made into Python objects at once, and bytes of them."""
_STREAM_START = 8
"""Where the messages of an Arrow file begin, behind its magic."""


def arrow_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield rows of Parquet, or of Arrow: a file, or a stream as `datasets` saves it.

    Raises
    ------
    InputError
        If it is neither, or decodes to too much for its size.
    """
    return rows_of_batches(_batches(path), str(path), size=path.stat().st_size)


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    with reading(path):
        file = open_regular(path, follow=True)
    with file:
        size = path.stat().st_size
        if file.peek(4).startswith(PARQUET):
            found = _parquet_batches(file, size, str(path))
        else:
            is_file = file.peek(6).startswith(ARROW)
            buffer = pa.memory_map(str(path)).read_buffer()
            check_messages(buffer, size=size, place=str(path), is_file=is_file)
            found = iter(open_messages(buffer, is_file=is_file))
        rows_left = size
        for batch in found:
            rows_left -= batch.num_rows
            if rows_left < 0:  # rows that differ take more than a byte
                raise ValueError("it has more rows than bytes")
            yield batch


def _parquet_batches(file: Any, size: int, place: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(file).metadata
    if metadata.num_rows > size:  # before a batch is decoded
        raise ValueError("it has more rows than bytes")

    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j in range(group.num_columns):
            n_bytes = group.column(j).total_uncompressed_size
            check_decoded(n_bytes, size=size, place=place)

    # Texts that a file holds once for many rows are held once here, too.
    texts = [
        metadata.schema.column(i).path
        for i in range(len(metadata.schema))
        if metadata.schema.column(i).physical_type == "BYTE_ARRAY"
    ]
    return parquet_batches(file, size=size, place=place, texts=texts, n_rows=SLICE_ROWS)


# --- messages of Arrow ----------------------------------------------------------------


def open_messages(buffer: Any, *, is_file: bool) -> Any:
    """Open the stream of messages in a buffer, which an Arrow file holds, too.

    The index at a file's end is not used: it may name other bytes than were checked.
    """
    import pyarrow as pa

    return pa.ipc.open_stream(buffer[_STREAM_START:] if is_file else buffer)


def check_messages(buffer: Any, *, size: int, place: str, is_file: bool) -> None:
    """Refuse Arrow whose compressed buffers decode to too much, before it is decoded.

    Raises
    ------
    InputError
        If they do.
    pyarrow.ArrowException, ValueError, struct.error
        If it is no Arrow.
    """
    import pyarrow as pa

    if is_file and buffer[-len(ARROW) :].to_pybytes() != ARROW:
        raise ValueError("its end is missing")
    n_bytes = 0
    stream = buffer[_STREAM_START:] if is_file else buffer
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if message.type in ("record batch", "dictionary"):
            n_bytes += _decoded_bytes(message)
            check_decoded(n_bytes, size=size, place=place)


def _decoded_bytes(message: Any) -> int:
    """Bytes that the buffers of a message decode to, by what is written before each."""
    head = _Flat(message.metadata.to_pybytes())
    batch = head.table(head.root(), 2)
    if message.type == "dictionary":
        batch = head.table(batch, 1)
    body = message.body
    if head.field(batch, 3) is None:  # not compressed
        return int(body.size)

    n_bytes = 0
    for offset, length in head.pairs(batch, 2):
        if length >= 8:
            (decoded,) = struct.unpack("<q", body[offset : offset + 8].to_pybytes())
            n_bytes += length if decoded == -1 else decoded
            if decoded < -1:
                raise ValueError("a buffer of negative length")
    return n_bytes


class _Flat:
    """The few of FlatBuffers' structures that a message's head needs."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def root(self) -> int:
        return self._number("<I", 0)

    def field(self, table: int, index: int) -> int | None:
        """Where a field of a table stands; ``None`` if it is left out."""
        vtable = table - self._number("<i", table)
        at = 4 + 2 * index
        if at >= self._number("<H", vtable):
            return None
        offset = self._number("<H", vtable + at)
        return table + offset if offset else None

    def table(self, table: int, index: int) -> int:
        """The table that a field refers to."""
        place = self.field(table, index)
        if place is None:
            raise ValueError("a message without a head")
        return place + self._number("<I", place)

    def pairs(self, table: int, index: int) -> Iterator[tuple[int, int]]:
        """The pairs of 64-bit numbers in the vector that a field refers to."""
        vector = self.table(table, index)
        for i in range(self._number("<I", vector)):
            at = vector + 4 + 16 * i
            yield self._number("<q", at), self._number("<q", at + 8)

    def _number(self, form: str, at: int) -> int:
        return int(struct.unpack_from(form, self._raw, at)[0])


# --- batches to rows ------------------------------------------------------------------


def rows_of_batches(
    batches: Iterator[Any], place: str, *, size: int | None = None
) -> Iterator[tuple[str, Row]]:
    """Yield rows of Arrow's batches; labels that `datasets` numbers are told by name.

    Nothing else of a column is decoded: an image or a sound would be opened where the
    row names it, be it a file of this machine or a host.

    Parameters
    ----------
    size
        Bytes of the file that bound what it decodes to; ``None``: no bound.
    """
    import pyarrow as pa

    number = n_decoded = 0
    try:
        for batch in batches:
            batch.validate(full=True)
            labels = _labels(batch.schema, place)
            lengths = _row_bytes(batch, place)
            n_decoded += int(lengths.sum())
            if size is not None:
                check_decoded(n_decoded, size=size, place=place)
            slices = (batch.slice(low, n) for low, n in _slices(lengths))
            for row in chain.from_iterable(part.to_pylist() for part in slices):
                for column, names in labels.items():
                    # -1 is how `datasets` writes a missing label.
                    known = row[column] is not None and row[column] >= 0
                    row[column] = names[row[column]] if known else None
                number += 1
                yield f"{place}, row {number}", row
    except SparkError:
        raise
    # Text that is no UTF-8, dates that no calendar has, labels without a name.
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        OverflowError,
        LookupError,
        struct.error,
    ) as error:
        raise InputError("is not readable as Parquet or Arrow", where=place) from error


def _slices(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    """First row and number of rows of slices that are not too large."""
    low = n_bytes = 0
    for i, length in enumerate(lengths.tolist()):
        if i > low and (i - low == SLICE_ROWS or n_bytes + length > SLICE_BYTES):
            yield low, i - low
            low, n_bytes = i, 0
        n_bytes += length
    if low < len(lengths):
        yield low, len(lengths) - low


def _row_bytes(batch: Any, place: str) -> np.ndarray:
    """Bytes of text in each row, shape ``(rows,)``, without making the text."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += _text_bytes(column, place)
    return total


def _text_bytes(array: Any, place: str) -> np.ndarray:
    """Bytes of text in each value of a column, nested ones included."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _text_bytes(array.storage, place)
    if pa.types.is_dictionary(kind):
        values = _text_bytes(array.dictionary, place)
        codes = pc.fill_null(array.indices.cast(pa.int64()), -1).to_numpy()
        return np.asarray(np.append(values, 0)[codes])
    if pa.types.is_struct(kind):
        fields = [_text_bytes(one, place) for one in array.flatten()]
        return np.asarray(sum(fields, np.zeros(len(array), np.int64)))
    if (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_map(kind)
        or pa.types.is_fixed_size_list(kind)
    ):
        return _bytes_of_lists(array, place)
    if kind in (pa.string_view(), pa.binary_view()):
        views = np.frombuffer(array.buffers()[1], np.int32)[0::4]
        lengths = views[array.offset : array.offset + len(array)].astype(np.int64)
    elif (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        found = pc.fill_null(pc.binary_length(array), 0).cast(pa.int64())
        lengths = found.to_numpy(zero_copy_only=False)
    elif kind.num_fields:
        # Values that several rows share, and unions: no tool writes data so.
        raise ValueError(f"a column of {kind}")
    else:
        return np.full(len(array), 8, np.int64)
    if len(lengths) and int(lengths.max()) > CELL_BYTES:
        what = f"holds a text of more than {CELL_BYTES:,} bytes"
        raise InputError(what, where=place, fix="leave the row out")
    return np.asarray(lengths)


def _bytes_of_lists(array: Any, place: str) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_map(array.type):
        offsets = array.offsets
        keys, items = (
            pa.ListArray.from_arrays(offsets, values)
            for values in (array.keys, array.items)
        )
        sizes = _bytes_of_lists(keys, place) + _bytes_of_lists(items, place)
        return np.asarray(sizes)
    values = array.flatten()
    parents = pc.list_parent_indices(array).to_numpy(zero_copy_only=False)
    n_bytes = np.bincount(parents, _text_bytes(values, place), minlength=len(array))
    return np.asarray(n_bytes, np.int64)


def _labels(schema: Any, place: str) -> dict[str, list[str]]:
    """Column of whole numbers -> what they stand for, as far as `datasets` wrote it."""
    import pyarrow as pa

    labels = {}
    told = (schema.metadata or {}).get(b"huggingface", b"{}")
    match parse_json(told, place=place):
        case {"info": {"features": dict(features)}}:
            for column, feature in features.items():
                index = schema.get_field_index(column)  # -1: none, or several
                match feature:
                    case {"_type": "ClassLabel", "names": [*names]} if (
                        index >= 0
                        and pa.types.is_integer(schema.field(index).type)
                        and all(isinstance(name, str) for name in names)
                    ):
                        labels[column] = names
    return labels
