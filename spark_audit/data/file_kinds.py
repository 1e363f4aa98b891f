"""Recognise files that are not readable as data, and say what to do with them.

A file is recognised by its first bytes or by its ending. Without this check, a reader
of CSV or JSON could only say that the file is not UTF-8. A further format is added to
:data:`KINDS` by its first bytes, and to :data:`UNREAD` by its ending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from spark_audit.errors import InputError
from spark_audit.files import LFS_POINTER, LFS_PULL

SAVE_AS_CSV = "save the sheet as CSV (UTF-8) and give that file"
UNPACK = "unpack it and give the file in it"
CONVERT_DATA = "convert it to JSON lines, CSV or Parquet"

HEAD_BYTES = 64
"""Bytes of a file that :func:`check_kind` needs at least."""

KINDS: tuple[tuple[bytes, str, str], ...] = (
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old Office file (.xls, .doc)",
        CONVERT_DATA,
    ),
    *((b"BZh%d1AY&SY" % level, "a bzip2 archive", UNPACK) for level in range(1, 10)),
    (b"\xfd7zXZ\x00", "an xz archive", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (b"%PDF-", "a PDF document", CONVERT_DATA),
    (b"SQLite format 3\x00", "an SQLite database", CONVERT_DATA),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", CONVERT_DATA),
    (b"\x93NUMPY", "a NumPy array", CONVERT_DATA),
    (b"Obj\x01", "an Avro file", CONVERT_DATA),
    (b"ORC", "an ORC file", CONVERT_DATA),
    (LFS_POINTER, "a pointer of Git LFS", LFS_PULL),
)
"""First bytes of a format, the name of the format, and advice."""
PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
"""First bytes of a pickle. Reading a pickle would run its code."""
ZIP = b"PK\x03\x04"
"""First bytes of a zip archive, which may be an Office document."""
OFFICE_PARTS = (b"[Content_Types].xml", b"_rels/", b"mimetypeapplication/vnd.oasis")
"""Beginnings of the first entry of a zip archive that is an Office document."""
SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")

OTHER_JSON_LINES = (".jsn", ".jsonlines", ".jsnl", ".jsonln", ".ndjson", ".jl")
JSON_LINES = (*OTHER_JSON_LINES, ".jsonl.gz", ".jsonl.zst")
"""Endings of JSON lines for which a folder of rows is not searched."""
UNREAD = (
    *OTHER_JSON_LINES,
    *SHEETS,
    *(".zip", ".bz2", ".xz", ".7z", ".rar", ".tar", ".tgz", ".tar.gz", ".tar.zst"),
    *(".pkl", ".pickle", ".pdf", ".db", ".sqlite", ".h5", ".npy", ".avro", ".orc"),
)
"""Endings of data in formats that are not read from a folder."""


def check_kind(path: Path, head: bytes) -> None:
    """Refuse a file that is a spreadsheet, an archive or another binary format.

    Parameters
    ----------
    head
        The first ``HEAD_BYTES`` of the file, or more; fewer if the file is shorter.

    Raises
    ------
    InputError
        Names the format, and what to do.
    """
    unread_format = _unread_format(path, head)
    if unread_format is not None:
        raise InputError(
            f"is {unread_format.name}, which is not read",
            where=str(path),
            fix=unread_format.advice,
        )


class _UnreadFormat(NamedTuple):
    """A format that is not read, and advice on a file of this format."""

    name: str
    advice: str


def _unread_format(path: Path, head: bytes) -> _UnreadFormat | None:
    """Return the format of a file that is not read; ``None`` if it may be read."""
    has_sheet_name = path.suffix.lower() in SHEETS
    if head.startswith(ZIP):
        is_office = any(entry_name in head for entry_name in OFFICE_PARTS)
        if has_sheet_name or is_office:
            return _UnreadFormat("an Office file (Excel, Word)", SAVE_AS_CSV)
        return _UnreadFormat("a zip archive", UNPACK)

    if head.startswith(PICKLES):
        return _UnreadFormat("a pickle", CONVERT_DATA)

    for first_bytes, name, advice in KINDS:
        if head.startswith(first_bytes):
            # Old Excel files and old Word files have the same first bytes.
            if has_sheet_name:
                return _UnreadFormat("an old Excel file (.xls)", SAVE_AS_CSV)
            return _UnreadFormat(name, advice)
    return None


def check_left_out(
    folder: Path, read: Iterable[Path], others: Iterable[Path], endings: Sequence[str]
) -> None:
    """Refuse a folder in which a data file would be left out silently.

    Parameters
    ----------
    read
        The files of the folder that are read. Another file with the same stem, such as
        the sheet of which a CSV was saved, counts as the same data.
    others
        Files of the folder that are not read.
    endings
        Endings of files that must not be left out.

    Raises
    ------
    InputError
        Names the first such file.
    """
    stems_read = {_stem(path) for path in read}
    for path in sorted(others):
        name = path.name.lower()
        if not name.endswith(tuple(endings)) or _stem(path) in stems_read:
            continue

        advice = "convert it, move it away, or give the files to read by name"
        if name.endswith(JSON_LINES):
            advice = f"if it holds JSON lines, name it {_stem(path)}.jsonl"
        raise InputError(
            f"holds {path.name}, whose ending is not read",
            where=str(folder),
            fix=advice,
        )


def _stem(path: Path) -> str:
    """Return a file's name without all of its endings: ``a`` for ``a.csv.gz``."""
    return path.name.split(".")[0]
