"""Locks on files: the kernel lets go of one when its owner dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

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
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
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


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock file, after whoever holds it; nothing is left of it.

    Raises
    ------
    OutputError
        As :func:`locked` does.
    """
    file = locked(path, wait=True)
    assert file is not None
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
