"""Advice on a path that does not exist, or that is an address."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from spark_audit.errors import InputError

_ADDRESS_SCHEME = re.compile(r"(?:[^=\s\[]+=)?\[?([A-Za-z][\w.+-]+):/")
"""Pattern of an address, which may follow ``NAME=`` or ``NAME=[``."""

_BUCKETS = frozenset(
    "s3 s3a s3n gs gcs az abfs abfss wasb wasbs adl hdfs dbfs oci oss r2".split()
)
_ADDRESSES = _BUCKETS | {"http", "https", "ftp", "sftp", "ssh", "file"}


def elsewhere(value: object) -> str | None:
    """Return advice on an address in place of a path; None if it is not an address.

    As a path, the address would name a folder.

    Parameters
    ----------
    value
        Text or a path. In text only addresses of buckets count, because a checkpoint
        may have another address.
    """
    if not isinstance(value, str | Path):
        return None

    scheme = _ADDRESS_SCHEME.match(str(value))
    schemes = _ADDRESSES if isinstance(value, Path) else _BUCKETS
    if scheme is None or scheme[1].lower() not in schemes:
        return None
    return "give a folder: copy from or to it, or mount it (rclone, gcsfuse, s3fs)"


def nearest(path: Path) -> str | None:
    """Return a question about a file with a name similar to that of a missing path.

    None if the path exists, or if no file beside it has a similar name.
    """
    with suppress(OSError):
        if path.exists():
            return None

        # Names are compared without endings, because any two tables would be similar.
        path_by_stem = {near.stem: near for near in sorted(path.parent.iterdir())}
        for stem in get_close_matches(path.stem, path_by_stem, n=1):
            return f"did you mean {path_by_stem[stem]}?"
    return None


def instead(path: str | Path, otherwise: str) -> str:
    """Return advice on a path that is not suitable.

    Parameters
    ----------
    otherwise
        Advice if the path is not an address and no file beside it has a similar name.
    """
    path = Path(path).expanduser()
    return elsewhere(path) or nearest(path) or otherwise


def no_such_path(path: str | Path, *, otherwise: str = "check the path") -> InputError:
    """Return the error for a path that does not exist.

    Parameters
    ----------
    otherwise
        As for :func:`instead`.
    """
    fix = instead(path, otherwise)
    return InputError("there is no such file or folder", where=str(path), fix=fix)


def is_missing(path: str | Path) -> bool:
    """Return whether a path does not exist; one without access counts as existing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
