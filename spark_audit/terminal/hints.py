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
    kind = _kind(path)
    if kind is not None and kind != wanted:
        return _GOES[kind]
    return nearest(path) or otherwise or "check the path"


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
        # Keys are sorted: this one stands behind all the text.
        if path.is_file() and (match := _KIND.search(path.read_bytes())):
            return match[1].decode()
    return None
