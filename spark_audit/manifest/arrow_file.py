"""The file of many rows: records of a manifest's lists in Arrow."""

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

BATCH = pa.schema([("part", pa.string()), ("json", pa.binary())])
"""Records of one list as an Arrow file has them."""


def write_arrow(content: JsonObject, path: Path) -> None:
    """Write a manifest's content: records in rows, the rest as metadata of the schema.

    Raises
    ------
    OutputError
        If it cannot be written; a file that stood there before is as it was.
    """
    packed_lists: dict[str, Records[Any]] = {}
    head: dict[str, object] = {}
    for name, value in content.items():
        if isinstance(value, Records):
            packed_lists[name] = value
            # A list without a record has no row that could name it.
            head[name] = []
        else:
            head[name] = value
    schema = BATCH.with_metadata({"manifest": canonical_json(head)})

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
        If the file is damaged, or another one.
    InputError
        If its metadata is no JSON, or it decodes to too much for its size.
    """
    buffer = pa.memory_map(str(path)).read_buffer()
    size = path.stat().st_size
    check_messages(buffer, size=size, place=str(path), is_file=True)

    # Somebody else may have made the file: offsets may lead anywhere.
    table = open_messages(buffer, is_file=True).read_all()
    table.validate(full=True)
    if not table.schema.equals(BATCH):
        raise KeyError
    content = files.parse_json(table.schema.metadata[b"manifest"], place=str(path))
    return {**content, **tables_of(table.to_batches())}


def as_batch(part: str, chunk: pa.Array) -> pa.RecordBatch:
    """Return the JSON of some records, each beside the name of their list."""
    return pa.record_batch([pa.repeat(part, len(chunk)), chunk], schema=BATCH)


def tables_of(batches: Iterable[pa.RecordBatch]) -> dict[str, Records[Any]]:
    """Return the lists whose records stand in batches, by their names.

    Raises
    ------
    KeyError
        If a manifest has no list of a name.
    """
    # A batch holds records of one list alone: its first row names it.
    chunks_by_list: dict[str, list[pa.Array]] = {}
    for batch in batches:
        name = batch["part"][0].as_py()
        chunks_by_list.setdefault(name, []).append(batch["json"])
    return {
        name: Records(MANIFEST_PARTS[name], chunks, name=name)
        for name, chunks in chunks_by_list.items()
    }
