"""The manifest as a folder, for many rows: Parquet files and a small JSON head.

``manifest.json`` holds all but the long lists, and which files hold those: of each its
rows and the SHA-256 of its bytes. The digest is that of the JSON form. The head is
written last, and files carry the digest in their names: what was interrupted leaves an
earlier manifest as it was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from spark_audit.errors import InputError, OutputError
from spark_audit.files import (
    cannot_write,
    check_links,
    open_regular,
    parse_json,
    read_regular,
    write_atomically,
)
from spark_audit.manifest.packed_lists import Packed
from spark_audit.provenance import canonical_json
from spark_audit.terminal.suggestions import instead

HEAD = "manifest.json"
FILE_ROWS = 50_000
"""Rows of a file, at most."""
GROUP_ROWS = 2_000
"""Rows that are in memory at once as records."""
WHOLE = "as_json"
"""Column of what the others do not hold, such as fields of other programs."""
_OURS = re.compile(r"[a-z_.]+-[0-9a-f]{12}-[0-9]{5}\.parquet")
_FIX = "build it again, or get the original folder"
_LEAVES = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class _Listed(BaseModel):
    """A file of a part, as the head names it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    file: str
    rows: int
    sha256: str


def write_folder(
    head: Mapping[str, Any], lists: Mapping[str, Packed[Any]], folder: Path
) -> None:
    """Write a manifest's parts, then its head.

    Parameters
    ----------
    head, lists
        What the manifest holds, and its long lists by their paths.

    Raises
    ------
    InputError
        If there is something else in the folder.
    OutputError
        If it cannot be written; a manifest that stood there before is as it was.
    """
    check_free(folder)
    listed: dict[str, list[dict[str, Any]]] = {}
    for name, parts in lists.items():
        stem = f"{name}-{head['digest'][:12]}"
        records = chain.from_iterable(parts.records())
        for k in range(-(-len(parts) // FILE_ROWS)):
            path = folder / f"{stem}-{k:05d}.parquet"
            own = islice(records, FILE_ROWS)
            told = _write_part(path, own, parts.kind)
            listed.setdefault(name, []).append(told)
    data = canonical_json({**head, "parts": listed}) + b"\n"
    write_atomically(folder / HEAD, lambda file: file.write(data), mode=0o600)
    held = {one["file"] for files in listed.values() for one in files}
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and path.name not in held:
            path.unlink(missing_ok=True)


def check_free(folder: Path) -> None:
    """Refuse a folder in which other things than a manifest stand.

    Raises
    ------
    InputError, OutputError
        If one does, or what stands there is no folder.
    """
    try:
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
    except OSError as error:
        raise cannot_write(folder, error) from error
    ours = (n for n in names if n != HEAD and not n.startswith("."))
    if other := sorted(n for n in ours if not _OURS.fullmatch(n)):
        raise InputError(
            f"holds something else than a manifest ({other[0]})",
            where=str(folder),
            fix="give a new folder, or a file NAME.json",
        )
    check_links(folder, "*")


def read_head(folder: Path) -> Any:
    """The head of a manifest's folder, as it stands there.

    Raises
    ------
    InputError, OutputError
        If there is none, or it cannot be read.
    """
    path = folder / HEAD
    try:
        raw = read_regular(path)
    except FileNotFoundError as error:
        begun = any(_OURS.fullmatch(path.name) for path in folder.iterdir())
        if begun:
            raise InputError(
                f"is no whole manifest: its {HEAD} is missing",
                where=str(folder),
                fix="run the same `spark-audit manifest build` again: it resumes",
            ) from error
        raise OutputError(
            f"is a folder without a {HEAD}",
            where=str(folder),
            fix=instead(folder, wanted="manifest"),
        ) from error
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise OutputError(what, where=str(path), fix="check the path") from error
    return parse_json(raw, place=str(path))


def read_lists(
    head: dict[str, Any], folder: Path, kinds: Mapping[str, type[Any]]
) -> dict[str, Packed[Any]]:
    """The lists that a head names, by their paths; ``parts`` is taken out of it.

    Raises
    ------
    InputError, OutputError
        Naming the file that is missing, was changed, is not whole or no part of ours.
    """
    listed = head.pop("parts", None)
    if not isinstance(listed, dict) or not listed.keys() <= kinds.keys():
        where, fix = str(folder / HEAD), _FIX
        raise InputError("does not name the parts of a manifest", where=where, fix=fix)
    found = {}
    for name, kind in kinds.items():
        records = _records(listed.get(name, []), folder, kind)
        found[name] = Packed.of(kind, records, name=name)
    return found


def _records(listed: Any, folder: Path, kind: type[Any]) -> Iterator[Any]:
    try:
        files = [_Listed.model_validate(one) for one in listed]
    except (ValidationError, TypeError) as error:
        where = str(folder / HEAD)
        what = "does not name the files of a part as it must"
        raise InputError(what, where=where, fix=_FIX) from error
    for one in files:
        path = folder / one.file
        if not _OURS.fullmatch(one.file):
            where, what = str(folder / HEAD), "names a file that is none of a manifest"
            raise InputError(what, where=where, fix=_FIX)
        try:
            with open_regular(path) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != one.sha256:
                    what = "was changed, or is not whole: its checksum is another"
                    raise InputError(what, where=str(path), fix=_FIX)
                file.seek(0)
                yield from _read_part(file, one.rows, kind)
        except FileNotFoundError as error:
            what = "is missing: the manifest is not whole"
            raise InputError(what, where=str(path), fix=_FIX) from error
        except (pa.ArrowException, KeyError) as error:
            what = "is no part of a manifest"
            raise InputError(what, where=str(path), fix=_FIX) from error
        except OSError as error:
            what = f"cannot be read ({error.strerror or error})"
            raise OutputError(what, where=str(path), fix=_FIX) from error


# --- one file -------------------------------------------------------------------------


def _write_part(path: Path, records: Iterator[Any], kind: type[Any]) -> dict[str, Any]:
    """Write records as a file; how the head names it."""
    schema, rows = _schema(kind), 0

    def write(file: Any) -> None:
        nonlocal rows
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            while part := list(islice(records, GROUP_ROWS)):
                writer.write_table(_table(part, kind, schema))
                rows += len(part)

    write_atomically(path, write, mode=0o600)
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": path.name, "rows": rows, "sha256": digest}


def _table(records: Sequence[Any], kind: type[Any], schema: pa.Schema) -> pa.Table:
    """Records as a table; those that its columns do not hold as JSON beside it."""
    rows = [{"id": one} for one in records] if kind is str else list(records)
    table = pa.Table.from_pylist(rows, schema)
    for i, back in enumerate(_back(table, kind)):
        if (text := canonical_json(records[i])) != canonical_json(back):
            rows[i] = {**rows[i], WHOLE: text.decode()}
    return pa.Table.from_pylist(rows, schema)


def _read_part(file: Any, rows: int, kind: type[Any]) -> Iterator[Any]:
    schema = _schema(kind)
    with pq.ParquetFile(file) as held:
        if held.schema_arrow.remove_metadata() != schema or rows < 0:
            raise KeyError
        for batch in held.iter_batches(GROUP_ROWS):
            rows -= len(batch)
            yield from _back(batch, kind)
    if rows:
        raise KeyError


def _back(table: Any, kind: type[Any]) -> Iterator[Any]:
    """The records that a table was made of."""
    names = [n for n in table.schema.names if n != WHOLE]
    columns = [table.column(name).to_pylist() for name in names]
    # A field with a default is not written where it is that.
    absent = () if kind is str else _absent(kind)
    texts = table.column(WHOLE).to_pylist()
    for text, *values in zip(texts, *columns, strict=True):
        if text is not None:
            yield json.loads(text)
        elif kind is str:
            yield values[0]
        else:
            row = dict(zip(names, values, strict=True))
            for name in absent:
                if row[name] is None:
                    del row[name]
            yield row


def _absent(kind: type[BaseModel]) -> tuple[str, ...]:
    fields = kind.model_fields.items()
    return tuple(name for name, field in fields if not field.is_required())


def _schema(kind: type[Any]) -> pa.Schema:
    struct = pa.struct([("id", pa.string())]) if kind is str else _type(kind)
    return pa.schema([*struct, (WHOLE, pa.string())])


def _type(kind: Any) -> pa.DataType:
    """Arrow's type of what a field of a part may hold."""
    if kind in _LEAVES:
        return _LEAVES[kind]
    origin, given = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _type(next(one for one in given if one is not type(None)))
    if origin is Literal:
        return pa.string()
    if origin in (list, tuple):
        return pa.list_(_type(given[0]))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        return pa.struct([(name, _type(field.annotation)) for name, field in fields])
    return _type(given[0])  # Annotated
