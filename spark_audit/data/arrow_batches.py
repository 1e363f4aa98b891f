"""Batches of Arrow as rows, with limits on what each decodes to."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.data.data_files import check_decoded
from spark_audit.errors import InputError, SparkError
from spark_audit.files import parse_json
from spark_audit.json_values import Row

if TYPE_CHECKING:
    import pyarrow as pa


CELL_BYTES = 1 << 24
"""The longest text of a cell that is read."""

SLICE_ROWS, SLICE_BYTES = 1024, 1 << 26
"""Rows that are made into Python objects at once, and bytes of them."""


def rows_of_batches(
    batches: Iterator[pa.RecordBatch], place: str, *, size: int | None = None
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


def _row_bytes(batch: pa.RecordBatch, place: str) -> np.ndarray:
    """Bytes of text in each row, shape ``(rows,)``, without making the text."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += _text_bytes(column, place)
    return total


def _text_bytes(array: pa.Array, place: str) -> np.ndarray:
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


def _bytes_of_lists(array: pa.Array, place: str) -> np.ndarray:
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


def _labels(schema: pa.Schema, place: str) -> dict[str, list[str]]:
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
