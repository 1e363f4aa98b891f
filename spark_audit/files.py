"""Read only regular files, write files whole or not at all, and check their bytes.

Checksums show whether a disk or a copy changed what was written. A file that is always
replaced as a whole carries a seal: the SHA-256 of its own bytes, with zeros in place of
the seal. So the file and its checksum always belong together. For files that grow, and
for formats of others, a sealed file records size and SHA-256.

Which function to use: :func:`read_regular` and :func:`parse_json` to read,
:func:`write_text`, :func:`write_bytes` or :func:`write_atomically` to write,
:func:`sealed` and :func:`intact` for a file with a seal, :func:`fact_of` and
:func:`fault` for a file whose checksum stands in another one.
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
"""Bytes of the largest settings file that is read; real ones have at most 10 MB."""

_DATA_BYTES = 1 << 31
"""Bytes of the largest data file that is read as a whole."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Beginning of the text that Git LFS leaves in place of a large file."""

LFS_PULL = "fetch the file itself: git lfs pull"
"""Remedy for such a text."""

BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-8 and of both orders of UTF-16."""

BLANK_DIGEST = f"sha256:{'0' * 64}"
"""The value that a writer puts under ``"seal"``; :func:`sealed` replaces the zeros."""

_SEAL = re.compile(rb'"seal": ?"sha256:([0-9a-f]{64})"')
"""The seal in the bytes of a file, as JSON; its group is the checksum."""

_SEAL_MARKS = (b'"seal"', b'"sha256:')
"""Parts of a seal. A flipped bit leaves one of the two intact, so that a damaged seal
is not mistaken for a missing one."""

DAMAGED = "is damaged: it holds other bytes than were written"
"""Problem of a file whose bytes do not fit its seal or its recorded checksum."""

Fact = dict[str, Any]
"""``bytes``, the size of a file or of its beginning, and ``sha256``, its digest in
hex."""


def is_lfs_pointer(raw: bytes) -> bool:
    """Return whether the first bytes of a file are a pointer of Git LFS."""
    return raw.startswith(LFS_POINTER)


def lies_inside(path: Path, *, within: Path | None = None) -> bool:
    """Return whether a path, with links followed, lies in a folder (default: its own).

    In a snapshot of the hub's cache (``models--ORG--NAME/snapshots/REV``), files are
    links into ``blobs`` beside ``snapshots``. These files count as inside the snapshot.
    """
    folder = (within or path.parent).resolve()
    allowed_folders = [folder]
    for ancestor in (folder, *folder.parents):
        cache = ancestor.parent.parent
        if ancestor.parent.name == "snapshots" and cache.name.startswith("models--"):
            allowed_folders.append(cache / "blobs")

    # `Path.resolve` raises an error for circular links.
    target = Path(os.path.realpath(path))
    return any(target.is_relative_to(allowed) for allowed in allowed_folders)


def check_links(folder: Path, *inside: str) -> None:
    """Refuse a folder with links that lead writes or deletions outside of it.

    Parameters
    ----------
    inside
        Patterns, relative to the folder: of inner folders, outer ones first, and of
        files that are changed in place. Other files need no check, because a new file
        replaces a link.

    Raises
    ------
    InputError
        If one of them is a link to a place outside of the folder.
    """
    for pattern in inside:
        for path in sorted(folder.glob(pattern)):
            if not lies_inside(path, within=folder):
                raise InputError(
                    "is a link out of the folder",
                    where=str(path),
                    fix="remove it, or give a folder that you own",
                )


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading.

    Every reader opens files with this function, or calls :func:`check_regular`. In a
    folder from others, a FIFO would block for ever, a device would never end, and a
    link would lead to files of ours.

    Parameters
    ----------
    follow
        Whether to follow links out of the folder, because the user named this file.

    Raises
    ------
    OSError
        Also if the path is not a regular file, or is a link out of its folder.
    """
    if not follow and not lies_inside(path):
        raise OSError(errno.ELOOP, "is a link out of its folder", str(path))

    # Without O_NONBLOCK, a FIFO would wait for its writer. The kind of file is checked
    # after opening, so that nobody can swap the file in between.
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
    """Return the bytes of a regular file; like :func:`open_regular` otherwise.

    Parameters
    ----------
    most
        Limit on the bytes that are read. A file with holes can have any size without
        taking space on a disk.
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
    """Return the bytes that a data file may have to be read as a whole.

    The limit depends on the memory of this machine.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    return min(_DATA_BYTES, memory // 4)


def parse_json(raw: bytes, *, place: str, finite: bool = True) -> Any:
    """Parse strict JSON: UTF-8 without byte order mark, each key once, no NaN.

    Duplicate keys are refused, because one reader would use the first value and another
    the last.

    Parameters
    ----------
    place
        The file, for errors.
    finite
        Whether to refuse NaN and Infinity, which some configurations hold.

    Raises
    ------
    InputError
        Names the place, but never the content of the file.
    """
    if raw.startswith(BYTE_ORDER_MARKS):
        raise InputError(
            "begins with a byte order mark", where=place, fix="save as UTF-8 without it"
        )

    try:
        return json.loads(
            raw.decode(),
            # The decoder calls this for NaN and Infinity, and int("NaN") raises the
            # ValueError that is caught below.
            parse_constant=int if finite else None,
            object_pairs_hook=_object_of_unique_keys,
        )
    except UnicodeDecodeError:
        raise InputError("is not UTF-8", where=place, fix="save as UTF-8") from None
    except json.JSONDecodeError as error:
        # Only the position is taken from the decoder's message, never a piece of the
        # text.
        problem = f"is not JSON (line {error.lineno}, column {error.colno})"
        if error.lineno == 1:
            problem = f"is not JSON (column {error.colno})"
        raise InputError(problem, where=place, fix=_fix_of_json(error)) from None
    except KeyError:
        raise InputError(
            "has an object with a repeated key",
            where=place,
            fix="keep the one that is meant",
        ) from None
    except (ValueError, RecursionError):
        raise InputError(
            "contains NaN, Infinity, a number that is too long, or too many levels",
            where=place,
        ) from None


def _fix_of_json(error: json.JSONDecodeError) -> str:
    """Return advice on text that is not JSON, by the text at the failure."""
    if error.msg.startswith("Unterminated") or error.pos >= len(error.doc):
        return "its end is missing: make or copy the file again"

    before = error.doc[: error.pos].rstrip()
    rest = error.doc[error.pos :].lstrip()
    if rest.startswith(("//", "/*", "#")):
        return "remove the comment: JSON has none"
    if rest.startswith(("]", "}")) and before.endswith(","):
        return "remove the comma before the closing bracket"
    # From Python 3.13 on, the error stands at the comma itself, before the bracket.
    if rest.startswith(",") and rest[1:].lstrip().startswith(("]", "}")):
        return "remove the comma before the closing bracket"
    if rest.startswith(("'", "None", "True", "False")):
        return "it is written as Python prints it: write it with json.dump"
    return "write it with a program that writes JSON, such as json.dump of Python"


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise a KeyError if a key occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise KeyError
    return content


def check_regular(path: Path, *, follow: bool = False) -> None:
    """Refuse a path that another library must not open; see :func:`open_regular`."""
    open_regular(path, follow=follow).close()


def without_examples(schema: dict[str, Any]) -> None:
    """Leave the examples of a class's docstring out of its JSON schema."""
    description, _, _ = schema["description"].partition("\n\nExamples\n")
    schema["description"] = description


def field_path(place: Sequence[str | int], schema: Mapping[str, Any]) -> str:
    """Return the path of a field that violates a schema, such as ``tasks.0.*.name``.

    Only names of the schema are shown: a key of the file itself may be anything, even
    text of the data, so a star replaces it.

    Parameters
    ----------
    place
        Keys and indices of the field, from the outermost one.
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
    """Open a new file under a temporary name; delete it at the end unless renamed.

    The writing process locks the file, so that :func:`sweep` spares it as long as the
    process lives.

    Raises
    ------
    OSError
        If the file cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    while True:
        path = folder / f".spark-{secrets.token_hex(8)}.part"
        with os.fdopen(os.open(path, flags, mode), "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            # The sweep of another process may have deleted the file before it was
            # locked. Then the next name is tried.
            if path.exists():
                try:
                    yield path, file
                finally:
                    path.unlink(missing_ok=True)
                return


def sweep(folder: Path) -> None:
    """Remove half-written files of killed commands from a folder.

    These are this user's regular files with names from :func:`temporary` that nobody
    locks: a process that has ended holds no lock.
    """
    for path in folder.glob(".spark-*.part"):
        with contextlib.suppress(OSError):  # locked, or gone
            state = path.lstat()
            is_own = state.st_uid == os.geteuid()
            if not stat.S_ISREG(state.st_mode) or not is_own:
                continue

            with open_regular(path) as file:
                # This raises an error if the writing process still has its lock.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


_swept: set[str] = set()
"""Folders that this process has already swept."""


def write_atomically(
    path: Path,
    write: Callable[[IO[bytes]], object],
    *,
    mode: int = 0o644,
) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename.

    The first write of a process into a folder sweeps the folder.

    Parameters
    ----------
    write
        Writes the content into the open file that it gets.
    mode
        Mode of the file, restricted by the process's umask.

    Raises
    ------
    OutputError
        If the folder cannot be written or the disk is full; no file is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.path.realpath(path.parent)
        if folder not in _swept:
            sweep(path.parent)
            _swept.add(folder)

        with temporary(path.parent, mode=mode) as (temporary_path, file):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary_path, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> OutputError:
    """Return the error about a file or a folder that cannot be written."""
    return OutputError(
        f"cannot be written ({error.strerror or error})",
        where=str(path),
        fix="check the path, its permissions and free space, then run again",
    )


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write UTF-8 text whole or not at all, as :func:`write_atomically` does."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write bytes whole or not at all, as :func:`write_atomically` does."""
    write_atomically(path, lambda file: file.write(data), mode=mode)


def check_writable(folder: Path) -> None:
    """Sweep a folder, and fail early, before hours of scoring, if it is not writable.

    The folder is not created, so that a command that fails for another reason leaves
    nothing behind.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    sweep(folder)
    existing = folder
    while not os.path.lexists(existing):
        existing = existing.parent
    try:
        # The test file has no name, so nothing stays behind, however this process ends.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise cannot_write(folder, error) from error


@contextlib.contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file while the block runs, and delete it at the end.

    If another process holds it, this one waits. A folder that was created for the lock
    file is deleted, too, if it is still empty.

    Raises
    ------
    InputError
        If another process holds the lock and ``wait`` is false.
    OutputError
        If the file cannot be made.
    """
    import filelock

    # Folders that are created below, the innermost first.
    new_folders = [folder for folder in path.parents if not folder.exists()]
    lock = filelock.FileLock(path, timeout=-1 if wait else 0)
    try:
        while not lock.is_locked:
            # Another process may delete its empty folder at its end, between these two
            # lines. Then the folder is made again.
            with contextlib.suppress(FileNotFoundError):
                path.parent.mkdir(parents=True, exist_ok=True)
                lock.acquire()
    except filelock.Timeout as error:
        raise InputError(
            "another process is writing to it",
            where=str(path.parent),
            fix="wait for it, or give another -o",
        ) from error
    except OSError as error:
        raise cannot_write(path.parent, error) from error

    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
        # A folder that is not empty raises an error and stays, with the outer ones.
        with contextlib.suppress(OSError):
            for folder in new_folders:
                folder.rmdir()


def sealed(data: bytes) -> bytes:
    """Return bytes of JSON or safetensors with a seal in place of ``BLANK_DIGEST``.

    Raises
    ------
    ValueError
        If they have no place for a seal.
    """
    seal = _SEAL.search(data)
    if seal is None:
        raise ValueError("no place for a seal")
    # The 64 digits of the seal, as offsets in bytes.
    start, end = seal.span(1)
    digest = _digest_with_blank_seal(data, start, end)
    return b"".join((data[:start], digest.encode(), data[end:]))


def intact_file(path: Path) -> bool | None:
    """Return :func:`intact` of a file, without reading all of it into memory."""
    if not path.stat().st_size:
        # An empty file cannot be mapped, and no file was sealed empty.
        return False
    with open_regular(path) as file:
        return intact(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def intact(data: bytes | mmap.mmap) -> bool | None:
    """Return whether sealed bytes are unchanged; ``None`` if they have no seal.

    The caller decides what a missing seal means: a file of others never has one.
    """
    seal = _SEAL.search(data)
    if seal is None:
        has_damaged_seal = any(data.find(mark) >= 0 for mark in _SEAL_MARKS)
        return False if has_damaged_seal else None

    start, end = seal.span(1)
    return _digest_with_blank_seal(data, start, end).encode() == seal[1]


def _digest_with_blank_seal(data: bytes | mmap.mmap, start: int, end: int) -> str:
    """Return the SHA-256 of bytes, with the digit 0 from ``start`` to ``end``."""
    view = memoryview(data)
    digest = hashlib.sha256(view[:start])
    digest.update(b"0" * (end - start))
    digest.update(view[end:])
    return digest.hexdigest()


_digest_by_state: dict[tuple[str, int, int, int], str] = {}
"""SHA-256 of files that were hashed, by path, size, time of change and inode."""


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file; a process hashes an unchanged file only once.

    Links are followed, which is safe because the digest does not show the content.
    """
    state = path.stat()
    file_state = (str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino)
    if file_state not in _digest_by_state:
        with open_regular(path, follow=True) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        _digest_by_state[file_state] = digest
    return _digest_by_state[file_state]


def fact(data: bytes) -> Fact:
    """Return the size and the SHA-256 of bytes."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def fact_of(path: Path) -> Fact:
    """Return the size and the SHA-256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def fault(path: Path, recorded_fact: object, *, grows: bool = False) -> str | None:
    """Return what is wrong with a file, in words; ``None`` if nothing is wrong.

    Parameters
    ----------
    recorded_fact
        The recorded :data:`Fact` about the file, as it was read back.
    grows
        Whether the file may have grown since: then the fact covers its beginning.
    """
    # A fact that was read back may be anything.
    recorded = recorded_fact if isinstance(recorded_fact, Mapping) else {}
    written_size = recorded.get("bytes")
    written_digest = recorded.get("sha256")
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
        # The file is mapped, because it may have grown beyond the memory.
        beginning = mmap.mmap(file.fileno(), n_bytes, prot=mmap.PROT_READ)
        return hashlib.sha256(beginning).hexdigest()
