"""How many cores there are to use, and how fast they multiply, as busy as they are."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


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


def billions(device: str) -> float:
    """Thousand million operations a second of a product of float32 matrices.

    A GPU is asked where there is one and it may be used; else nothing heavy is loaded.
    """
    if device != "cpu" and Path("/dev/nvidia0").exists():
        import torch

        if torch.cuda.is_available():
            on_gpu = torch.rand(4096, 4096, device="cuda")

            def product() -> None:
                torch.mm(on_gpu, on_gpu)
                torch.cuda.synchronize()

            return 2 * 4096**3 / _seconds(product) / 1e9
    import numpy as np

    square = np.random.default_rng(0).random((768, 768), dtype=np.float32)
    return 2 * 768**3 / _seconds(lambda: square @ square) / 1e9


def _seconds(work: Callable[[], object]) -> float:
    """The median of the seconds of some goes, after one that warms up."""
    work()
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return sorted(spent)[len(spent) // 2]
