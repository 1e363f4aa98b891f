"""Locks on files, the kernel's: whoever dies lets go of its own, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from spark_audit.errors import InputError
from spark_audit.files import cannot_write

FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


def locked(path: Path, *, wait: bool) -> IO[str] | None:
    """A lock file, held until it is closed; its folder is made.

    Its owner may remove the file, and the folder, as long as it holds it: who waits
    then takes the file that has its name now.

    Returns
    -------
    file
        ``None`` where another process holds it and this one does not ``wait``.

    Raises
    ------
    OutputError
        If the file cannot be made, or the file system has no locks.
    """
    try:
        while True:
            try:
                _make(path.parent)
                # A link would lead out of the folder.
                file = os.fdopen(os.open(path, FLAGS, 0o666), "r+")
            except FileNotFoundError:  # an owner that ended took the folder along
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                file.close()
                return None
            # Its owner may have removed it before this process got it.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
            file.close()
    except OSError as error:
        raise cannot_write(path.parent, error) from error


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # The library looks a second time, when another may have taken it along.
        if os.path.lexists(folder) and not folder.is_dir():
            raise


@contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file, after whoever holds it; nothing is left of it.

    A folder that was made for it goes, too, if it stayed empty.

    Raises
    ------
    InputError
        If another process holds it and this one does not ``wait``.
    OutputError
        As :func:`locked` does.
    """
    made = [p for p in path.parents if not p.exists()]
    file = locked(path, wait=wait)
    if file is None:
        raise InputError(
            "another process is writing to it",
            where=str(path.parent),
            fix="wait for it, or give another -o",
        )
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                for folder in made:
                    folder.rmdir()
