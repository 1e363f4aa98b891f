"""The workers of one command: whether their flags are the same, and who has ended it.

Each has a file in a folder of their own, which says its flags and which it locks while
it works. Who begins is held against those that work or have done their part; what
was killed or interrupted counts for nothing. The one that writes the report removes
the files of all.
"""

from __future__ import annotations

import fcntl
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_audit.errors import InputError, OutputError
from spark_audit.files import open_regular, parse_json, read_whole
from spark_audit.locks import alone

NOT_GIVEN = "not given"


class Told(BaseModel):
    """What the file of a worker says."""

    model_config = ConfigDict(strict=True, frozen=True)

    part: str
    flags: dict[str, str]
    done: bool


class Worker:
    """A worker, or a command that is its only one and has no file.

    Attributes
    ----------
    done
        Whether its part is done and others are awaited; else nothing is left of it.
    """

    def __init__(
        self, folder: Path, what: str, part: str | None, flags: Mapping[str, str]
    ) -> None:
        self.done = False
        self._folder, self._what, self._part = folder, what, part
        self._flags = dict(flags)
        self._path = folder / f"{what}.{secrets.token_hex(4)}.json"

    @property
    def ended(self) -> bool:
        """Whether another worker has written the report."""
        return self._part is not None and not self._path.exists()

    def finish(self) -> None:
        """The report is written: no part of it is done, or being done, any more."""
        if not self._folder.is_dir():
            return
        with self._alone():
            for path, told, _ in self._files():
                if told.flags == self._flags:
                    path.unlink(missing_ok=True)

    @contextmanager
    def at_work(self) -> Iterator[Worker]:
        """Hold its place among the others.

        Raises
        ------
        InputError
            If one of them has other flags.
        """
        if self._part is None:
            yield self
            return
        made = [path for path in self._folder.parents[:2] if not path.exists()]
        with self._alone():
            for path, told, works in self._files():
                if works or (told.done and told.part != self._part):
                    self._check(told, works=works)
                else:
                    path.unlink(missing_ok=True)
            file = self._path.open("x", encoding="utf-8")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._tell(file)
        with file:
            try:
                yield self
            finally:
                with self._alone():
                    if self.done and not self.ended:
                        self._tell(file)
                    else:
                        self._path.unlink(missing_ok=True)
                with suppress(OSError):  # something came of it
                    for folder in made:
                        folder.rmdir()

    def _tell(self, file: IO[str]) -> None:
        file.seek(0)
        file.truncate()
        told = {"part": self._part, "flags": self._flags, "done": self.done}
        file.write(json.dumps(told))
        file.flush()

    def _files(self) -> Iterator[tuple[Path, Told, bool]]:
        """Files of the same command, what they say, and if their owners are at work."""
        for path in sorted(self._folder.glob(f"{self._what}.*.json")):
            try:
                with open_regular(path) as file:
                    works = False
                    try:
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except BlockingIOError:
                        works = True
                    told = parse_json(read_whole(file), place=str(path))
                    yield path, Told.model_validate(told), works
            except OSError as error:
                raise OutputError(
                    f"cannot be read ({error.strerror})", where=str(path)
                ) from error
            except InputError:  # its owner was killed before it had told anything
                path.unlink(missing_ok=True)
            except ValidationError as error:
                raise OutputError(
                    "is not what a worker of this version writes",
                    where=str(path),
                    fix="remove it when no worker is at work",
                ) from error

    def _check(self, told: Told, *, works: bool) -> None:
        assert self._part is not None
        part, flags = told.part, told.flags
        differs = [
            f"{flag} {flags.get(flag, NOT_GIVEN)} (here {mine})"
            for flag, mine in self._flags.items()
            if flags.get(flag, NOT_GIVEN) != mine
        ]
        # What is left to do may be shared otherwise, but not by some of them.
        if works and part.partition("/")[2] != self._part.partition("/")[2]:
            differs.append(f"--shard {part}")
        if differs:
            raise InputError(
                f"worker {part} of this report has other flags: {', '.join(differs)}",
                where=f"--shard {self._part}",
                fix=f"give all the same; to begin anew, remove {self._folder}",
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with alone(self._folder / ".lock"):
            yield
        with suppress(OSError):  # the others' files are there
            self._folder.rmdir()
