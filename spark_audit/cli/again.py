"""Answer a command that would only do the same again with what it printed before.

After an audit, the record of its report (``pipeline/inputs_record.py``) also holds what
the command printed. If the same words are typed in the same environment, and neither
this program nor any file has changed, the text is printed again, and nothing is
imported that audits need. In any other case the command runs as usual.

``main.py`` calls :func:`show_again` before it reads the options, and ``audit.py`` calls
:func:`keep_shown` at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from spark_audit.messages import say
from spark_audit.pipeline.inputs_record import (
    INPUTS_FILE,
    REPORTS,
    Record,
    folders_with_record,
    is_current,
    program_sha256,
    read_record,
    write_record,
)
from spark_audit.provenance import sha256_json

VARIABLES_OF_SHELL = ("_", "SHLVL", "OLDPWD")
"""Variables that differ between two commands of one shell, and that nothing reads."""

CONFIG_VARIABLE = "SPARK_AUDIT_CONFIG"
CONFIG_OPTION = "--config"
"""A file of options is no input of a report, so its changes are not noticed here."""

MAX_SHOWN_CHARACTERS = 100_000
"""Longest output that is kept; ``--json`` prints a whole report."""


_typed_at_start: dict[tuple[str, ...], str] = {}
"""Words of the command that runs -> their hash when it began. Libraries change the
environment while they are imported."""


def nothing_to_do(created: str) -> str:
    """Return the message that a report is kept as it is."""
    return (
        "nothing to do: checkpoints, manifest, options and program are those of the "
        f"report of {created}"
    )


def show_again(words: Sequence[str]) -> bool:
    """Print what these words printed before, if they would only do the same again.

    Parameters
    ----------
    words
        Words that were typed after the program's name.

    Returns
    -------
    bool
        Whether the command is answered.
    """
    _typed_at_start.clear()
    try:
        typed_sha256 = _typed_sha256(words)
    # The working directory is gone.
    except OSError:
        return False
    _typed_at_start[tuple(words)] = typed_sha256
    for folder in _typed_folders(words):
        record = read_record(folder)
        if record is None:
            continue
        shown = _output_in(record)
        if shown is None:
            continue

        # What takes least is compared first.
        if shown["typed"] != typed_sha256 or shown["program"] != program_sha256():
            continue
        if not is_current(record):
            continue

        say(nothing_to_do(shown["created"]))
        sys.stdout.write(shown["text"])
        for message in shown["messages"]:
            say(message)
        return True
    return False


def keep_shown(
    words: Sequence[str],
    folder: Path,
    *,
    created: str,
    text: str,
    messages: Sequence[str],
) -> None:
    """Add to a report's record what its command has printed.

    Parameters
    ----------
    words
        Words that were typed after the program's name.
    folder
        The folder of the report.
    created
        When the report was made.
    text
        What was printed to stdout.
    messages
        Messages behind it, on stderr.
    """
    typed_sha256 = _typed_at_start.get(tuple(words))
    if typed_sha256 is None or _uses_config(words) or len(text) > MAX_SHOWN_CHARACTERS:
        return
    record = read_record(folder)
    if record is None or not is_current(record):
        return

    shown = {
        "typed": typed_sha256,
        "program": program_sha256(),
        "created": created,
        "text": text,
        "messages": list(messages),
    }
    if record.get("shown") != shown:
        write_record(folder, {**record, "shown": shown})


@contextmanager
def copied_stdout() -> Iterator[StringIO]:
    """Yield a copy of everything that is printed to stdout in the meantime."""
    stream = sys.stdout
    copy = _Copied(stream)
    sys.stdout = copy
    try:
        yield copy.text
    finally:
        sys.stdout = stream


class _Copied:
    """A text stream that keeps a copy of what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.text = StringIO()

    def write(self, text: str) -> int:
        """Write a text, and keep it."""
        self.text.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _typed_folders(words: Sequence[str]) -> list[Path]:
    """Return the report folders with a record that words may mean.

    They are the words themselves, what stands behind ``=`` in them, and the folders in
    which reports lie whose folder was not typed.
    """
    if _uses_config(words):
        return []

    folders = []
    for word in words:
        for path in (word, word.partition("=")[2]):
            # An unknown user's home stays as it is typed.
            folder = Path(os.path.expanduser(path))
            if path and os.path.isfile(folder / INPUTS_FILE):
                folders.append(folder)
    return folders + folders_with_record(REPORTS)


def _uses_config(words: Sequence[str]) -> bool:
    """Return whether a command has a file of options."""
    is_typed = any(word.startswith(CONFIG_OPTION) for word in words)
    return is_typed or CONFIG_VARIABLE in os.environ


def _typed_sha256(words: Sequence[str]) -> str:
    """Return a hash of the words and of all that affects their meaning and output.

    That is the working directory, the environment, and the terminal.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in VARIABLES_OF_SHELL
    }
    sizes: list[list[int]] = []
    for descriptor in range(3):
        try:
            sizes.append([*os.get_terminal_size(descriptor)])
        # It is no terminal, or is closed.
        except OSError:
            sizes.append([])
    terminal = [sys.stdout.isatty(), sys.stdout.encoding, sizes]
    # Words and variables may hold bytes that are no text, which JSON does not take.
    typed = repr([list(words), os.getcwd(), sorted(variables.items())])
    return sha256_json([typed, terminal])


def _output_in(record: Record) -> Record | None:
    """Return the output that a record holds; ``None`` without one, or if damaged."""
    shown = record.get("shown")
    if not isinstance(shown, dict) or not isinstance(shown.get("messages"), list):
        return None
    texts = [shown.get(key) for key in ("typed", "program", "created", "text")]
    texts += shown["messages"]
    return shown if all(isinstance(text, str) for text in texts) else None
