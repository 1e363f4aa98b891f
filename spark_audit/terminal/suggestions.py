"""What a path that cannot be used was perhaps meant to be."""

from __future__ import annotations

import re
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

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


def nearest(path: Path) -> str | None:
    """What to do about a path that is not there: the one beside it of a close name."""
    with suppress(OSError):
        if not path.exists():
            # Without their endings: any two tables would be alike.
            stems = {one.stem: one for one in sorted(path.parent.iterdir())}
            for near in get_close_matches(path.stem, stems, n=1):
                return f"did you mean {stems[near]}?"
    return None


def instead(path: str | Path, otherwise: str) -> str:
    """What to do with a path that is not what was wanted."""
    path = Path(path).expanduser()
    return elsewhere(path) or nearest(path) or otherwise
