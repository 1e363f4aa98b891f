"""Write and read manifests as Arrow files, for data with many rows.

Each row of the file is the JSON of one record of a long list (``pairs``, ...), with the
list's name. All other fields are JSON in the metadata of the file's schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from spark_audit import files
from spark_audit.data.arrow_messages import check_messages, open_messages
from spark_audit.json_values import JsonObject
from spark_audit.manifest.content import MANIFEST_PARTS
from spark_audit.manifest.packed_lists import Records
from spark_audit.provenance import canonical_json

MANIFEST_BATCH = pa.schema([("part", pa.string()), ("json", pa.binary())])
"""Schema of an Arrow file: the JSON of a record, and the name of its list."""


def write_arrow(content: JsonObject, path: Path) -> None:
    """Write a manifest's content: records as rows, the rest as metadata of the schema.

    Raises
    ------
    OutputError
        If the file cannot be written; an earlier file stays unchanged.
    """
    packed_lists: dict[str, Records[Any]] = {}
    head: dict[str, object] = {}
    for name, value in content.items():
        if isinstance(value, Records):
            packed_lists[name] = value
            # An empty list has no row that names it, so the metadata does.
            head[name] = []
        else:
            head[name] = value
    schema = MANIFEST_BATCH.with_metadata({"manifest": canonical_json(head)})

    def write(file: IO[bytes]) -> None:
        with pa.ipc.new_file(file, schema) as writer:
            for name, records in packed_lists.items():
                for chunk in records.json.chunks:
                    writer.write_batch(as_batch(name, chunk))

    files.write_atomically(path, write, mode=0o600)


def read_arrow(path: Path) -> JsonObject:
    """Return the content that :func:`write_arrow` wrote; records stay on disk.

    Raises
    ------
    KeyError, pyarrow.ArrowException
        If the file is damaged, or not a manifest.
    InputError
        If its metadata is not JSON, or if it decodes to too much for its size.
    """
    buffer = pa.memory_map(str(path)).read_buffer()
    size = path.stat().st_size
    check_messages(buffer, size=size, place=str(path), is_file=True)

    # The file may come from anybody, so its offsets may lead anywhere.
    table = open_messages(buffer, is_file=True).read_all()
    table.validate(full=True)
    # The caller turns any such error into one line that names the file.
    if not table.schema.equals(MANIFEST_BATCH):
        raise KeyError
    content = files.parse_json(table.schema.metadata[b"manifest"], place=str(path))
    return {**content, **lists_of_batches(table.to_batches())}


def as_batch(list_name: str, chunk: pa.Array) -> pa.RecordBatch:
    """Return the JSON of some records, with the name of their list in each row."""
    return pa.record_batch(
        [pa.repeat(list_name, len(chunk)), chunk], schema=MANIFEST_BATCH
    )


def lists_of_batches(batches: Iterable[pa.RecordBatch]) -> dict[str, Records[Any]]:
    """Return the lists whose records are in the batches, by name.

    Raises
    ------
    KeyError
        If a manifest has no list with a name in the batches.
    """
    # All records of a batch belong to one list, so its first row names it.
    chunks_by_list: dict[str, list[pa.Array]] = {}
    for batch in batches:
        name = batch["part"][0].as_py()
        chunks_by_list.setdefault(name, []).append(batch["json"])
    return {
        name: Records(MANIFEST_PARTS[name], chunks, name=name)
        for name, chunks in chunks_by_list.items()
    }
