"""Turn Arrow batches into rows, with limits on what each batch decodes to.

The bytes of every row are known from Arrow's offsets before any text becomes a Python
object (:func:`_row_bytes`). So a column type that holds text needs a case in
:func:`_text_bytes`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.data.data_files import check_decoded
from spark_audit.errors import InputError, SparkError, memory_failure
from spark_audit.files import parse_json
from spark_audit.json_values import Row

if TYPE_CHECKING:
    import pyarrow as pa


CELL_BYTES = 1 << 24
"""Bytes of the longest text of a cell that is read."""

ARROW_SLICE_ROWS = 1024
"""Rows that are made into Python objects at once."""

ARROW_SLICE_BYTES = 1 << 26
"""Bytes of text that are made into Python objects at once."""

_BYTES_OF_NUMBER = 8
"""Bytes that any value counts that is not text, such as a number or a date."""


def rows_of_batches(
    batches: Iterator[pa.RecordBatch], place: str, *, size: int | None = None
) -> Iterator[tuple[str, Row]]:
    """Yield the rows of Arrow batches; numbered labels of `datasets` become names.

    Values are not decoded further: to decode an image or a sound would open the file or
    the address that the row names.

    Parameters
    ----------
    size
        Bytes of the file, which limit what it decodes to; ``None``: no limit.
    """
    import pyarrow as pa

    n_rows_read = 0
    n_decoded = 0  # bytes
    try:
        for batch in batches:
            batch.validate(full=True)
            label_names = _label_names(batch.schema, place)
            row_bytes = _row_bytes(batch, place)  # (rows,)
            n_decoded += int(row_bytes.sum())
            if size is not None:
                check_decoded(n_decoded, size=size, place=place)

            for first, n_rows in _slices(row_bytes):
                for row in batch.slice(first, n_rows).to_pylist():
                    _name_labels(row, label_names)
                    n_rows_read += 1
                    yield f"{place}, row {n_rows_read}", row
    except SparkError:
        raise
    # The causes are text that is not UTF-8, impossible dates, and labels without a
    # name.
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        OverflowError,
        LookupError,
        struct.error,
    ) as error:
        raise InputError(
            "is not readable as Parquet or Arrow",
            where=place,
            fix="copy or export it again",
        ) from memory_failure(error)


def _slices(row_bytes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield slices of rows that fit in memory, as (first row, number of rows).

    Parameters
    ----------
    row_bytes
        Bytes of each row, shape ``(rows,)``. A row that is too large becomes a slice of
        its own.
    """
    # A batch may have any number of rows: all as Python objects would fill the memory.
    first = 0
    n_bytes = 0
    for i, length in enumerate(row_bytes.tolist()):
        is_full = i - first == ARROW_SLICE_ROWS or n_bytes + length > ARROW_SLICE_BYTES
        if i > first and is_full:
            yield first, i - first
            first = i
            n_bytes = 0
        n_bytes += length

    n_rows = len(row_bytes)
    if first < n_rows:
        yield first, n_rows - first


def _row_bytes(batch: pa.RecordBatch, place: str) -> np.ndarray:
    """Return the bytes of text in each row, shape ``(rows,)``, without decoding it."""
    total = np.zeros(batch.num_rows, np.int64)  # (rows,)
    for column in batch.columns:
        total += _text_bytes(column, place)
    return total


def _text_bytes(array: pa.Array, place: str) -> np.ndarray:
    """Return bytes of text in each value of a column, nested ones included.

    Returns
    -------
    np.ndarray
        Shape ``(values,)``, int64.

    Raises
    ------
    InputError
        If a text is longer than the limit.
    ValueError
        If the column has a type in which no tool writes data.
    """
    import pyarrow as pa

    data_type = array.type
    if isinstance(array, pa.ExtensionArray):
        return _text_bytes(array.storage, place)
    if pa.types.is_dictionary(data_type):
        return _bytes_of_dictionary(array, place)
    if pa.types.is_struct(data_type):
        total = np.zeros(len(array), np.int64)  # (values,)
        for field in array.flatten():
            total = total + _text_bytes(field, place)
        return total
    if _is_list(data_type):
        return _bytes_of_lists(array, place)
    if _is_text(data_type):
        return _bytes_of_texts(array, place)
    if data_type.num_fields:
        # Unions, list views and run-end encoded values: no tool writes them.
        raise ValueError(f"a column of {data_type}")
    return np.full(len(array), _BYTES_OF_NUMBER, np.int64)


def _is_list(data_type: pa.DataType) -> bool:
    """Return whether values are lists or maps."""
    import pyarrow as pa

    return bool(
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_map(data_type)
        or pa.types.is_fixed_size_list(data_type)
    )


def _is_text(data_type: pa.DataType) -> bool:
    """Return whether values are texts or bytes."""
    import pyarrow as pa

    return bool(
        data_type in (pa.string_view(), pa.binary_view())
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
    )


def _bytes_of_texts(array: pa.Array, place: str) -> np.ndarray:
    """Return the bytes of each text, shape ``(values,)``; refuse one that is too long.

    A null counts 0 bytes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type in (pa.string_view(), pa.binary_view()):
        # Arrow has no function for the length of a view. The first of the view's four
        # 32-bit numbers is its length.
        views = np.frombuffer(array.buffers()[1], np.int32)[0::4]
        n_bytes = views[array.offset : array.offset + len(array)].astype(np.int64)
    else:
        lengths = pc.fill_null(pc.binary_length(array), 0).cast(pa.int64())
        n_bytes = lengths.to_numpy(zero_copy_only=False)

    if len(n_bytes) and int(n_bytes.max()) > CELL_BYTES:
        raise InputError(
            f"holds a text of more than {CELL_BYTES:,} bytes",
            where=place,
            fix="leave the row out",
        )
    return np.asarray(n_bytes)


def _bytes_of_dictionary(array: pa.Array, place: str) -> np.ndarray:
    """Return the bytes of the entry that each value points to, shape ``(values,)``.

    Many rows may point to one long text: such a column is small only in the file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    bytes_of_entry = _text_bytes(array.dictionary, place)
    entries = pc.fill_null(array.indices.cast(pa.int64()), -1).to_numpy()
    # A null has entry -1: the 0 that is appended to the entries.
    return np.asarray(np.append(bytes_of_entry, 0)[entries])


def _bytes_of_lists(array: pa.Array, place: str) -> np.ndarray:
    """Return the bytes of text in each list or map, shape ``(values,)``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_map(array.type):
        keys = pa.ListArray.from_arrays(array.offsets, array.keys)
        items = pa.ListArray.from_arrays(array.offsets, array.items)
        n_bytes = _bytes_of_lists(keys, place) + _bytes_of_lists(items, place)
        return np.asarray(n_bytes)

    item_bytes = _text_bytes(array.flatten(), place)  # (items of all lists,)
    list_of_item = pc.list_parent_indices(array).to_numpy(zero_copy_only=False)
    n_bytes = np.bincount(list_of_item, item_bytes, minlength=len(array))
    return np.asarray(n_bytes, np.int64)


def _label_names(schema: pa.Schema, place: str) -> dict[str, list[str]]:
    """Return the label names that `datasets` recorded for numbered columns.

    Returns
    -------
    dict
        Column -> the name of label 0, 1, ...
    """
    import pyarrow as pa

    label_names: dict[str, list[str]] = {}
    datasets_metadata = (schema.metadata or {}).get(b"huggingface", b"{}")
    match parse_json(datasets_metadata, place=place):
        case {"info": {"features": dict(features)}}:
            pass
        case _:
            return label_names

    for column, feature in features.items():
        index = schema.get_field_index(column)  # -1: none, or several
        if index < 0 or not pa.types.is_integer(schema.field(index).type):
            continue
        match feature:
            case {"_type": "ClassLabel", "names": [*names]} if all(
                isinstance(name, str) for name in names
            ):
                label_names[column] = names
    return label_names


def _name_labels(row: Row, label_names: dict[str, list[str]]) -> None:
    """Replace the numbers of labels by their names, in the row itself.

    Raises
    ------
    LookupError
        If a label has no name.
    """
    for column, names in label_names.items():
        label = row[column]
        # -1 is how `datasets` writes a missing label.
        if isinstance(label, int) and label >= 0:
            row[column] = names[label]
        else:
            row[column] = None
