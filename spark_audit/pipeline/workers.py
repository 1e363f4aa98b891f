"""The workers of one command: whether their flags are the same, and who has ended it.

Each has a file in a folder of their own, which says its flags and which it leases while
it works. Who begins is held against those that work; what was killed or interrupted
counts for nothing. The one that writes the report removes the files of all.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_audit.errors import InputError, OutputError
from spark_audit.files import parse_json
from spark_audit.locks import Lease, alone, held

NOT_GIVEN = "not given"


class Told(BaseModel):
    """What the file of a worker says."""

    model_config = ConfigDict(strict=True, frozen=True)

    part: str
    flags: dict[str, str]


class Worker:
    """A worker, or a command that is its only one and has no file."""

    def __init__(
        self, folder: Path, what: str, part: str | None, flags: Mapping[str, str]
    ) -> None:
        self._folder, self._what, self._part = folder, what, part
        self._flags = dict(flags)
        self._lease: Lease | None = None

    @property
    def ended(self) -> bool:
        """Whether another worker has written the report."""
        return self._lease is not None and self._lease.lost

    def finish(self) -> None:
        """The report is written: no part of it is being done any more."""
        if not self._folder.is_dir():
            return
        with self._alone():
            for path, told in self._others():
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
            for _, told in self._others():
                self._check(told)
            self._lease = Lease.take(
                self._folder / f"{self._what}.{secrets.token_hex(4)}.json",
                json.dumps({"part": self._part, "flags": self._flags}),
            )
        assert self._lease is not None  # nobody else knows the name
        try:
            yield self
        finally:
            with self._alone():
                self._lease.release()
            with suppress(OSError):  # something came of it
                for folder in made:
                    folder.rmdir()

    def _others(self) -> Iterator[tuple[Path, Told]]:
        """Those at work on the same command; what others left is removed."""
        for path in sorted(self._folder.glob(f"{self._what}.*.json")):
            try:
                found = held(path)
                if found is None or not found.alive:
                    path.unlink(missing_ok=True)
                    continue
                told = parse_json(found.told.encode(), place=str(path))
                yield path, Told.model_validate(told)
            except OSError as error:
                raise OutputError(
                    f"cannot be read ({error.strerror})", where=str(path)
                ) from error
            except (InputError, ValidationError) as error:
                raise OutputError(
                    "is not what a worker of this version writes",
                    where=str(path),
                    fix="remove it when no worker is at work",
                ) from error

    def _check(self, told: Told) -> None:
        assert self._part is not None
        part, flags = told.part, told.flags
        differs = [
            f"{flag} {flags.get(flag, NOT_GIVEN)} (here {mine})"
            for flag, mine in self._flags.items()
            if flags.get(flag, NOT_GIVEN) != mine
        ]
        if part.partition("/")[2] != self._part.partition("/")[2]:
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
