"""Read rows of Parquet and Arrow, with limits that are checked before decoding.

A small file may decode to very much: many rows may point to one long text of a
dictionary, and a compressed buffer may hold any number of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from spark_audit.data.arrow_batches import ARROW_SLICE_ROWS, rows_of_batches
from spark_audit.data.arrow_messages import ARROW_MAGIC, check_messages, open_messages
from spark_audit.data.data_files import check_decoded, reading
from spark_audit.data.parquet_process import parquet_batches
from spark_audit.files import open_regular
from spark_audit.json_values import Row

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET = b"PAR1"
"""The magic bytes at the beginning of a Parquet file."""


def arrow_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of Parquet, of an Arrow file, or of a stream from `datasets`.

    Raises
    ------
    InputError
        If the file is neither format, or decodes to too much for its size.
    """
    return rows_of_batches(_batches(path), str(path), size=path.stat().st_size)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file, each checked before it is decoded."""
    import pyarrow as pa

    with reading(path):
        file = open_regular(path, follow=True)
    with file:
        size = path.stat().st_size
        if file.peek(len(PARQUET)).startswith(PARQUET):
            batches = _parquet_batches(file, size, str(path))
        else:
            is_file = file.peek(len(ARROW_MAGIC)).startswith(ARROW_MAGIC)
            buffer = pa.memory_map(str(path)).read_buffer()
            check_messages(buffer, size=size, place=str(path), is_file=is_file)
            batches = iter(open_messages(buffer, is_file=is_file))

        # Distinct rows take more than a byte each, so more rows than bytes are an
        # attack.
        n_rows = 0
        for batch in batches:
            n_rows += batch.num_rows
            if n_rows > size:
                raise ValueError("it has more rows than bytes")
            yield batch


def _parquet_batches(
    file: IO[bytes], size: int, place: str
) -> Iterator[pa.RecordBatch]:
    """Return the batches of a Parquet file if its index stays within the limits.

    Parameters
    ----------
    size
        Bytes of the file.

    Raises
    ------
    InputError
        If a column decodes to too much for the file's size.
    ValueError
        If the file has more rows than bytes.
    """
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(file).metadata
    if metadata.num_rows > size:
        raise ValueError("it has more rows than bytes")

    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j in range(group.num_columns):
            n_bytes = group.column(j).total_uncompressed_size
            check_decoded(n_bytes, size=size, place=place)

    # Texts that a file stores once for many rows are kept once in memory, too.
    text_columns = []
    for i in range(len(metadata.schema)):
        column = metadata.schema.column(i)
        if column.physical_type == "BYTE_ARRAY":
            text_columns.append(column.path)
    return parquet_batches(
        file, size=size, place=place, texts=text_columns, n_rows=ARROW_SLICE_ROWS
    )
