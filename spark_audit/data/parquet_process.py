"""Decode Parquet in a separate process with limited memory.

The head of each page gives the page's decoded size, and the decoder trusts it. The
index at the end of the file can be checked in advance, but may give smaller sizes. Some
encodings also expand further.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING

from spark_audit.data.data_files import check_decoded, most_decoded

if TYPE_CHECKING:
    import pyarrow as pa

LIBRARY_BYTES = 1 << 30
"""Bytes of address space that pyarrow needs before it decodes anything."""
_NO_MEMORY = 3
"""Exit code of a process that reached its memory limit. The program below writes it as
a number, and 4 for any other failure."""

# Isolated (-I): neither the working directory nor environment variables add code.
_PARQUET_PROGRAM = """
import resource, sys
sys.path.append(sys.argv[1])
import pyarrow as pa
import pyarrow.parquet as pq
pa.set_memory_pool(pa.system_memory_pool())
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
try:
    texts = sys.argv[4:]
    file = pq.ParquetFile(sys.stdin.buffer, read_dictionary=texts, pre_buffer=False)
    batches = file.iter_batches(int(sys.argv[3]), use_threads=False)
    with pa.ipc.new_stream(sys.stdout.buffer, file.schema_arrow) as stream:
        for batch in batches:
            stream.write_batch(batch)
except MemoryError:
    sys.exit(3)
except Exception as error:
    # The decoder is C++: only the words of an error say that memory was short.
    words = str(error).lower()
    no_memory = "bad_alloc" in words or "allocate memory" in words
    sys.exit(3 if no_memory or "out of memory" in words else 4)
"""


def parquet_batches(
    file: IO[bytes], *, size: int, place: str, texts: Sequence[str], n_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield a file's record batches.

    Parameters
    ----------
    file
        The open file. It is read from its start, through its descriptor.
    size
        Bytes of the file, which limit what it decodes to.
    texts
        Text columns, which are kept as dictionaries.
    n_rows
        Most rows of a batch.

    Raises
    ------
    InputError
        If the file decodes to too much for its size.
    ValueError, pyarrow.ArrowException
        If the file is not Parquet.
    """
    import pyarrow as pa

    process = _start_decoder(file, size=size, texts=texts, n_rows=n_rows)
    try:
        yield from pa.ipc.open_stream(process.stdout)
        exit_code = process.wait()
    except pa.ArrowException:
        # A process that failed leaves half a stream, so its exit code gives the reason.
        exit_code = process.wait()
        if not exit_code:
            raise
    finally:
        # This also runs if the consumer stops before the last row.
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    if exit_code == _NO_MEMORY:
        # The memory limit is the most that the file may decode to, so it decodes to
        # more.
        check_decoded(most_decoded(size) + 1, size=size, place=place)
    if exit_code:
        raise ValueError("its pages cannot be decoded")


def _start_decoder(
    file: IO[bytes], *, size: int, texts: Sequence[str], n_rows: int
) -> subprocess.Popen[bytes]:
    """Start a process that decodes a file and writes it as an Arrow stream."""
    package = find_spec("pyarrow")
    assert package is not None
    assert package.origin is not None
    site_packages = str(Path(package.origin).parents[1])

    file.seek(0)
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-c",
            _PARQUET_PROGRAM,
            site_packages,
            str(most_decoded(size) + LIBRARY_BYTES),
            str(n_rows),
            *texts,
        ],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
