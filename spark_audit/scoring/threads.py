"""Count the cores that a process may use, and set the threads of torch."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


def cores() -> int:
    """Return the number of cores that this process may use.

    It is the number of threads that torch has, or would have. Torch is not imported for
    this, because it takes seconds.
    """
    if torch := sys.modules.get("torch"):
        n_threads: int = torch.get_num_threads()
        return n_threads
    n_threads_asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if n_threads_asked.isdecimal():
        return int(n_threads_asked)
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
