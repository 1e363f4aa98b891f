"""Files: one that is written is whole or not there, one that is read is a file.

Checksums tell what was written from what a disk or a copy made of it. A file that is
replaced as a whole carries a seal: the SHA-256 of its own bytes with zeros in the
seal's place, so that file and checksum never are of two moments. Of files that grow, or
whose format is another's, size and SHA-256 stand in a sealed one.
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
from contextlib import suppress
from difflib import get_close_matches
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from spark_audit.errors import InputError, OutputError

SETTINGS_BYTES = 1 << 24
"""The largest file of settings that is read; the largest real ones are 10 MB."""
_DATA_BYTES = 1 << 31
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How the text begins that Git leaves in the place of a large file."""
LFS_PULL = "fetch the file itself: git lfs pull"


def is_lfs_pointer(raw: bytes) -> bool:
    """Whether a file's first bytes are those of a pointer of Git LFS."""
    return raw.startswith(LFS_POINTER)


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
                what = "is a link out of the folder"
                fix = "remove it, or give a folder that you own"
                raise InputError(what, where=str(path), fix=fix)


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


def read_regular(
    path: Path, *, follow: bool = False, most: int = SETTINGS_BYTES
) -> bytes:
    """The bytes of a regular file; takes and raises as :func:`open_regular`.

    Parameters
    ----------
    most
        Bytes beyond which nothing is read: of holes, a file can be of any size.
    """
    with open_regular(path, follow=follow) as file:
        return read_whole(file, most=most)


def read_whole(file: BufferedReader, *, most: int = SETTINGS_BYTES) -> bytes:
    """The bytes of an open file; an ``OSError`` where there are more than ``most``."""
    if os.fstat(file.fileno()).st_size > most:
        raise OSError(errno.EFBIG, f"is larger than {most / 1e6:,.0f} MB", file.name)
    return file.read()


def data_bytes() -> int:
    """How large a file of data may be that is read whole: by this machine's memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    return min(_DATA_BYTES, memory // 4)


def parse_json(raw: bytes, *, place: str, finite: bool = True) -> Any:
    """Strict JSON: UTF-8 without byte order mark, each key once, no NaN, no Infinity.

    Of a key that stands twice one reader takes the first value, another the last.

    Parameters
    ----------
    finite
        Whether NaN and Infinity are refused, which some configurations hold.

    Raises
    ------
    InputError
        With the place; what the file holds is never said.
    """
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        fix = "save as UTF-8 without it"
        raise InputError("begins with a byte order mark", where=place, fix=fix)
    try:
        return json.loads(
            raw.decode(),
            # What is no whole number is none of its constants either: a ValueError.
            parse_constant=int if finite else None,
            object_pairs_hook=_once,
        )
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8", where=place, fix="save as UTF-8") from error
    except json.JSONDecodeError as error:
        # Of the decoder's message, its kind and position: never a piece of the text.
        what = f"is not JSON (line {error.lineno}, column {error.colno})"
        if error.lineno == 1:
            what = f"is not JSON (column {error.colno})"
        raise InputError(what, where=place, fix=_fix_of_json(error)) from error
    except KeyError as error:
        what = "has an object with a repeated key"
        raise InputError(what, where=place, fix="keep the one that is meant") from error
    except (ValueError, RecursionError) as error:
        what = "holds NaN, Infinity, too long a number or too deep a nesting"
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise KeyError
    return found


def check_regular(path: Path, *, follow: bool = False) -> None:
    """Refuse what another library must not open; as :func:`open_regular` does."""
    open_regular(path, follow=follow).close()


def field_path(place: Sequence[str | int], schema: Mapping[str, Any]) -> str:
    """Where a file does not fit its schema, in names of the schema alone.

    A key that a file brings may be anything, text of the data too: it is left blank.
    """
    parts = (schema, *schema.get("$defs", {}).values())
    properties = {name for part in parts for name in part.get("properties", {})}
    return ".".join(
        str(one) if isinstance(one, int) or one in properties else "*" for one in place
    )


@contextlib.contextmanager
def temporary(folder: Path, *, mode: int = 0o600) -> Iterator[tuple[Path, IO[bytes]]]:
    """A file under a name of its own; gone in the end, unless renamed.

    Its writer holds a lock on it: :func:`sweep` leaves it alone as long as that lives.

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
            # Before it was locked, a sweep may have taken it for a left one.
            if path.exists():
                try:
                    yield path, file
                finally:
                    path.unlink(missing_ok=True)
                return


def sweep(folder: Path) -> None:
    """Remove what killed commands left half-written in a folder.

    That are regular files of this user under the names of :func:`temporary` on which
    nobody holds a lock: an ended process holds none.
    """
    for path in folder.glob(".spark-*.part"):
        with contextlib.suppress(OSError):  # locked, or gone
            state = path.lstat()
            if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid():
                with open_regular(path) as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


_swept: set[str] = set()


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
        if (place := os.path.realpath(path.parent)) not in _swept:
            sweep(path.parent)
            _swept.add(place)
        with temporary(path.parent, mode=mode) as (part, file):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> OutputError:
    """What is said of a file or folder that cannot be written."""
    what = f"cannot be written ({error.strerror or error})"
    fix = "check the path, its permissions and free space, then run again"
    return OutputError(what, where=str(path), fix=fix)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write UTF-8 text whole or not at all."""
    write_atomically(path, lambda file: file.write(text.encode()), mode=mode)


def check_writable(folder: Path) -> None:
    """Fail now, not after hours of scoring, if a folder cannot be written; sweep it.

    It is not made: a command that fails for another reason leaves nothing behind.

    Raises
    ------
    OutputError
        If it cannot.
    """
    sweep(folder)
    place = next(filter(os.path.lexists, (folder, *folder.parents)))
    try:
        # It has no name: nothing of it is left, however this process ends.
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise cannot_write(folder, error) from error


@contextlib.contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file, after whoever holds it; nothing is left of it.

    A folder that was made for it goes, too, if it stayed empty.

    Raises
    ------
    InputError
        If another process holds it and this one does not ``wait``.
    OutputError
        If the file cannot be made.
    """
    import filelock

    made = [folder for folder in path.parents if not folder.exists()]
    lock = filelock.FileLock(path, timeout=-1 if wait else 0)
    try:
        while not lock.is_locked:
            # One that ended may take the folder along that it made.
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
            for folder in made:
                folder.rmdir()


BLANK_DIGEST = f"sha256:{'0' * 64}"
"""What stands under ``"seal"`` until :func:`sealed` puts the checksum there."""

_SEAL = re.compile(rb'"seal": ?"sha256:([0-9a-f]{64})"')
# A flipped bit leaves one of the two: it never makes a file one without a seal.
_SEAL_MARKS = (b'"seal"', b'"sha256:')

DAMAGED = "is damaged: it holds other bytes than were written"

Fact = dict[str, Any]
"""``bytes`` and ``sha256`` of a file, or of its beginning."""


def sealed(data: bytes) -> bytes:
    """The bytes of JSON or safetensors, with the seal in the place of ``BLANK_DIGEST``.

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
    """:func:`intact` of a file, which is not read into memory as a whole."""
    if not path.stat().st_size:  # nothing can be mapped; and nobody sealed nothing
        return False
    with open_regular(path) as file:
        return intact(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def intact(data: bytes | mmap.mmap) -> bool | None:
    """Whether bytes are those that were sealed; ``None``: they carry no seal."""
    seal = _SEAL.search(data)
    if seal is None:
        return False if any(data.find(mark) >= 0 for mark in _SEAL_MARKS) else None
    return _digest(data, *seal.span(1)).encode() == seal[1]


def _digest(data: bytes | mmap.mmap, start: int, end: int) -> str:
    view = memoryview(data)
    digest = hashlib.sha256(view[:start])
    digest.update(b"0" * (end - start))
    digest.update(view[end:])
    return digest.hexdigest()


_memo: dict[tuple[str, int, int, int], str] = {}


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes; memoised on path, size, mtime and inode.

    Links are followed: it tells nothing of what the file holds.
    """
    state = path.stat()
    key = (str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino)
    if key not in _memo:
        with open_regular(path, follow=True) as file:
            _memo[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _memo[key]


def fact(data: bytes) -> Fact:
    """Size and SHA-256 of bytes."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def fact_of(path: Path) -> Fact:
    """Size and SHA-256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def fault(path: Path, told: object, *, grows: bool = False) -> str | None:
    """What is wrong with a file, in words; ``None``: nothing.

    Parameters
    ----------
    told
        What was written down of it, a :data:`Fact`.
    grows
        The fact is of the file's beginning.
    """
    told = told if isinstance(told, Mapping) else {}
    size, sha256 = told.get("bytes"), told.get("sha256")
    if not isinstance(size, int) or not isinstance(sha256, str):
        return "has no checksum that can be read"
    try:
        if not path.is_file():
            return "is gone"
        there = path.stat().st_size
        if there < size or (there > size and not grows):
            return f"holds {there} bytes, and {size} were written"
        if there == size:
            # A whole file is hashed once a process, however often it is asked for.
            return None if sha256_file(path) == sha256 else DAMAGED
        with open_regular(path) as file:
            # Mapped: a file may grow to more than fits into memory.
            begun = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else b""
            same = hashlib.sha256(begun).hexdigest() == sha256
        return None if same else DAMAGED
    except OSError as error:
        return f"cannot be read ({error.strerror or type(error).__name__})"


_SCHEME = re.compile(r"(?:[^=\s\[]+=)?\[?([A-Za-z][\w.+-]+):/")
_BUCKETS = frozenset(
    "s3 s3a s3n gs gcs az abfs abfss wasb wasbs adl hdfs dbfs oci oss r2".split()
)
_ADDRESSES = _BUCKETS | {"http", "https", "ftp", "sftp", "ssh", "file"}


def elsewhere(value: object) -> str | None:
    """What to do with an address in the place of a path, which would name a folder."""
    scheme = _SCHEME.match(str(value)) if isinstance(value, str | Path) else None
    schemes = _ADDRESSES if isinstance(value, Path) else _BUCKETS
    if scheme is None or scheme[1].lower() not in schemes:
        return None
    return "give a folder: copy from or to it, or mount it (rclone, gcsfuse, s3fs)"


def nearest(path: Path) -> str | None:
    """What to do about a path that is not there: the one beside it of a close name."""
    with suppress(OSError):
        if not path.exists():
            # Without their endings: any two tables would be alike.
            stems = {one.stem: one for one in sorted(path.parent.iterdir())}
            for near in get_close_matches(path.stem, stems, n=1):
                return f"did you mean {stems[near]}?"
    return None


def instead(path: str | Path, otherwise: str) -> str:
    """What to do with a path that is not what was wanted."""
    path = Path(path).expanduser()
    return elsewhere(path) or nearest(path) or otherwise


def no_such_path(path: str | Path, *, otherwise: str = "check the path") -> InputError:
    """Return the error about a path that does not exist, whatever it should be.

    Parameters
    ----------
    otherwise
        What to do where no path of a close name is beside it.
    """
    fix = instead(path, otherwise)
    return InputError("there is no such file or folder", where=str(path), fix=fix)


def is_missing(path: str | Path) -> bool:
    """Whether a path does not exist; one that may not be looked at does."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
