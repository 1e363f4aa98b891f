"""How many cores there are to use."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """Cores that this process may use: as many as torch has threads, or would have."""
    if torch := sys.modules.get("torch"):
        count: int = torch.get_num_threads()
        return count
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdecimal() else len(os.sched_getaffinity(0))


def use_threads(count: int) -> int:
    """Have torch compute with so many threads; how many it was before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return before
