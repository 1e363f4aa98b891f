"""Small files that decode to large ones are refused, and usual ones are read."""

import gzip
import json
import subprocess
import sys
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from imported_rows import LABELS, TABLE, TEXTS, imported, refusal, zstd

from spark_audit.data import data_files

MAX_PEAK = 400
"""Megabytes that it may take to refuse a file that decodes to more."""


def peak_of(path, tmp_path):
    """Megabytes that an import takes beyond those of its modules."""
    code = (
        "import resource, sys\n"
        "from spark_audit.data.importers import import_rows\n"
        "import pyarrow.parquet, pandas\n"
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "before = most()\n"
        "try:\n"
        "    import_rows(sys.argv[1], sys.argv[2], task='t', split='train')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error, file=sys.stderr)\n"
        "print(most() - before)\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "o.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not (tmp_path / "o.jsonl").exists()
    assert "InputError" in done.stderr, done.stderr
    return float(done.stdout)


def test_parquet_with_one_long_text_for_many_rows_is_refused(tmp_path):
    codes = pa.array(np.zeros(200, np.int32))
    for n_letters in (20_000_000, 10_000_000):
        text = pa.DictionaryArray.from_arrays(codes, ["x" * n_letters])
        path = tmp_path / "x.parquet"
        pq.write_table(
            pa.table({"prompt": text, "response": text}), path, compression="zstd"
        )
        assert path.stat().st_size < 10_000
        assert peak_of(path, tmp_path) < 500


def varint(number, n_bytes=0):
    """A whole number as Thrift writes it, in at least so many bytes."""
    number *= 2
    groups = []
    while number or len(groups) < max(n_bytes, 1):
        groups.append(number & 127 | 128)
        number >>= 7
    groups[-1] &= 127
    return bytes(groups)


def test_parquet_whose_index_says_less_than_its_pages_is_refused(tmp_path):
    path = tmp_path / "x.parquet"
    n_rows = 30
    text = pa.array(["x" * 15_000_000] * n_rows, pa.large_string())
    table = pa.table({"prompt": text, "response": ["a"] * n_rows})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    del table, text
    raw = path.read_bytes()
    index_start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    index = raw[index_start:]
    group = pq.ParquetFile(path).metadata.row_group(0)
    sizes = [group.column(0).total_uncompressed_size, group.total_byte_size]
    for size in sizes:
        assert size > 1_000_000 * MAX_PEAK
        true = varint(size)
        assert true in index
        index = index.replace(true, varint(1000, len(true)))
    path.write_bytes(raw[:index_start] + index)
    group = pq.ParquetFile(path).metadata.row_group(0)
    assert group.column(0).total_uncompressed_size == 1000
    assert peak_of(path, tmp_path) < MAX_PEAK
    assert "decodes to more than" in refusal(path)


@pytest.mark.parametrize("words", ["std::bad_alloc", "Cannot allocate memory"])
def test_memory_that_ends_inside_the_decoder_is_told(words, tmp_path, monkeypatch):
    """The decoder's process finds a pyarrow whose reading fails in these words."""
    fake = tmp_path / "home" / "pyarrow"
    fake.mkdir(parents=True)
    pool = "def system_memory_pool(): pass\ndef set_memory_pool(pool): pass\n"
    (fake / "__init__.py").write_text(pool)
    reader = f"def ParquetFile(*_, **__):\n    raise OSError({words!r})\n"
    (fake / "parquet.py").write_text(reader)
    path = tmp_path / "rows.parquet"
    python = tmp_path / "python"
    TABLE.to_parquet(path)
    # Without -I the folder's pyarrow comes first.
    python.write_text(
        f'#!/bin/sh\nshift\nPYTHONPATH={fake.parent} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert "decodes to more than" in refusal(path)


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_compressed_arrow_is_measured_before_it_is_decoded(make, tmp_path):
    text = pa.array(["x" * 15_000_000] * 20, pa.large_string())
    table = pa.table({"prompt": text, "response": text})
    path = tmp_path / "x.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    assert path.stat().st_size < 200_000
    del table, text
    assert peak_of(path, tmp_path) < 200
    assert "decodes to more than" in refusal(path)


def test_compressed_arrow_of_a_usual_size_is_read(tmp_path):
    table = pa.table({"text": TEXTS * 500, "label": LABELS * 500})
    for compression in ("zstd", "lz4"):
        path = tmp_path / "x.arrow"
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
            writer.write_table(table)
        assert len(imported(path)[0]) == 2000


@pytest.mark.parametrize("compress", [partial(gzip.compress, compresslevel=1), zstd])
def test_a_compressed_file_that_grows_is_refused(compress, tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "FREE_BYTES", 10_000_000)
    line = json.dumps({"text": "a" * 10_000, "label": "b"}).encode() + b"\n"
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(compress(line * 1_100))
    assert "decodes to more than" in refusal(path)
