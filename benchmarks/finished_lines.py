"""The file of finished lines of a benchmark, which resumes where it was interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeAlias

from spark_audit.errors import InputError

Line: TypeAlias = dict[str, Any]


def read(path: Path, *fields: str) -> list[Line]:
    """Return the finished lines of a file; none if there is no file.

    A line that an interrupt cut short is left out, so that it is made again.

    Parameters
    ----------
    fields
        What each line must have.

    Raises
    ------
    InputError
        If a line lacks a field, as those of another benchmark do, or if the file is
        no file of lines.
    """
    if not path.exists():
        return []
    text = path.read_text("utf-8", errors="replace")
    lines = []
    for line_of_text in text.splitlines():
        try:
            lines.append(json.loads(line_of_text))
        except ValueError:
            continue

    # A file may be empty, or hold nothing but a line that was cut short.
    is_other_file = bool(text) and not lines and not text.startswith("{")
    for line in lines:
        is_other_file |= not isinstance(line, dict) or not set(fields) <= set(line)
    if is_other_file:
        raise InputError(
            "holds no lines of this benchmark",
            where=f"--out {path}",
            fix="give the file that it wrote, or a new one",
        )
    return lines


def append(path: Path, line: Line) -> None:
    """Append a line in one piece, since several processes write the same file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)
