"""What a path that cannot be used was perhaps meant to be, and where that goes."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

_KIND = re.compile(rb'"kind":\s*"spark-audit-(manifest|report)"')
_HOLDS = {
    "report.json": "report",
    "run.json": "checkpoint",
    "adapter_config.json": "checkpoint",
    "config.json": "checkpoint",
    "manifest.json": "manifest",
}
TABLES = (".csv", ".tsv", ".parquet", ".xlsx", ".arrow")
_GOES = {
    "manifest": "it is a manifest: give it with --manifest",
    "report": "it is a report: `spark-audit report`, `gate` and `compare` read it",
    "checkpoint": "it is a checkpoint: give it with --ckpt, or --base",
    "table": "first `spark-audit data import FILE --task NAME -o DATA.jsonl`, "
    "which reads tables",
    "data": "it is data: `spark-audit manifest build --data` makes a manifest of it",
}

_SCHEME = re.compile(r"(?:[^=\s\[]+=)?\[?([A-Za-z][\w.+-]+):/")
_BUCKETS = frozenset(
    "s3 s3a s3n gs gcs az abfs abfss wasb wasbs adl hdfs dbfs oci oss r2".split()
)
_ADDRESSES = _BUCKETS | {"http", "https", "ftp", "sftp", "ssh", "file"}


def elsewhere(value: object) -> str | None:
    """What to do with an address in the place of a path, which would name a folder."""
    found = _SCHEME.match(str(value)) if isinstance(value, str | Path) else None
    known = _ADDRESSES if isinstance(value, Path) else _BUCKETS
    if found is None or found[1].lower() not in known:
        return None
    return "give a folder: copy from or to it, or mount it (rclone, gcsfuse, s3fs)"


def instead(path: str | Path, *, wanted: str, otherwise: str | None = None) -> str:
    """What to do with a path that is not what was wanted.

    Parameters
    ----------
    wanted
        ``manifest``, ``report``, ``checkpoint`` or ``data``.
    otherwise
        What is said where nothing is known of it.
    """
    path = Path(path).expanduser()
    known = elsewhere(path) or goes(path, wanted=wanted) or nearest(path)
    return known or otherwise or "check the path"


def goes(path: Path, *, wanted: str) -> str | None:
    """Where something goes that is known to be something else than was wanted."""
    kind = _kind(path)
    return _GOES[kind] if kind is not None and kind != wanted else None


def nearest(path: Path) -> str | None:
    """``did you mean X?``: what is called most like it, of a path that is not there."""
    with suppress(OSError):
        there = path
        while not there.parent.exists():
            there = there.parent
        if not there.exists():
            # Without their endings: any two tables would be alike.
            stems = {Path(name).stem: name for name in os.listdir(there.parent)}
            if near := get_close_matches(there.stem, stems, n=1):
                return f"did you mean {there.parent / stems[near[0]]}?"
    return None


def _kind(path: Path) -> str | None:
    with suppress(OSError):
        if path.is_dir():
            found = (kind for name, kind in _HOLDS.items() if (path / name).exists())
            return next(found, None)
        if path.suffix in TABLES:
            return "table"
        if path.suffix == ".jsonl":
            return "data"
        if path.suffix in (".safetensors", ".bin", ".pt"):
            return "checkpoint"
        if path.is_file():
            raw = path.read_bytes()
            # Keys are sorted: this one stands behind all the text.
            if match := _KIND.search(raw):
                return match[1].decode()
            # An object a line.
            if raw.startswith(b"{") and b"}\n{" in raw.replace(b"\r", b""):
                return "data"
    return None
