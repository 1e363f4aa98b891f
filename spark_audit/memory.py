"""How the end of memory is told from other faults, whichever library meets it."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator

_SAID = re.compile(
    r"out of memory|(cannot|can't|could not|failed to|unable to) allocate( \S+)? memory"
    r"|not enough memory|unable to mmap|bad_alloc|failed to map segment"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_SUPPORTED|PT_DEVMEM Allocation"
    r"|mha_graph\.execute",
    re.IGNORECASE,
)
# The loader's own store of a fixed size, however much memory there is.
_FIXED = "static TLS block"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says that memory has ended.

    numpy's and Arrow's are ``MemoryError``, torch's has a class of its own, others say
    it in words only: torch on a CPU, compiled libraries, and what cannot be imported.
    """
    return any(_says_so(one) for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (
            None if error.__suppress_context__ else error.__context__
        )


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    words = isinstance(error, (RuntimeError, ImportError, OSError)) or (
        type(error).__name__ == "SafetensorError"
    )
    return words and bool(_SAID.search(text := str(error))) and _FIXED not in text
