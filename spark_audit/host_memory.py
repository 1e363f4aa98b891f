"""How the end of memory is told from other faults, whichever library meets it."""

from __future__ import annotations

import errno
import re
from pathlib import Path

_SAID = re.compile(
    r"out of memory|(cannot|can't|could not|failed to|unable to) allocate( \S+)? memory"
    r"|not enough memory|unable to mmap|bad_alloc|failed to map segment"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_SUPPORTED|PT_DEVMEM Allocation"
    r"|mha_graph\.execute",
    re.IGNORECASE,
)
_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
# The loader's own store of a fixed size, however much memory there is.
_FIXED = "static TLS block"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says that memory has ended.

    numpy's and Arrow's are ``MemoryError``, torch's has a class of its own, others say
    it in words only: torch on a CPU, compiled libraries, and what cannot be imported.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        kind, text = type(cause).__name__, str(cause)
        in_words = isinstance(cause, RuntimeError | ImportError | OSError)
        if (
            isinstance(cause, MemoryError)
            or kind == "OutOfMemoryError"
            or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
            or ((in_words or kind == "SafetensorError") and _SAID.search(text))
            and _FIXED not in text
        ):
            return True
        cause = cause.__cause__ or (
            None if cause.__suppress_context__ else cause.__context__
        )
    return False


def free_bytes() -> int | None:
    """Memory that can be taken here without swapping; ``None`` where it is not told.

    That of the machine, or of the container where that has less.
    """
    limits = []
    try:
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
        most = int((_GROUP / "memory.max").read_text())
        kept = (_GROUP / "memory.stat").read_text().split()
        cached = int(kept[kept.index("inactive_file") + 1])
        used = int((_GROUP / "memory.current").read_text())
        limits.append(max(most - used + cached, 0))
    except (OSError, ValueError, KeyError):
        pass  # not Linux, or no container, or one without a bound
    return min(limits, default=None)
