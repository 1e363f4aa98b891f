"""Parquet, decoded in a process of its own that may take a limited memory.

A page's head says what the page decodes to, and the decoder believes it. The index at
a file's end, which can be checked before, may say less; some encodings grow on top.
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
"""What pyarrow takes of a process's addresses before it decodes anything."""
_NO_MEMORY = 3
"""Exit code of a process that met its limit."""

# Isolated (-I): what lies in the working directory or is named by variables is not run.
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
    # The decoder is C++: what it cannot allocate comes as an OSError in words.
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
        The open file; its descriptor is read from the start.
    size
        Bytes of the file that bound what it decodes to.
    texts
        Columns of text, which are held as dictionaries.
    n_rows
        Rows of a batch at most.

    Raises
    ------
    InputError
        If it decodes to too much for its size.
    ValueError, pyarrow.ArrowException
        If it is no Parquet.
    """
    import pyarrow as pa

    process = _start_decoder(file, size=size, texts=texts, n_rows=n_rows)
    try:
        yield from pa.ipc.open_stream(process.stdout)
        exit_code = process.wait()
    except pa.ArrowException:
        # A process that ended writes half a stream: its exit code says why.
        exit_code = process.wait()
        if not exit_code:
            raise
    finally:
        # Also where the reader of the rows stops before the last of them.
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    if exit_code == _NO_MEMORY:
        # The limit is what the file may decode to: it decodes to more.
        check_decoded(most_decoded(size) + 1, size=size, place=place)
    if exit_code:
        raise ValueError("its pages cannot be decoded")


def _start_decoder(
    file: IO[bytes], *, size: int, texts: Sequence[str], n_rows: int
) -> subprocess.Popen[bytes]:
    """Start the process that decodes a file and writes it as a stream of Arrow."""
    package = find_spec("pyarrow")
    assert package is not None
    assert package.origin is not None
    home = str(Path(package.origin).parents[1])

    file.seek(0)
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-c",
            _PARQUET_PROGRAM,
            home,
            str(most_decoded(size) + LIBRARY_BYTES),
            str(n_rows),
            *texts,
        ],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
