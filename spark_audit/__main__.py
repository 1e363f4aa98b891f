"""``python -m spark_audit`` and ``spark-audit``: an interrupt is one from the start."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from spark_audit.terminal.interrupts import start


def _load() -> Callable[[Sequence[str]], int]:
    # Arrow's own allocator keeps what was freed: a third of the memory of concluding.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from spark_audit.cli.main import run

    return run


def main() -> None:
    """Console script."""
    start("spark-audit", _load)


if __name__ == "__main__":
    main()
