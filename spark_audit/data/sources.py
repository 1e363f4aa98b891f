"""Where rows come from: a file, a folder, or a data set on the hub, row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from spark_audit.data import file_kinds
from spark_audit.data.arrow_batches import rows_of_batches
from spark_audit.data.arrow_messages import ARROW
from spark_audit.data.arrow_rows import PARQUET, arrow_rows
from spark_audit.data.csv_rows import csv_rows, text_rows
from spark_audit.data.data_files import (
    COMPRESSED,
    check_encoding,
    open_data,
    reading,
)
from spark_audit.data.examples import Split
from spark_audit.data.json_rows import Note, json_lines, json_list, json_rows
from spark_audit.errors import InputError
from spark_audit.files import lies_inside, open_regular, parse_json, read_regular
from spark_audit.json_values import Row
from spark_audit.wrong_paths import no_such_path

HUB = "hf:"
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")


def read_rows(
    source: str, format: str, *, encoding: str | None = None, note: Note
) -> Iterator[tuple[str, Split | None, Row]]:
    """Yield each row with its place, and the split that its file or part is named for.

    Parameters
    ----------
    encoding
        What files of text are written in; ``None``: UTF-8.
    note
        Is told what a reader left out, or where it found the rows.
    """
    check_encoding(encoding)
    if source.startswith(HUB):
        yield from _hub(source)
        return
    path = Path(source)
    if not path.exists():
        error = no_such_path(path, otherwise="give a file or a folder")
        fix = f"{error.fix} (a data set on the hub is written {HUB}OWNER/NAME[:CONFIG])"
        raise InputError(error.what, where=source, fix=fix)
    files: list[tuple[Path, Split | None]] = [(path, None)]
    if path.is_dir():
        files = _files_in(path, format)
    for file, split in sorted(files, key=lambda item: item[1] == "test"):
        for place, row in _rows_of_file(file, format, encoding=encoding, note=note):
            yield place, split, row


def _files_in(folder: Path, format: str) -> list[tuple[Path, Split | None]]:
    saved = _saved(folder) if format in ("auto", "datasets") else []
    named = saved or [
        (file, split_of(file.name))
        for file in sorted(folder.iterdir())
        if _suffix(file) in SUFFIXES
    ]
    files: list[tuple[Path, Split | None]] = [
        (file, split) for file, split in named if split
    ]
    files = files or saved
    if not saved:
        others = [file for file in folder.iterdir() if split_of(file.name)]
        file_kinds.check_left_out(
            folder,
            read=[file for file, _ in files],
            others=others,
            endings=file_kinds.UNREAD,
        )
    if not files:
        raise InputError(
            "has no data file named train*, test*, eval*, dev* or val*",
            where=str(folder),
            fix=f"name the files so ({', '.join(SUFFIXES)}), or give one file",
        )
    return files


def _suffix(path: Path) -> str:
    """A file's ending, without that of its compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def _rows_of_file(
    path: Path, format: str, *, encoding: str | None, note: Note
) -> Iterator[tuple[str, Row]]:
    with reading(path), open_regular(path, follow=True) as file:
        first_bytes = file.read(file_kinds.HEAD_BYTES)
    file_kinds.check_kind(path, first_bytes)
    is_arrow = first_bytes.startswith((PARQUET, ARROW))
    is_arrow = is_arrow or path.suffix in (".parquet", ".arrow")
    if format in ("parquet", "datasets") or (format == "auto" and is_arrow):
        if encoding is not None:
            fix = "leave out `--encoding`"
            raise InputError("is no file of text", where=str(path), fix=fix)
        return arrow_rows(path)
    if format == "csv":
        return csv_rows(path, encoding=encoding, note=note)
    if format == "text":
        return text_rows(path, encoding=encoding)
    if format in ("trace", "olora"):
        return json_list(path, encoding=encoding)
    if format == "jsonl":
        return json_lines(path, encoding=encoding, finite=False, note=note)

    with open_data(path, encoding=encoding) as stream:
        head = stream.read(file_kinds.HEAD_BYTES).lstrip()
    if head.startswith((b"[", b"{")) or _suffix(path) in (".jsonl", ".json"):
        return json_rows(path, encoding=encoding, note=note)
    if _suffix(path) == ".txt":
        return text_rows(path, encoding=encoding)
    return csv_rows(path, encoding=encoding, note=note)


def split_of(name: str) -> Split | None:
    """The split that a file, a part or a cell is named for by its first word."""
    test = r"tests?|testing|eval(?:uation)?|dev|val(?:id(?:ation)?)?"
    found = re.match(rf"(?:(train(?:ing)?)|{test})(?![a-z])", name.lower())
    return None if found is None else "train" if found[1] else "test"


def _saved(folder: Path) -> list[tuple[Path, Split | None]]:
    """Data files of a folder that `datasets` saved, and their part's split.

    What it left there of an earlier ``map`` is not listed, and no data.
    """
    parts: list[tuple[Path, Split | None]] = []
    if (index := folder / "dataset_dict.json").exists():
        parts = [(part, split_of(part.name)) for part in _named(index, "splits")]
    elif (folder / "state.json").exists():
        parts = [(folder, None)]
    return [
        (file, split)
        for part, split in parts
        for file in _named(part / "state.json", "_data_files")
    ]


def _named(path: Path, key: str) -> list[Path]:
    """What a file of `datasets` names under a key: each lies beside it."""
    with reading(path):
        raw = read_regular(path)
    try:
        listed = parse_json(raw, place=str(path))[key]
        names = [one["filename"] for one in listed] if key == "_data_files" else listed
        found = [path.with_name(name) for name in names]  # a ValueError for a path
        if all(lies_inside(one) for one in found):
            return found
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    what = "names no data, or data outside of its folder"
    raise InputError(what, where=str(path), fix="copy the data into the folder")


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
        for place, row in rows_of_batches(batches, f"{source} ({name})"):
            yield place, split_of(name), row


def rows_of(count: int) -> str:
    """Return a number of rows in words: ``1 row``, ``2 rows``."""
    return f"{count} row" if count == 1 else f"{count} rows"
