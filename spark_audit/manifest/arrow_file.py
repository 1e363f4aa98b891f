"""The file of many rows: records of a manifest's lists in Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from spark_audit import files
from spark_audit.data.arrow_messages import check_messages, open_messages
from spark_audit.json_values import JsonObject
from spark_audit.manifest.packed_lists import Records
from spark_audit.provenance import canonical_json

if TYPE_CHECKING:
    pass
from spark_audit.manifest.content import MANIFEST_PARTS

BATCH = pa.schema([("part", pa.string()), ("json", pa.binary())])
"""Records of one list as an Arrow file has them."""


def write_arrow(content: JsonObject, path: Path) -> None:
    """Write a manifest's content: records in rows, the rest as metadata of the schema.

    Raises
    ------
    OutputError
        If it cannot be written; a file that stood there before is as it was.
    """
    tables = {k: v for k, v in content.items() if isinstance(v, Records)}
    # A table without a record has no row that could name it.
    head = {k: [] if k in tables else v for k, v in content.items()}
    schema = BATCH.with_metadata({"manifest": canonical_json(head)})

    def write(file: IO[bytes]) -> None:
        with pa.ipc.new_file(file, schema) as writer:
            for name, table in tables.items():
                for chunk in table.json.chunks:
                    writer.write_batch(as_batch(name, chunk))

    files.write_atomically(path, write, mode=0o600)


def read_arrow(path: Path) -> Any:
    """The content of :func:`write_arrow`; records stay on disk.

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
    table = open_messages(buffer, is_file=True).read_all()
    table.validate(full=True)
    if not table.schema.equals(BATCH):
        raise KeyError
    content = files.parse_json(table.schema.metadata[b"manifest"], place=str(path))
    return {**content, **tables_of(table.to_batches())}


def as_batch(part: str, chunk: pa.Array) -> pa.RecordBatch:
    """Some records' JSON with the name of their list."""
    return pa.record_batch([pa.repeat(part, len(chunk)), chunk], schema=BATCH)


def tables_of(batches: Iterable[pa.RecordBatch]) -> dict[str, Records[Any]]:
    """The lists whose records stand in batches; another's name is a ``KeyError``."""
    chunks: dict[str, list[pa.Array]] = {}
    for batch in batches:
        chunks.setdefault(batch["part"][0].as_py(), []).append(batch["json"])
    return {
        part: Records(MANIFEST_PARTS[part], own, name=part)
        for part, own in chunks.items()
    }
