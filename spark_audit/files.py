"""Read regular files alone, write files whole or not at all, and check their bytes.

Checksums tell what was written from what a disk or a copy made of it. A file that is
replaced as a whole carries a seal: the SHA-256 of its own bytes with zeros in the
seal's place, so that file and checksum never are of two moments. Of files that grow, or
whose format is another's, size and SHA-256 stand in a sealed file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from spark_audit.errors import InputError, OutputError

SETTINGS_BYTES = 1 << 24
"""The largest file of settings that is read; the largest real ones are 10 MB."""

_DATA_BYTES = 1 << 31
"""The largest file of data that is read whole."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How the text begins that Git leaves in the place of a large file."""

LFS_PULL = "fetch the file itself: git lfs pull"

BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

BLANK_DIGEST = f"sha256:{'0' * 64}"
"""What stands under ``"seal"`` until :func:`sealed` puts the checksum there."""

_SEAL = re.compile(rb'"seal": ?"sha256:([0-9a-f]{64})"')

_SEAL_MARKS = (b'"seal"', b'"sha256:')
"""Parts of a seal. A flipped bit leaves one of the two, so that a damaged seal is never
taken for none."""

DAMAGED = "is damaged: it holds other bytes than were written"

Fact = dict[str, Any]
"""``bytes`` and ``sha256`` of a file, or of its beginning."""


def is_lfs_pointer(raw: bytes) -> bool:
    """Return whether a file's first bytes are those of a pointer of Git LFS."""
    return raw.startswith(LFS_POINTER)


def lies_inside(path: Path, *, within: Path | None = None) -> bool:
    """Return whether a path, its links followed, lies in a folder: by default its own.

    In a snapshot of the hub's cache (``models--ORG--NAME/snapshots/REV``) files are
    links into ``blobs`` beside ``snapshots``, which belong to the snapshot.
    """
    folder = (within or path.parent).resolve()
    allowed_folders = [folder]
    for ancestor in (folder, *folder.parents):
        cache = ancestor.parent.parent
        if ancestor.parent.name == "snapshots" and cache.name.startswith("models--"):
            allowed_folders.append(cache / "blobs")

    # `Path.resolve` raises an error for links that lead in a circle.
    target = Path(os.path.realpath(path))
    return any(target.is_relative_to(allowed) for allowed in allowed_folders)


def check_links(folder: Path, *inside: str) -> None:
    """Refuse a folder whose links would make us write, or delete, outside of it.

    Parameters
    ----------
    inside
        Patterns of folders in it, the upper ones first, and of files that are written
        to in place. Other files do not matter: a new file takes the place of a link.

    Raises
    ------
    InputError
        If one of them is a link out of the folder.
    """
    for pattern in inside:
        for path in sorted(folder.glob(pattern)):
            if not lies_inside(path, within=folder):
                what = "is a link out of the folder"
                fix = "remove it, or give a folder that you own"
                raise InputError(what, where=str(path), fix=fix)


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading.

    Every reader opens files here, or asks :func:`check_regular`. In a folder that comes
    from others, a FIFO would block for ever, a device would never end, and a link would
    lead to files of ours.

    Parameters
    ----------
    follow
        Follow links out of the folder, too: the user named this file.

    Raises
    ------
    OSError
        Also when the path is no regular file, or a link out of its folder.
    """
    if not follow and not lies_inside(path):
        raise OSError(errno.ELOOP, "is a link out of its folder", str(path))

    # Without O_NONBLOCK opening a FIFO would wait for its writer.
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


def read_regular(
    path: Path, *, follow: bool = False, most: int = SETTINGS_BYTES
) -> bytes:
    """Return the bytes of a regular file; takes and raises as :func:`open_regular`.

    Parameters
    ----------
    most
        Bytes beyond which nothing is read. A file with holes can be of any size without
        taking room on a disk.
    """
    with open_regular(path, follow=follow) as file:
        return read_whole(file, most=most)


def read_whole(file: BufferedReader, *, most: int = SETTINGS_BYTES) -> bytes:
    """Return the bytes of an open file.

    Raises
    ------
    OSError
        If there are more than ``most``.
    """
    if os.fstat(file.fileno()).st_size > most:
        raise OSError(errno.EFBIG, f"is larger than {most / 1e6:,.0f} MB", file.name)
    return file.read()


def data_bytes() -> int:
    """Return how many bytes a file of data may have that is read whole.

    It depends on the memory of this machine.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    return min(_DATA_BYTES, memory // 4)


def parse_json(raw: bytes, *, place: str, finite: bool = True) -> Any:
    """Parse strict JSON: UTF-8 without byte order mark, each key once, no NaN.

    Where a key stands twice, one reader takes the first value, another the last.

    Parameters
    ----------
    place
        The file, for errors.
    finite
        Whether NaN and Infinity are refused, which some configurations hold.

    Raises
    ------
    InputError
        With the place; what the file holds is never said.
    """
    if raw.startswith(BYTE_ORDER_MARKS):
        fix = "save as UTF-8 without it"
        raise InputError("begins with a byte order mark", where=place, fix=fix)

    try:
        return json.loads(
            raw.decode(),
            # int("NaN") and int("Infinity") raise a ValueError.
            parse_constant=int if finite else None,
            object_pairs_hook=_object_of_unique_keys,
        )
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8", where=place, fix="save as UTF-8") from error
    except json.JSONDecodeError as error:
        # Of the decoder's message only the position is said: never a piece of the text.
        what = f"is not JSON (line {error.lineno}, column {error.colno})"
        if error.lineno == 1:
            what = f"is not JSON (column {error.colno})"
        raise InputError(what, where=place, fix=_fix_of_json(error)) from error
    except KeyError as error:
        what = "has an object with a repeated key"
        raise InputError(what, where=place, fix="keep the one that is meant") from error
    except (ValueError, RecursionError) as error:
        what = "contains NaN, Infinity, a number that is too long, or too many levels"
        raise InputError(what, where=place) from error


def _fix_of_json(error: json.JSONDecodeError) -> str:
    """Return what to do about text that is not JSON, by what stands where it fails."""
    if error.msg.startswith("Unterminated") or error.pos >= len(error.doc):
        return "its end is missing: make or copy the file again"

    before = error.doc[: error.pos].rstrip()
    rest = error.doc[error.pos :].lstrip()
    if rest.startswith(("//", "/*", "#")):
        return "remove the comment: JSON has none"
    if rest.startswith(("]", "}")) and before.endswith(","):
        return "remove the comma before the closing bracket"
    # Python 3.13 points at the comma itself.
    if rest.startswith(",") and rest[1:].lstrip().startswith(("]", "}")):
        return "remove the comma before the closing bracket"
    if rest.startswith(("'", "None", "True", "False")):
        return "it is written as Python prints it: write it with json.dump"
    return "write it with a program that writes JSON, such as json.dump of Python"


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise a KeyError if one of its keys stands twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise KeyError
    return content


def check_regular(path: Path, *, follow: bool = False) -> None:
    """Refuse what another library must not open; as :func:`open_regular` does."""
    open_regular(path, follow=follow).close()


def field_path(place: Sequence[str | int], schema: Mapping[str, Any]) -> str:
    """Return where a file does not fit its schema, in names of the schema alone.

    A key of the file itself may be anything, text of the data too: a star stands for
    it.

    Parameters
    ----------
    place
        Keys and indices that lead to the field, from the outermost on.
    schema
        JSON schema of the file.
    """
    known_names: set[str] = set()
    for definition in (schema, *schema.get("$defs", {}).values()):
        known_names.update(definition.get("properties", {}))

    steps = []
    for step in place:
        is_known = isinstance(step, int) or step in known_names
        steps.append(str(step) if is_known else "*")
    return ".".join(steps)


@contextlib.contextmanager
def temporary(folder: Path, *, mode: int = 0o600) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open a new file under a temporary name; delete it in the end, unless renamed.

    The process that writes holds a lock on it, so that :func:`sweep` leaves it alone as
    long as that process lives.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    while True:
        path = folder / f".spark-{secrets.token_hex(8)}.part"
        with os.fdopen(os.open(path, flags, mode), "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            # Before it was locked, a sweep may have deleted it as a left one: then the
            # next name is tried.
            if path.exists():
                try:
                    yield path, file
                finally:
                    path.unlink(missing_ok=True)
                return


def sweep(folder: Path) -> None:
    """Remove the files that killed commands left half-written in a folder.

    These are regular files of this user under the names of :func:`temporary` on which
    nobody holds a lock: a process that has ended holds none.
    """
    for path in folder.glob(".spark-*.part"):
        with contextlib.suppress(OSError):  # locked, or gone
            state = path.lstat()
            is_own = state.st_uid == os.geteuid()
            if not stat.S_ISREG(state.st_mode) or not is_own:
                continue

            with open_regular(path) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


_swept: set[str] = set()
"""Folders that this process has swept."""


def write_atomically(
    path: Path,
    write: Callable[[IO[bytes]], object],
    *,
    mode: int = 0o644,
) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename.

    The first write of a process into a folder sweeps it.

    Parameters
    ----------
    mode
        Of the file, less what the process's umask withholds.

    Raises
    ------
    OutputError
        If the folder cannot be written or the disk is full; nothing is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.path.realpath(path.parent)
        if folder not in _swept:
            sweep(path.parent)
            _swept.add(folder)

        with temporary(path.parent, mode=mode) as (part, file):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> OutputError:
    """Return the error about a file or folder that cannot be written."""
    what = f"cannot be written ({error.strerror or error})"
    fix = "check the path, its permissions and free space, then run again"
    return OutputError(what, where=str(path), fix=fix)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write UTF-8 text whole or not at all, as :func:`write_atomically` does."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write bytes whole or not at all, as :func:`write_atomically` does."""
    write_atomically(path, lambda file: file.write(data), mode=mode)


def check_writable(folder: Path) -> None:
    """Fail now, not after hours of scoring, if a folder cannot be written; sweep it.

    The folder is not made: a command that fails for another reason leaves nothing
    behind.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    sweep(folder)
    existing = folder
    while not os.path.lexists(existing):
        existing = existing.parent
    try:
        # The file has no name: nothing of it is left, however this process ends.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise cannot_write(folder, error) from error


@contextlib.contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file, after the process that holds it; delete it in the end.

    A folder that was made for it is deleted, too, if it stayed empty.

    Raises
    ------
    InputError
        If another process holds it and this one does not ``wait``.
    OutputError
        If the file cannot be made.
    """
    import filelock

    new_folders = [folder for folder in path.parents if not folder.exists()]
    lock = filelock.FileLock(path, timeout=-1 if wait else 0)
    try:
        while not lock.is_locked:
            # A process that ends may delete the folder that it made: make it again.
            with contextlib.suppress(FileNotFoundError):
                path.parent.mkdir(parents=True, exist_ok=True)
                lock.acquire()
    except filelock.Timeout as error:
        what = "another process is writing to it"
        fix = "wait for it, or give another -o"
        raise InputError(what, where=str(path.parent), fix=fix) from error
    except OSError as error:
        raise cannot_write(path.parent, error) from error

    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
        with contextlib.suppress(OSError):
            for folder in new_folders:
                folder.rmdir()


def sealed(data: bytes) -> bytes:
    """Return bytes of JSON or safetensors, with the seal in place of ``BLANK_DIGEST``.

    Raises
    ------
    ValueError
        If they have no such place.
    """
    seal = _SEAL.search(data)
    if seal is None:
        raise ValueError("no place for a seal")
    start, end = seal.span(1)
    return b"".join((data[:start], _digest(data, start, end).encode(), data[end:]))


def intact_file(path: Path) -> bool | None:
    """Return :func:`intact` of a file, which is not read into memory as a whole."""
    if not path.stat().st_size:
        # An empty file cannot be mapped, and no file was sealed empty.
        return False
    with open_regular(path) as file:
        return intact(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def intact(data: bytes | mmap.mmap) -> bool | None:
    """Return whether bytes are those that were sealed; ``None``: they carry no seal."""
    seal = _SEAL.search(data)
    if seal is None:
        has_damaged_seal = any(data.find(mark) >= 0 for mark in _SEAL_MARKS)
        return False if has_damaged_seal else None

    start, end = seal.span(1)
    return _digest(data, start, end).encode() == seal[1]


def _digest(data: bytes | mmap.mmap, start: int, end: int) -> str:
    """Return the SHA-256 of bytes, with zeros in place of those from start to end."""
    view = memoryview(data)
    digest = hashlib.sha256(view[:start])
    digest.update(b"0" * (end - start))
    digest.update(view[end:])
    return digest.hexdigest()


_digest_by_state: dict[tuple[str, int, int, int], str] = {}
"""SHA-256 of files that were hashed, by path, size, time of change and inode."""


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes; an unchanged file is hashed once a process.

    Links are followed: the digest tells nothing of the content.
    """
    state = path.stat()
    key = (str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino)
    if key not in _digest_by_state:
        with open_regular(path, follow=True) as file:
            _digest_by_state[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _digest_by_state[key]


def fact(data: bytes) -> Fact:
    """Return size and SHA-256 of bytes."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def fact_of(path: Path) -> Fact:
    """Return size and SHA-256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def fault(path: Path, told: object, *, grows: bool = False) -> str | None:
    """Return what is wrong with a file, in words; ``None``: nothing.

    Parameters
    ----------
    told
        The :data:`Fact` about the file that was written down, as it was read again.
    grows
        Whether the file may have grown since: the fact is about its beginning.
    """
    written = told if isinstance(told, Mapping) else {}
    written_size = written.get("bytes")
    written_digest = written.get("sha256")
    if not isinstance(written_size, int) or not isinstance(written_digest, str):
        return "has no checksum that can be read"

    try:
        if not path.is_file():
            return "is gone"

        size = path.stat().st_size
        has_grown = size > written_size
        if size < written_size or (has_grown and not grows):
            return f"holds {size} bytes, and {written_size} were written"

        if has_grown:
            digest = _sha256_of_beginning(path, written_size)
        else:
            digest = sha256_file(path)
    except OSError as error:
        return f"cannot be read ({error.strerror or type(error).__name__})"
    return None if digest == written_digest else DAMAGED


def _sha256_of_beginning(path: Path, n_bytes: int) -> str:
    """Return the SHA-256 of the first bytes of a file."""
    if not n_bytes:
        return hashlib.sha256(b"").hexdigest()

    with open_regular(path) as file:
        # Mapped: a file may grow to more than fits into memory.
        beginning = mmap.mmap(file.fileno(), n_bytes, prot=mmap.PROT_READ)
        return hashlib.sha256(beginning).hexdigest()
