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
from spark_audit.files import check_regular, lies_inside, open_regular, parse_json

Row: TypeAlias = dict[str, Any]
HUB = "hf:"
_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def split_of(name: str) -> Split | None:
    """The split that a file, a part or a cell is named for."""
    if name.lower().startswith("train"):
        return "train"
    return "test" if name.lower().startswith(("test", "eval", "dev", "val")) else None


def read_rows(source: str, format: str) -> Iterator[tuple[str, Split | None, Row]]:
    """Each row with its place, and the split that its file or part is named for."""
    if source.startswith(HUB):
        yield from _datasets(source)
        return
    path = Path(source)
    saved = any((path / n).exists() for n in ("state.json", "dataset_dict.json"))
    if format == "datasets" or (format == "auto" and saved):
        yield from _datasets(source)
        return
    files: list[tuple[Path, Split | None]] = [(path, None)]
    if path.is_dir():
        named = [(file, split_of(file.name)) for file in sorted(path.iterdir())]
        files = [(f, s) for f, s in named if s and f.suffix.lower() in _SUFFIXES]
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    raw = read_bytes(path)
    try:
        file = pq.ParquetFile(io.BytesIO(raw))
        if file.metadata.num_rows > len(raw):  # rows that differ take more
            raise InputError("holds more rows than bytes", where=str(path))
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
        for number, row in enumerate(chain.from_iterable(batches), start=1):
            yield f"{path}, row {number}", row
    # Text that is no UTF-8, and dates that no calendar has, are of Python's kinds.
    except SparkError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InputError("is not a readable Parquet file", where=str(path)) from error


_READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Row]]]] = {
    "jsonl": json_lines,
    "csv": _csv,
    "parquet": _parquet,
    "text": _text,
    "trace": _json_list,
    "olora": _json_list,
}


def _datasets(source: str) -> Iterator[tuple[str, Split | None, Row]]:
    try:
        import datasets

        if source.startswith(HUB):
            hub_id, _, config = source.removeprefix(HUB).partition(":")
            found = datasets.load_dataset(hub_id, config or None)
        else:
            _check_saved(Path(source))
            found = datasets.load_from_disk(source)
    except SparkError:
        raise
    except Exception as error:  # its own kinds, the hub's, and the network's
        raise InputError(
            f"is nothing that `datasets` can load ({type(error).__name__})",
            where=source,
            fix=f"give a folder of save_to_disk, or {HUB}OWNER/NAME[:CONFIG]; the "
            "package comes, where spark-audit lies, by pip install '.[hub]'",
        ) from error
    parts = dict(found) if isinstance(found, Mapping) else {None: found}
    for name, part in parts.items():
        split = None if name is None else split_of(name)
        if split is None and len(parts) > 1:
            continue  # an "unsupervised" part beside train and test
        # Text and numbers only, as Python's own: decoding an image or a sound opens
        # what the row names, be it a file of this machine or a host.
        kinds = (datasets.Value, datasets.ClassLabel)
        plain = {c: f for c, f in part.features.items() if _plain(f, kinds)}
        part = part.with_format(None).select_columns([*plain])
        place = source if name is None else f"{source} ({name})"
        for number, row in enumerate(part, start=1):
            for column, feature in plain.items():
                if isinstance(feature, datasets.ClassLabel):
                    # -1 is how `datasets` writes a missing label.
                    known = row[column] is not None and row[column] >= 0
                    row[column] = feature.int2str(row[column]) if known else None
            yield f"{place}, row {number}", split, row


def _check_saved(folder: Path) -> None:
    """What a folder of save_to_disk holds and names lies in it, and is a file.

    Raises
    ------
    InputError, OSError, TypeError, AttributeError, KeyError
        If something is a path, a link out of the folder, no regular file, or no name.
    """
    if not folder.is_dir() or "://" in str(folder) or "::" in str(folder):
        raise FileNotFoundError(str(folder))
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        names = [path.name]
        inside = lies_inside(path, within=folder)
        if inside and path.name in ("dataset_dict.json", "state.json"):
            content = parse_json(read_bytes(path), place=str(path))
            names += content.get("splits", ())
            names += [file["filename"] for file in content.get("_data_files", ())]
        if not inside or any(Path(name).name != name for name in names):
            raise InputError(
                "names data outside of its folder",
                where=str(folder),
                fix="copy the data into the folder",
            )
        if not path.is_dir():
            check_regular(path)


def _plain(feature: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a column holds these kinds only, at any depth."""
    if isinstance(feature, dict | list):
        parts = feature.values() if isinstance(feature, dict) else feature
        return all(_plain(inner, kinds) for inner in parts)
    inner = getattr(feature, "feature", None)
    return isinstance(feature, kinds) if inner is None else _plain(inner, kinds)
