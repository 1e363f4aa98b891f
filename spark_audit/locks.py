"""Locks and leases on files: whoever dies lets go of its own, however it dies.

A lock is the kernel's. Not every file system tells one machine of another's locks, and
some keep those of a machine that died: a lease has a heartbeat, too.
"""

from __future__ import annotations

import fcntl
import os
import platform
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from spark_audit.errors import InputError
from spark_audit.files import cannot_write, open_regular, read_whole

FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW

BEAT, DEAD = 10.0, 60.0
"""Seconds between two heartbeats of a lease, and without any until its owner on another
machine counts as dead. It may live and have slept: what is leased is work that may be
done twice."""


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


@dataclass(frozen=True)
class Held:
    """What a lease's file tells, whether its owner lives, and if on this machine."""

    told: str
    alive: bool
    here: bool


class Lease:
    """A file that says who is at work on something, and what they tell of it.

    An owner on this machine holds it as long as the kernel says so, one on another as
    long as its heart beats by the file system's clock.
    """

    def __init__(self, path: Path, file: IO[str], told: str) -> None:
        self.path, self._file = path, file
        file.seek(0)
        file.truncate()
        file.write(f"{_machine()}\n{told}")
        file.flush()
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    @classmethod
    def take(cls, path: Path, told: str = "") -> Lease | None:
        """The lease, also after an owner that has died; ``None``: another has it.

        Raises
        ------
        OutputError
            As :func:`locked` does.
        """
        while True:
            file = locked(path, wait=False)
            if file is not None:
                found = _read(os.pread(file.fileno(), 1 << 16, 0), path, blocked=False)
                if not found.alive:
                    return cls(path, file, told)
                file.close()
                return None
            try:
                other = held(path)
            except OSError as error:
                raise cannot_write(path.parent, error) from error
            if other is not None and other.alive:
                return None
            if other is not None and not other.here:
                # Its machine died, and its lock did not.
                path.unlink(missing_ok=True)

    @property
    def lost(self) -> bool:
        """Whether somebody has removed the file."""
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Let go of it; nothing is left."""
        self._ended.set()
        if not self.lost:
            self.path.unlink(missing_ok=True)
        self._file.close()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(OSError, ValueError):
                os.utime(self._file.fileno())


def held(path: Path) -> Held | None:
    """Who holds the lease of a file; ``None`` where there is none.

    Raises
    ------
    OSError
        If it is no file of its folder, or cannot be read.
    """
    try:
        with open_regular(path) as file:
            blocked = False
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                blocked = True
            return _read(read_whole(file), path, blocked=blocked)
    except FileNotFoundError:
        return None


def _read(raw: bytes, path: Path, *, blocked: bool) -> Held:
    machine, _, told = raw.decode("utf-8", errors="replace").partition("\n")
    # Whoever has just made the file has locked it, and not yet written.
    here = machine in (_machine(), "")
    return Held(told, blocked if here else _age(path) < DEAD, here)


def _age(path: Path) -> float:
    """Seconds since a heartbeat, by the clock of the file system: that of all."""
    with suppress(FileNotFoundError), tempfile.TemporaryFile(dir=path.parent) as now:
        return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime
    return DEAD


@cache
def _machine() -> str:
    """The machine since it was started: what has one kernel has its locks."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{platform.node()} {boot}"
