"""Advice on a path that does not exist, or that is an address.

Readers of files raise :func:`no_such_path`. The command line also refuses paths before
any work, with :func:`is_missing` and :func:`elsewhere` (``terminal/flags.py``).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from spark_audit.errors import InputError

_ADDRESS = re.compile(r"(?:[^=\s\[]+=)?\[?([A-Za-z][\w.+-]+):/")
"""Pattern of an address, which may follow ``NAME=`` or ``NAME=[``; its group is the
scheme."""

_BUCKET_SCHEMES = frozenset(
    "s3 s3a s3n gs gcs az abfs abfss wasb wasbs adl hdfs dbfs oci oss r2".split()
)
"""Schemes of addresses in the storage of a cloud or a cluster."""

_ADDRESS_SCHEMES = _BUCKET_SCHEMES | {"http", "https", "ftp", "sftp", "ssh", "file"}
"""Schemes of all addresses that are no paths."""


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

    match = _ADDRESS.match(str(value))
    refused_schemes = _ADDRESS_SCHEMES if isinstance(value, Path) else _BUCKET_SCHEMES
    if match is None or match[1].lower() not in refused_schemes:
        return None
    return "give a folder: copy from or to it, or mount it (rclone, gcsfuse, s3fs)"


def nearest(path: Path) -> str | None:
    """Return a question about a file with a name similar to that of a missing path.

    None if the path exists, or if no file beside it has a similar name.
    """
    # Without a folder, or without access to it, there is no such question.
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
    path = Path(os.path.expanduser(path))
    return elsewhere(path) or nearest(path) or otherwise


def no_such_path(path: str | Path, *, otherwise: str = "check the path") -> InputError:
    """Return the error for a path that does not exist.

    Parameters
    ----------
    otherwise
        As for :func:`instead`.
    """
    return InputError(
        "there is no such file or folder",
        where=str(path),
        fix=instead(path, otherwise),
    )


def is_missing(path: str | Path) -> bool:
    """Return whether a path does not exist; one without access counts as existing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
