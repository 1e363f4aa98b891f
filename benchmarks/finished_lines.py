"""The file of finished lines of a benchmark, which resumes where it was interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]


def read(path: Path) -> list[Line]:
    """Return the finished lines of a file; none if there is no file.

    A line that an interrupt cut short is left out, so that it is made again.
    """
    if not path.exists():
        return []
    lines = []
    for text in path.read_text("utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def append(path: Path, line: Line) -> None:
    """Append a line in one piece, since several processes write the same file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)
