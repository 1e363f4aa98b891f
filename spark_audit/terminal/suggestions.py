"""What a path that cannot be used was perhaps meant to be, and where that goes."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from difflib import get_close_matches
from glob import glob
from pathlib import Path

from spark_audit.files import data_bytes, read_regular

_KIND = re.compile(rb'"kind":\s*"spark-audit-(manifest|report)"')
_HOLDS = {
    "report.json": "report",
    "run.json": "checkpoint",
    "adapter_config.json": "checkpoint",
    "config.json": "checkpoint",
}
TABLES = (".csv", ".tsv", ".parquet", ".xlsx", ".arrow")
_READ = {*TABLES, *(f".{one}" for one in "json jsonl txt toml gguf".split())}
_READ |= {"", ".safetensors", ".bin", ".pt", ".pth", ".html", ".md"}
_GOES = {
    "manifest": "it is a manifest: `spark-audit all --manifest` reads it",
    "report": "it is a report: `spark-audit report`, `gate` and `compare` read it",
    "checkpoint": "it is a checkpoint: `spark-audit all --ckpt` reads it, or --base",
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
    scheme = _SCHEME.match(str(value)) if isinstance(value, str | Path) else None
    schemes = _ADDRESSES if isinstance(value, Path) else _BUCKETS
    if scheme is None or scheme[1].lower() not in schemes:
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
    suggestion = elsewhere(path) or goes(path, wanted=wanted) or nearest(path, wanted)
    return suggestion or otherwise or "check the path"


def goes(path: Path, *, wanted: str) -> str | None:
    """Where something goes that is known to be something else than was wanted."""
    kind = _kind(path)
    return _GOES[kind] if kind is not None and kind != wanted else None


def nearest(path: Path, wanted: str = "") -> str | None:
    """What to do about a path that is not there: the one beside it of a close name.

    Where it is known what was ``wanted``, nothing of another kind is named.
    """
    with suppress(OSError):
        if path.exists():
            return None
        # Without their endings: any two tables would be alike.
        stems = {
            one.stem: one
            for one in sorted(path.parent.iterdir())
            # Scripts and pictures are never meant.
            if one.is_dir() or one.suffix in _READ
        }
        for near in get_close_matches(path.stem, stems):
            if not wanted or goes(stems[near], wanted=wanted) is None:
                return f"did you mean {stems[near]}?"
    return None


def expanded(value: str) -> list[str]:
    """The paths that a shell would have made of a quoted ``~`` or pattern."""
    text = os.path.expanduser(value)
    name, equals, rest = text.partition("=")
    if equals and not os.path.exists(text) and rest.startswith("~"):
        text = f"{name}={os.path.expanduser(rest)}"
    if not any(one in text for one in "*?") or os.path.exists(text):
        return [text]
    return sorted(glob(text)) or [text]


def _kind(path: Path) -> str | None:
    with suppress(OSError):
        if path.is_dir():
            kinds = (kind for name, kind in _HOLDS.items() if (path / name).exists())
            return next(kinds, "data" if any(path.glob("*.jsonl")) else None)
        if path.suffix in TABLES:
            return "table"
        if path.suffix == ".jsonl":
            return "data"
        if path.suffix in (".safetensors", ".bin", ".pt"):
            return "checkpoint"
        if path.is_file():
            raw = read_regular(path, follow=True, most=data_bytes())
            # Keys are sorted: this one stands behind all the text.
            if match := _KIND.search(raw):
                return match[1].decode()
            # An object a line.
            if raw.startswith(b"{") and b"}\n{" in raw.replace(b"\r", b""):
                return "data"
    return None
