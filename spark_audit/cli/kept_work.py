"""Which commands of ``spark-audit`` keep nothing of interrupted work.

This module is imported before all others, and imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Sequence

COMMANDS_THAT_START_AGAIN = (
    "data",
    "inspect",
    "report",
    "persons",
    "compare",
    "verify",
    "epsilon",
    "gate",
)
"""Commands and groups of commands that keep nothing of interrupted work."""

RESUMABLE_BUILD = ("manifest", "build")
"""The one command of ``manifest`` that keeps something: the scores of the base."""

GENERATED = "generated"
"""The audit of files, which reads them again."""

THROUGH = "--through"
"""Its option that also scores a model, whose scores are kept."""


def keeps_nothing(arguments: Sequence[str]) -> bool:
    """Return whether the command starts again from the beginning if it is interrupted.

    Parameters
    ----------
    arguments
        Words that were typed after the program's name.

    Examples
    --------
    >>> keeps_nothing(["data", "inject", "rows.jsonl"])
    True
    >>> keeps_nothing(["manifest", "build"]), keeps_nothing(["nll", "--ckpt", "a"])
    (False, False)
    """
    # Without a command, the program prints its help.
    command = arguments[0] if arguments else ""
    if not command or command.startswith("-"):
        return True

    if command == RESUMABLE_BUILD[0]:
        return tuple(arguments[:2]) != RESUMABLE_BUILD
    if command == GENERATED:
        options = [word.partition("=")[0] for word in arguments]
        return THROUGH not in options
    return command in COMMANDS_THAT_START_AGAIN
