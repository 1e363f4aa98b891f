"""Which commands of ``spark-train`` keep nothing of interrupted work.

This module is imported before all others, and imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Sequence

RESUMABLE_COMMAND = "run"
"""The one command that keeps its work, in the folder of the run."""


def keeps_nothing(arguments: Sequence[str]) -> bool:
    """Return whether the command starts again from the beginning if it is interrupted.

    Parameters
    ----------
    arguments
        Words that were typed after the program's name.

    Examples
    --------
    >>> keeps_nothing(["methods"]), keeps_nothing(["run", "--method", "er"])
    (True, False)
    """
    return list(arguments[:1]) != [RESUMABLE_COMMAND]
