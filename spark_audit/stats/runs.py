"""Runs: unbroken sequences of tokens that share a property."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Run(NamedTuple):
    """A run of positions: its first one, and how many it has."""

    start: int
    length: int


def longest_run(is_member: ArrayLike) -> Run:
    """Return the longest unbroken run of true values, the first of equally long ones.

    Parameters
    ----------
    is_member
        Shape ``(n,)``, bool.

    Examples
    --------
    >>> longest_run([False, True, True, False, True])
    Run(start=1, length=2)
    >>> longest_run([False])
    Run(start=0, length=0)
    """
    # A false value on either side gives each run a rise and a fall.
    mask = np.concatenate([[False], np.asarray(is_member, dtype=bool), [False]])
    changes = np.diff(mask.astype(np.int8))  # (n + 1,)
    starts = np.flatnonzero(changes == 1)  # (runs,)
    ends = np.flatnonzero(changes == -1)  # (runs,), behind the last position
    if not len(starts):
        return Run(start=0, length=0)

    lengths = ends - starts
    longest = int(lengths.argmax())
    return Run(start=int(starts[longest]), length=int(lengths[longest]))
