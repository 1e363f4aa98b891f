"""Rows of JSON lines, CSV, Parquet, text, `datasets` and the hub, with their places."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from spark_audit.data.examples import (
    EMPTY_FIX,
    LINE_BYTES,
    Split,
    byte_lines,
    json_lines,
    read_bytes,
    reading,
)
from spark_audit.errors import InputError, SparkError
from spark_audit.files import open_regular, parse_json

Row: TypeAlias = dict[str, Any]
HUB = "hf:"
_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")


def split_of(name: str) -> Split | None:
    """The split that a file, a part or a cell is named for."""
    if name.lower().startswith("train"):
        return "train"
    return "test" if name.lower().startswith(("test", "eval", "dev", "val")) else None


def read_rows(source: str, format: str) -> Iterator[tuple[str, Split | None, Row]]:
    """Each row with its place, and the split that its file or part is named for."""
    if source.startswith(HUB):
        yield from _hub(source)
        return
    path = Path(source)
    files: list[tuple[Path, Split | None]] = [(path, None)]
    if path.is_dir():
        # What `datasets` saved has a folder for each part.
        saved = [*path.rglob("*.arrow")] if format in ("auto", "datasets") else []
        named = [
            (file, split_of(file.parent.name if saved else file.name))
            for file in sorted(saved or path.iterdir())
            if file.suffix.lower() in _SUFFIXES
        ]
        files = [(file, split) for file, split in named if split]
        files = files or (named if saved else [])
        if not files:
            raise InputError(
                "has no data file named train*, test*, eval*, dev* or val*",
                where=source,
                fix=f"name the files so ({', '.join(_SUFFIXES)}), or give one file",
            )
    for file, split in sorted(files, key=lambda item: item[1] == "test"):
        for place, row in _reader(file, format)(file):
            yield place, split, row


def _reader(path: Path, format: str) -> Callable[[Path], Iterator[tuple[str, Row]]]:
    if format in _READERS:
        return _READERS[format]
    with reading(path), open_regular(path, follow=True) as file:
        head = file.read(64)
    if head.startswith(b"PAR1"):
        return _parquet
    if path.suffix == ".arrow":
        return _stream
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"["):
        return _json_list
    if head.startswith(b"{") or path.suffix in (".jsonl", ".json"):
        return json_lines
    return _text if path.suffix.lower() == ".txt" else _csv


def _json_list(path: Path) -> Iterator[tuple[str, Row]]:
    rows = parse_json(read_bytes(path), place=str(path))
    if not isinstance(rows, list):
        raise InputError("is not a JSON list", where=str(path))
    for number, row in enumerate(rows, start=1):
        place = f"{path}, row {number}"
        if not isinstance(row, dict):
            raise InputError("is not an object", where=place)
        yield place, row


class Line(dict[str, Any]):
    """A line of plain text, as the column ``text``: it has no response."""


def _csv(path: Path) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(LINE_BYTES)
    with reading(path), open_regular(path, follow=True) as raw:
        # Spreadsheets begin UTF-8 files with a byte order mark, which is no part of a
        # name; ends of line inside of quotes are the cell's.
        file = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        lines, number = iter(lambda: file.readline(LINE_BYTES), ""), 1
        try:
            head = next(lines, "")
            cut = max(",;\t", key=head.count)
            reader = csv.reader(chain([head], lines), delimiter=cut, strict=True)
            columns = [name.strip() for name in next(reader)]
            if len(set(columns)) < len(columns) or not all(columns):
                what = "the first line is empty, or does not name every column once"
                raise InputError(what, where=f"{path}:1", fix=EMPTY_FIX)
            for cells in reader:
                number = reader.line_num
                if len(cells) != len(columns):
                    what = f"has {len(cells)} cells where the first line has "
                    where = f"{path}:{number}"
                    raise InputError(f"{what}{len(columns)}", where=where)
                yield f"{path}:{number}", dict(zip(columns, cells, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            what = "is not UTF-8, or not CSV: check its quotes"
            where = f"{path}, behind line {number}"
            raise InputError(what, where=where, fix="save as UTF-8") from error


def _text(path: Path) -> Iterator[tuple[str, Row]]:
    for place, line in byte_lines(path):
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            fix = "save as UTF-8"
            raise InputError("is not UTF-8", where=place, fix=fix) from error
        if text:
            yield place, Line(text=text)


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow.parquet as pq

    raw = read_bytes(path)

    def batches() -> Iterator[Any]:
        file = pq.ParquetFile(io.BytesIO(raw))
        if file.metadata.num_rows > len(raw):  # rows that differ take more
            raise ValueError
        yield from file.iter_batches(batch_size=1024)

    return _rows(batches(), str(path))


def _stream(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        with reading(path), open_regular(path) as file:
            yield from pa.ipc.open_stream(file)

    return _rows(batches(), str(path))


def _rows(batches: Iterator[Any], place: str) -> Iterator[tuple[str, Row]]:
    """Rows of Arrow's batches; labels that `datasets` numbers are told by name.

    Nothing else of a column is decoded: an image or a sound would be opened where the
    row names it, be it a file of this machine or a host.
    """
    import pyarrow as pa

    number = 0
    try:
        for batch in batches:
            batch.validate(full=True)
            told = (batch.schema.metadata or {}).get(b"huggingface", b"{}")
            features = parse_json(told, place=place).get("info", {}).get("features", {})
            labels = {c: f["names"] for c, f in features.items() if "names" in f}
            for row in batch.to_pylist():
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
    ) as error:
        raise InputError("is not readable as Parquet or Arrow", where=place) from error


_READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Row]]]] = {
    "jsonl": json_lines,
    "csv": _csv,
    "parquet": _parquet,
    "text": _text,
    "datasets": _stream,
    "trace": _json_list,
    "olora": _json_list,
}


def _hub(source: str) -> Iterator[tuple[str, Split | None, Row]]:
    try:
        import datasets

        hub_id, _, config = source.removeprefix(HUB).partition(":")
        found = datasets.load_dataset(hub_id, config or None)
    except Exception as error:  # its own kinds, the hub's, and the network's
        raise InputError(
            f"is nothing that `datasets` can load ({type(error).__name__})",
            where=source,
            fix=f"give {HUB}OWNER/NAME[:CONFIG]; the package comes, where spark-audit "
            "lies, by pip install '.[hub]'",
        ) from error
    parts = dict(found) if isinstance(found, Mapping) else {"": found}
    # Not an "unsupervised" part beside train and test.
    for name in [name for name in parts if split_of(name)] or parts:
        batches = iter(parts[name].data.to_batches())
        for place, row in _rows(batches, f"{source} ({name})"):
            yield place, split_of(name), row
