"""Run ``spark-train`` or ``python -m spark_train``, with interrupts handled at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_audit.terminal.interrupts import start
from spark_train.kept_work import keeps_nothing


def _load() -> Callable[[Sequence[str]], int]:
    from spark_train.cli import run

    return run


def main() -> None:
    """Run the console script."""
    start("spark-train", _load, keeps_nothing=keeps_nothing)


if __name__ == "__main__":
    main()
