"""Checksums: what was written is told from what a disk or a copy made of it.

A file that is replaced as a whole carries a seal: the SHA-256 of its own bytes with
zeros in the seal's place, so that file and checksum never are of two moments. Of files
that grow, or whose format is another's, size and SHA-256 stand in a sealed one.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_audit.files import open_regular
from spark_audit.provenance import sha256_file

BLANK = f"sha256:{'0' * 64}"
"""What stands under ``"seal"`` until :func:`sealed` puts the checksum there."""

_SEAL = re.compile(rb'"seal": ?"sha256:([0-9a-f]{64})"')
# A flipped bit leaves one of the two: it never makes a file one without a seal.
_MARKS = (b'"seal"', b'"sha256:')

DAMAGED = "is damaged: it holds other bytes than were written"

Fact = dict[str, Any]
"""``bytes`` and ``sha256`` of a file, or of its beginning."""


def sealed(data: bytes) -> bytes:
    """The bytes of JSON or safetensors, with the seal in the place of ``BLANK``.

    Raises
    ------
    ValueError
        If they have no such place.
    """
    seal = _SEAL.search(data)
    if seal is None:
        raise ValueError("no place for a seal")
    start, end = seal.span(1)
    return b"".join((data[:start], _digest(data, start, end).encode(), data[end:]))


def intact_file(path: Path) -> bool | None:
    """:func:`intact` of a file, which is not read into memory as a whole."""
    if not path.stat().st_size:  # nothing can be mapped; and nobody sealed nothing
        return False
    with open_regular(path) as file:
        return intact(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def intact(data: bytes | mmap.mmap) -> bool | None:
    """Whether bytes are those that were sealed; ``None``: they carry no seal."""
    seal = _SEAL.search(data)
    if seal is None:
        return False if any(data.find(mark) >= 0 for mark in _MARKS) else None
    return _digest(data, *seal.span(1)).encode() == seal[1]


def _digest(data: bytes | mmap.mmap, start: int, end: int) -> str:
    view = memoryview(data)
    digest = hashlib.sha256(view[:start])
    digest.update(b"0" * (end - start))
    digest.update(view[end:])
    return digest.hexdigest()


def fact(data: bytes) -> Fact:
    """Size and SHA-256 of bytes."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def fact_of(path: Path) -> Fact:
    """Size and SHA-256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def fault(path: Path, told: object, *, grows: bool = False) -> str | None:
    """What is wrong with a file, in words; ``None``: nothing.

    Parameters
    ----------
    told
        What was written down of it, a :data:`Fact`; without ``sha256`` its size alone
        is held against it.
    grows
        The fact is of the file's beginning.
    """
    told = told if isinstance(told, Mapping) else {}
    size, sha256 = told.get("bytes"), told.get("sha256")
    if not isinstance(size, int):
        return "has no checksum that can be read"
    try:
        if not path.is_file():
            return "is gone"
        there = path.stat().st_size
        if there < size:
            return f"holds {there} bytes of the {size} that were written"
        if there > size and not grows:
            return f"holds {there} bytes, and {size} were written"
        if sha256 is None:
            return None
        if there == size:
            # A whole file is hashed once a process, however often it is asked for.
            return None if sha256_file(path) == sha256 else DAMAGED
        digest = hashlib.sha256()
        with open_regular(path) as file:
            # In blocks: a file may grow to more than fits into memory.
            while size and (block := file.read(min(size, 1 << 20))):
                digest.update(block)
                size -= len(block)
        return None if digest.hexdigest() == sha256 else DAMAGED
    except OSError as error:
        return f"cannot be read ({error.strerror or type(error).__name__})"
