"""Record the inputs of a figure: versions, hashes and seeds."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
import zlib
from datetime import UTC, datetime
from functools import cache
from typing import Any

PACKAGES = (
    "spark-audit torch transformers peft accelerate safetensors tokenizers numpy scipy "
    "scikit-learn pandas pyarrow faker"
).split()
"""Packages whose version can affect a figure."""


def versions() -> dict[str, str]:
    """Return the versions of packages that can affect a figure, without importing them.

    A package that is not installed is left out. A process reads them once: what it has
    imported stays as it is, whatever is installed later.
    """
    return dict(_installed_versions())


@cache
def _installed_versions() -> dict[str, str]:
    installed = {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def canonical_json(value: Any) -> bytes:
    """Return canonical JSON: sorted keys, no blanks, UTF-8, no NaN.

    Equal values give equal bytes on every machine, so that their hashes are equal.
    """
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

    Different purposes get different seeds, so that no draw depends on how many numbers
    another one took.

    Parameters
    ----------
    seed
        The user's seed.
    parts
        The purpose of the random numbers: texts and numbers, such as ``"order", 3``. A
        change of them changes every figure that is drawn with them.
    """
    # `repr` tells 1 from "1", and one part from two.
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    # 63 bits fit into a signed 64-bit number.
    return int.from_bytes(digest[:8], "big") >> 1
