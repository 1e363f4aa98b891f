"""Keep files that a command replaces, in a folder beside them, under their date.

A file that is written again with the same bytes is not kept. Any other file is kept,
because it may have been made by hand, from other data or by another program.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from spark_audit.files import cannot_write, sha256_file
from spark_audit.messages import say

PREVIOUS = "previous"
"""The folder for replaced files; commands that read a folder skip it."""

DATE_FORMAT = "%Y-%m-%d-%H%M%S"
"""Format of a date in a file name, to the second."""


@contextmanager
def keeping_previous(outputs: Sequence[Path]) -> Iterator[None]:
    """Keep the files that the block replaces, and report their new places.

    A file ``data/a.jsonl`` is kept as ``data/previous/a-DATE.jsonl``, with the date of
    its last change. If the block fails, the files stay as the block left them.

    Parameters
    ----------
    outputs
        Files that the block may write; missing ones are skipped.

    Raises
    ------
    OutputError
        If a file cannot be kept. In this case the block does not run.
    """
    # Each output that exists, with a second name of the same file. A writer replaces
    # the output, and the second name keeps the old bytes.
    link_by_output: dict[Path, Path] = {}
    try:
        for output in outputs:
            if output.is_file():
                link_by_output[output] = _link_to(output)
        yield

        for output, link in link_by_output.items():
            if output.is_file() and sha256_file(output) != sha256_file(link):
                kept_file = _keep(output, link)
                say(f"{output} held something else, which is kept as {kept_file}")
    finally:
        # A link that was kept has been renamed.
        for link in link_by_output.values():
            link.unlink(missing_ok=True)


def _link_to(path: Path) -> Path:
    """Give a file a second name, under which it survives a replacement of the first.

    Raises
    ------
    OutputError
        If neither a link nor a copy can be made.
    """
    link = path.with_name(f".spark-{secrets.token_hex(8)}.previous")
    try:
        with suppress(OSError):  # a file system without links
            os.link(os.path.realpath(path), link)
            return link
        shutil.copy2(path, link)
    except OSError as error:
        raise cannot_write(link, error) from error
    return link


def _keep(output: Path, link: Path) -> Path:
    """Move a second name of a file into the folder for previous files; return its path.

    Raises
    ------
    OutputError
        If the file cannot be moved.
    """
    folder = output.parent / PREVIOUS
    date = datetime.fromtimestamp(link.stat().st_mtime).strftime(DATE_FORMAT)
    kept_file = unused(folder / f"{output.stem}-{date}{output.suffix}")
    try:
        # The replaced file may be private, whatever its own mode is.
        folder.mkdir(mode=0o700, exist_ok=True)
        os.replace(link, kept_file)
    except OSError as error:
        raise cannot_write(kept_file, error) from error
    return kept_file


def set_aside(path: Path) -> None:
    """Move a file that its folder no longer needs into the folder for previous files.

    Anything else than a file is left where it is, and so is a link to nothing.

    Raises
    ------
    OutputError
        If the file cannot be moved.
    """
    if path.is_file():
        kept_file = _keep(path, path)
        say(f"{path} is no part of the new report: it is kept as {kept_file}")


def unused(path: Path) -> Path:
    """Return the path, or the first unused name of ``NAME-2``, ``NAME-3`` ..."""
    number = 1
    unused_path = path
    while os.path.lexists(unused_path):
        number += 1
        unused_path = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return unused_path
