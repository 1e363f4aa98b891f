"""Run ``spark-audit`` or ``python -m spark_audit``, with interrupts handled at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from spark_audit.cli.kept_work import keeps_nothing
from spark_audit.terminal.interrupts import start


def _load() -> Callable[[Sequence[str]], int]:
    """Import the program, and return its function from typed words to the exit code."""
    # Arrow's own allocator keeps freed memory: a third of all memory for conclusions.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from spark_audit.cli.main import run

    return run


def main() -> None:
    """Run the console script."""
    start("spark-audit", _load, keeps_nothing=keeps_nothing)


if __name__ == "__main__":
    main()
