"""The record of what a finished report comes from, and whether that has changed.

It lies beside the report's evidence and holds the states (size, times, inode) of all
files that were read or written. This module imports nothing slow: a command that would
only do the same again answers by it at once.

``up_to_date.py`` writes the record, and compares it with a request. ``cli/again.py``
adds what the command has printed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from spark_audit.files import read_regular, write_text
from spark_audit.provenance import sha256_json, versions

REPORTS = Path("reports")
"""Where a report goes if the user gives no folder."""

INPUTS_FILE = Path("scores") / "inputs.json"
"""The record in a report folder: the states of files that its report comes from."""

STATES_IN_RECORD = ("inputs", "outputs", "scores")
"""Keys of a record with states of files: read, written, and parts of the score store.
"""

States: TypeAlias = dict[str, list[int]]
"""Path -> size, times and inode; an empty list where no file is."""

Record: TypeAlias = dict[str, Any]
"""The content of a record, as JSON."""


def folders_with_record(parent: Path) -> list[Path]:
    """Return the report folders in a folder that have a record."""
    # FOLDER/scores/inputs.json
    return [path.parents[1] for path in sorted(parent.glob(f"*/{INPUTS_FILE}"))]


def read_record(folder: Path) -> Record | None:
    """Return the record of a report folder; ``None`` if it has none or a damaged one.

    Whoever uses the record checks its values.
    """
    try:
        record = json.loads(read_regular(folder / INPUTS_FILE))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def write_record(folder: Path, record: Record) -> None:
    """Write the record of a report folder, readable by the owner only."""
    write_text(folder / INPUTS_FILE, json.dumps(record), mode=0o600)


def is_current(record: Record) -> bool:
    """Return whether all files of a record are as they were when it was written."""
    kept_states: States = {}
    for key in STATES_IN_RECORD:
        states = record.get(key)
        if not isinstance(states, dict):
            return False
        kept_states |= states
    return states_of(kept_states) == kept_states


def states_of(paths: Iterable[str | Path]) -> States:
    """Return the states of files and folders, by absolute path.

    A state is size (bytes), time of the last change of the content and of the inode
    (both in nanoseconds), and the inode's number.
    """
    states: States = {}
    for path in paths:
        absolute = os.path.abspath(path)
        # A missing file has an empty state: if it is added later, that is a change.
        states[absolute] = []
        # A damaged record may hold a path that no system has.
        with suppress(OSError, ValueError):
            stat = os.stat(absolute)
            states[absolute] = [
                stat.st_size,
                stat.st_mtime_ns,
                stat.st_ctime_ns,
                stat.st_ino,
            ]
    return states


def program_sha256() -> str:
    """Return a hash of all that computes: this program, and versions of libraries."""
    return sha256_json([versions(), _source_sha256()])


@cache
def _source_sha256() -> str:
    """Return a hash of the program's files, read once: a process runs what it read."""
    digest = hashlib.sha256()
    source = Path(__file__).parents[1]
    for path in sorted((*source.rglob("*.py"), *source.rglob("*.toml"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()
