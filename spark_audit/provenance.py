"""What a figure depends on: versions, hashes, seeds."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
import zlib
from datetime import UTC, datetime
from typing import Any

PACKAGES = (
    "spark-audit torch transformers peft accelerate safetensors tokenizers numpy scipy "
    "scikit-learn pandas pyarrow faker"
).split()
"""Packages whose version a figure can depend on."""


def versions() -> dict[str, str]:
    """Return the versions of what a figure can depend on, without importing any of it.

    A package that is not installed is left out.
    """
    installed = {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, no blanks, UTF-8 and no NaN: the form to hash."""
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    ).encode()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of a value, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def seed_for(seed: int, *parts: object) -> int:
    """Return a 63-bit seed for one named purpose, the same on every machine.

    Parameters
    ----------
    parts
        What the random numbers are for: purposes that differ get other seeds.
    """
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    # Without its last bit it fits into a signed number of 64 bits.
    return int.from_bytes(digest[:8], "big") >> 1
