"""Facts for reports and runs: versions, hashes, seeds, and whole-or-nothing files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import stat
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from spark_audit.errors import InputError, OutputError

PACKAGES = (
    "spark-audit",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "safetensors",
    "tokenizers",
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "pyarrow",
    "faker",
)


def versions() -> dict[str, str]:
    """Versions of what a figure can depend on, without importing any of it."""
    found = {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no blanks, UTF-8 and no NaN: the form that is hashed."""
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    ).encode()


def sha256_json(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def lies_inside(path: Path, *, within: Path | None = None) -> bool:
    """Whether a path, its links followed, lies in a folder: by default its own.

    Of a snapshot in the hub's cache (``models--ORG--NAME/snapshots/REV``) the files are
    links into ``blobs`` beside ``snapshots``, which belong to it.
    """
    folder = (within or path.parent).resolve()
    allowed = [folder]
    for place in (folder, *folder.parents):
        cache = place.parent.parent
        if place.parent.name == "snapshots" and cache.name.startswith("models--"):
            allowed.append(cache / "blobs")
    # Of links that lead round and round `Path.resolve` makes an error.
    target = Path(os.path.realpath(path))
    return any(target.is_relative_to(one) for one in allowed)


def check_links(folder: Path, *inside: str) -> None:
    """Refuse a folder of ours in which what we write, or delete, would be elsewhere.

    Parameters
    ----------
    inside
        Folders in it, and files that are written to in place; patterns, the upper ones
        first. Other files are no matter: what is written takes the place of a link.

    Raises
    ------
    InputError
        If one is a link out of the folder.
    """
    for pattern in inside:
        for path in sorted(folder.glob(pattern)):
            if not lies_inside(path, within=folder):
                raise InputError(
                    "is a link out of the folder",
                    where=str(path),
                    fix="remove it, or give a folder of your own",
                )


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a file for reading, and nothing else.

    Every reader comes by here, or by :func:`check_regular`: in a folder from others, a
    FIFO would block for ever, a device never end, and a link lead to files of ours.

    Parameters
    ----------
    follow
        Links out of the folder too: the user named this file.

    Raises
    ------
    OSError
        Also when the path is no regular file, or a link out of its folder.
    """
    if not follow and not lies_inside(path):
        raise OSError(errno.ELOOP, "is a link out of its folder", str(path))
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, *, follow: bool = False) -> bytes:
    """The bytes of a regular file; takes and raises as :func:`open_regular`."""
    with open_regular(path, follow=follow) as file:
        return file.read()


def check_regular(path: Path, *, follow: bool = False) -> None:
    """Refuse what another library must not open; as :func:`open_regular` does."""
    open_regular(path, follow=follow).close()


def field_path(place: Sequence[str | int], schema: Mapping[str, Any]) -> str:
    """Where a file does not fit its schema, in names of the schema alone.

    A key that a file brings may be anything, text of the data too: it is left blank.
    """
    parts = (schema, *schema.get("$defs", {}).values())
    known = {name for part in parts for name in part.get("properties", {})}
    return ".".join(
        str(one) if isinstance(one, int) or one in known else "*" for one in place
    )


_memo: dict[tuple[str, int, int, int], str] = {}


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes; memoised on path, size, mtime and inode.

    Links are followed: it tells nothing of what the file holds.
    """
    stat = path.stat()
    key = (str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ino)
    if key not in _memo:
        with open_regular(path, follow=True) as file:
            _memo[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _memo[key]


def seed_for(seed: int, *parts: object) -> int:
    """A 63-bit seed for one named purpose, the same on every machine."""
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def write_atomically(
    path: Path, write: Callable[[IO[bytes]], object], *, mode: int = 0o644
) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename.

    It gets ``mode`` less what the process's umask withholds.

    Raises
    ------
    OutputError
        If the folder cannot be written or the disk is full; nothing is left behind.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(
            f"cannot be written ({error.strerror or error})",
            where=str(path),
            fix="check the folder's permissions and free space, then run again",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _umask() -> int:
    # There is no reading it alone; what another thread makes meanwhile is private.
    found = os.umask(0o077)
    os.umask(found)
    return found


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write UTF-8 text whole or not at all."""
    write_atomically(path, lambda file: file.write(text.encode()), mode=mode)


def check_writable(folder: Path) -> None:
    """Fail now, not after hours of scoring, if a folder cannot be written.

    It is not made: a command that fails for another reason leaves nothing behind.
    """
    place = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    try:
        # It has no name: nothing of it is left, however this process ends.
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot be written ({error.strerror or error})",
            where=str(folder),
            fix="check the folder's permissions and free space, then run again",
        ) from error
