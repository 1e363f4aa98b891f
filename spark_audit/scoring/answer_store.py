"""Store answers of endpoints, so that none is asked for twice.

Answers may hold identifiers, and each has a price. So every answer is written as soon
as it is there, one line of JSON in a file that only the owner can read, and a killed
command loses at most the answers that were on their way. Each process writes a file of
its own: a line that was cut by a kill is the last one of its file, and is left out.

The key of an answer hashes all that it depends on with a salt that stays in the folder,
so that a line tells no prompt.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from spark_audit import files
from spark_audit.checkpoints.text_answers import TextAnswer
from spark_audit.errors import OutputError
from spark_audit.provenance import sha256_json

SCHEMA = 1
"""Part of every key; it is raised when the same key would mean another request."""

SALT_BYTES = 32

SYNC_SECONDS = 1.0
"""Seconds after which written answers are forced to the disk."""

OWNER_ONLY = 0o600
"""Mode of the files."""


class AnswerStore:
    """A folder of answers; with ``None`` they are kept in memory.

    Attributes
    ----------
    folder
        Where they are.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._salt = b""
        self._answers: dict[str, TextAnswer] = {}
        self._file: IO[bytes] | None = None
        self._synced_at = 0.0
        self._lock = threading.Lock()
        if folder is not None:
            self._salt = _salt_of(folder)
            self.refresh()

    def key_of(self, facts: object) -> str:
        """Return the key of an answer, from all that it depends on as JSON."""
        digest = sha256_json([SCHEMA, facts])
        return hashlib.sha256(self._salt + digest.encode()).hexdigest()

    def __contains__(self, key: object) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> TextAnswer:
        return self._answers[key]

    def model_names(self, keys: Collection[str]) -> Counter[str]:
        """Count the answers under some keys by the name that the server gave itself."""
        return Counter(self._answers[key].model for key in keys if key in self._answers)

    def fingerprints(self, keys: Collection[str]) -> Counter[str]:
        """Count the answers under some keys by the server's fingerprint."""
        return Counter(
            self._answers[key].fingerprint for key in keys if key in self._answers
        )

    def add(self, key: str, answer: TextAnswer) -> None:
        """Write an answer; several threads may call it.

        Raises
        ------
        OutputError
            If the disk is full or the folder is gone.
        """
        line = json.dumps({"key": key, **asdict(answer)}, ensure_ascii=True)
        with self._lock:
            if self.folder is not None:
                self._write(self.folder, line.encode() + b"\n")
            self._answers[key] = answer

    def _write(self, folder: Path, line: bytes) -> None:
        """Append a line to this process's file; the first one makes it."""
        try:
            if self._file is None:
                name = f"{secrets.token_hex(16)}.jsonl"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                descriptor = os.open(folder / name, flags, OWNER_ONLY)
                self._file = os.fdopen(descriptor, "wb", buffering=0)
            self._file.write(line)
            if time.monotonic() - self._synced_at >= SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced_at = time.monotonic()
        except OSError as error:
            raise files.cannot_write(folder, error) from error

    def close(self) -> None:
        """Force what was written to the disk, and close the file."""
        with self._lock:
            if self._file is not None:
                os.fsync(self._file.fileno())
                self._file.close()
                self._file = None

    def refresh(self) -> None:
        """Read the answers that this or other processes have written."""
        if self.folder is None:
            return
        for path in sorted(self.folder.glob("*.jsonl")):
            for key, answer in _answers_in(path):
                self._answers[key] = answer

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process ask while the block runs, and read what it wrote."""
        if self.folder is None:
            yield
            return
        with files.alone(self.folder / ".asking.lock"):
            self.refresh()
            try:
                yield
            finally:
                self.close()


def _salt_of(folder: Path) -> bytes:
    """Return the salt of a folder, which is made with it."""
    path = folder / "salt"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            with files.alone(folder / ".salt.lock"):
                # Another process may have made it while this one waited.
                if not path.exists():
                    salt = secrets.token_bytes(SALT_BYTES)
                    files.write_bytes(path, salt, mode=OWNER_ONLY)
        salt = files.read_regular(path)
    except OSError as error:
        raise files.cannot_write(folder, error) from error
    if len(salt) != SALT_BYTES:
        raise OutputError(
            "is not the salt of stored answers",
            where=str(path),
            fix="remove the whole folder, or give another -o",
        )
    return salt


def _answers_in(path: Path) -> Iterator[tuple[str, TextAnswer]]:
    """Yield the answers of a file with their keys; lines of another form are left out.

    Raises
    ------
    OutputError
        If the file cannot be read.
    """
    try:
        content = files.read_regular(path, most=files.data_bytes())
    except OSError as error:
        raise OutputError("cannot be read", where=str(path)) from error

    for line in content.splitlines():
        try:
            record: dict[str, Any] = json.loads(line)
            key = record.pop("key")
            answer = TextAnswer(**record)
        # The last line of a killed command may be cut.
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        if isinstance(key, str) and isinstance(answer.text, str):
            yield key, answer
