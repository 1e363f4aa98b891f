"""Read rows from a file, a folder, or a data set on the hub, one by one.

A further file format is recognised in :func:`_rows_of_file` and read in a file of its
own, such as ``csv_rows.py``. Each reader yields ``(place, row)``: the place, such as
``a.csv:7``, is for errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_audit.data import file_kinds
from spark_audit.data.arrow_batches import rows_of_batches
from spark_audit.data.arrow_messages import ARROW_MAGIC
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
from spark_audit.errors import InputError, memory_failure
from spark_audit.files import lies_inside, open_regular, parse_json, read_regular
from spark_audit.json_values import Row
from spark_audit.wrong_paths import no_such_path

HUB = "hf:"
"""Beginning of the name of a data set on the hub."""
READ_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
"""Endings of files that are read from a folder."""
_TEST_WORDS = r"tests?|testing|eval(?:uation)?|dev|val(?:id(?:ation)?)?"
_SPLIT_WORD = re.compile(rf"(?:(train(?:ing)?)|{_TEST_WORDS})(?![a-z])")
"""The word in a name that gives the split; the group matches the train split."""


class _SplitFile(NamedTuple):
    """A file of rows, and the split that its name or folder name gives."""

    path: Path
    split: Split | None


def read_rows(
    source: str, format: str, *, encoding: str | None = None, note: Note
) -> Iterator[tuple[str, Split | None, Row]]:
    """Yield ``(place, split by name, row)`` of each row of a source.

    The split by name is that of the row's file in a folder, or of its part of a data
    set; ``None`` for a single file, or if the name gives none.

    Parameters
    ----------
    source
        A file, a folder, or ``hf:OWNER/NAME[:CONFIG]``.
    format
        A format of :func:`spark_audit.data.importers.import_rows`; ``auto``: the
        content decides.
    encoding
        Encoding of text files; ``None``: UTF-8.
    note
        Receives notes on rows that were left out and on where the rows stand.
    """
    check_encoding(encoding)
    if source.startswith(HUB):
        yield from _rows_of_hub(source)
        return

    path = Path(source)
    if not path.exists():
        # A name on the hub may also have been meant.
        error = no_such_path(path, otherwise="give a file or a folder")
        raise InputError(
            error.what,
            where=source,
            fix=f"{error.fix} (a data set on the hub is written "
            f"{HUB}OWNER/NAME[:CONFIG])",
        )

    files = [_SplitFile(path, None)]
    if path.is_dir():
        files = _files_in(path, format)
    # Train rows come first, because examples are numbered in the order of reading.
    for file in sorted(files, key=lambda file: file.split == "test"):
        rows = _rows_of_file(file.path, format, encoding=encoding, note=note)
        for place, row in rows:
            yield place, file.split, row


def _files_in(folder: Path, format: str) -> list[_SplitFile]:
    """Return the data files of a folder; refuse a folder without any.

    They are the parts of a data set that ``datasets`` saved, or files with the name of
    a split.
    """
    saved = _saved_files(folder) if format in ("auto", "datasets") else []
    if saved:
        # Parts without the name of a split are read only if no part has one.
        return [file for file in saved if file.split] or saved

    # Other files, such as a README or a script, have no split's name.
    files: list[_SplitFile] = []
    paths_with_split: list[Path] = []
    for path in sorted(folder.iterdir()):
        split = split_of(path.name)
        if split is None:
            continue
        paths_with_split.append(path)
        if _suffix(path) in READ_SUFFIXES:
            files.append(_SplitFile(path, split))

    file_kinds.check_left_out(
        folder,
        read=[file.path for file in files],
        others=paths_with_split,
        endings=file_kinds.UNREAD,
    )
    if not files:
        raise InputError(
            "has no data file named train*, test*, eval*, dev* or val*",
            where=str(folder),
            fix=f"name the files so ({', '.join(READ_SUFFIXES)}), or give one file",
        )
    return files


def _suffix(path: Path) -> str:
    """Return a file's ending, without that of compression: ``.csv`` for a.csv.gz."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        return Path(path.stem).suffix.lower()
    return suffix


def _rows_of_file(
    path: Path, format: str, *, encoding: str | None, note: Note
) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a file, by the given format or by its first bytes."""
    # The content decides, not the name, unless the format is given.
    with reading(path), open_regular(path, follow=True) as file:
        first_bytes = file.read(file_kinds.HEAD_BYTES)
    file_kinds.check_kind(path, first_bytes)

    has_arrow_mark = first_bytes.startswith((PARQUET, ARROW_MAGIC))
    has_arrow_name = path.suffix in (".parquet", ".arrow")
    is_arrow = format == "auto" and (has_arrow_mark or has_arrow_name)
    if format in ("parquet", "datasets") or is_arrow:
        if encoding is not None:
            raise InputError(
                "is not a file of text", where=str(path), fix="leave out `--encoding`"
            )
        return arrow_rows(path)

    if format == "csv":
        return csv_rows(path, encoding=encoding, note=note)
    if format == "text":
        return text_rows(path, encoding=encoding)
    if format in ("trace", "olora"):
        return json_list(path, encoding=encoding)
    if format == "jsonl":
        return json_lines(path, encoding=encoding, finite=False, note=note)

    # Files of JSON are often named .txt or .csv, so their first bytes decide.
    with open_data(path, encoding=encoding) as stream:
        head = stream.read(file_kinds.HEAD_BYTES).lstrip()
    if head.startswith((b"[", b"{")) or _suffix(path) in (".jsonl", ".json"):
        return json_rows(path, encoding=encoding, note=note)
    if _suffix(path) == ".txt":
        return text_rows(path, encoding=encoding)
    return csv_rows(path, encoding=encoding, note=note)


def split_of(name: str) -> Split | None:
    """Return the split that the first word of a name gives, if any."""
    match = _SPLIT_WORD.match(name.lower())
    if match is None:
        return None
    return "train" if match[1] else "test"


def _saved_files(folder: Path) -> list[_SplitFile]:
    """Return the data files of a folder that `datasets` saved, with their splits.

    Cached files of an earlier ``map`` are not listed, so they are not read.
    """
    # Several parts have folders of their own; a single part is in the folder itself.
    list_of_parts = folder / "dataset_dict.json"
    split_by_folder: dict[Path, Split | None] = {}
    if list_of_parts.exists():
        for part_folder in _listed_paths(list_of_parts, "splits"):
            split_by_folder[part_folder] = split_of(part_folder.name)
    elif (folder / "state.json").exists():
        split_by_folder[folder] = None

    files = []
    for part_folder, split in split_by_folder.items():
        for path in _listed_paths(part_folder / "state.json", "_data_files"):
            files.append(_SplitFile(path, split))
    return files


def _listed_paths(path: Path, key: str) -> list[Path]:
    """Return the files that a metadata file of `datasets` lists under a key.

    Parameters
    ----------
    path
        The metadata file, beside which the listed files must lie.
    key
        ``splits`` (a list of folders) or ``_data_files`` (a list of objects).

    Raises
    ------
    InputError
        If it lists none, or a path that leads out of the folder.
    """
    # The metadata may come from anybody: a name must not lead out of the folder.
    with reading(path):
        raw = read_regular(path)
    try:
        names = parse_json(raw, place=str(path))[key]
        if key == "_data_files":
            names = [entry["filename"] for entry in names]
        # with_name raises ValueError if a name is in fact a path.
        paths = [path.with_name(name) for name in names]
        if all(lies_inside(listed) for listed in paths):
            return paths
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    raise InputError(
        "names no data, or data outside of its folder",
        where=str(path),
        fix="copy the data into the folder",
    )


def _rows_of_hub(source: str) -> Iterator[tuple[str, Split | None, Row]]:
    """Yield the rows of a data set on the hub, part by part."""
    try:
        import datasets

        hub_id, _, config = source.removeprefix(HUB).partition(":")
        loaded = datasets.load_dataset(hub_id, config or None)
    except Exception as error:  # of `datasets`, the hub or the network
        raise InputError(
            f"is nothing that `datasets` can load ({type(error).__name__})",
            where=source,
            fix=f"give {HUB}OWNER/NAME[:CONFIG]; the package comes, where spark-audit "
            "lies, by pip install '.[hub]'",
        ) from memory_failure(error)

    parts = dict(loaded) if isinstance(loaded, Mapping) else {"": loaded}
    # A part such as "unsupervised" beside train and test is left out.
    names = [name for name in parts if split_of(name)] or list(parts)
    for name in names:
        batches = iter(parts[name].data.to_batches())
        for place, row in rows_of_batches(batches, f"{source} ({name})"):
            yield place, split_of(name), row


def rows_of(count: int) -> str:
    """Return a number of rows in words: ``1 row``, ``2 rows``."""
    return f"{count} row" if count == 1 else f"{count} rows"
