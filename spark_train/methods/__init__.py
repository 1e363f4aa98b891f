"""Methods: one file each, a function from the stream of tasks to its phases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.registry import Registry

if TYPE_CHECKING:
    from spark_train.loop import Phase
    from spark_train.stream import Stream

METHODS: Registry[Callable[[Stream], list[Phase]]] = Registry(
    "spark_train.methods", kind="method", folder=Path(__file__).parent
)

COMMON = ("loss", "lora")
REHEARSAL = ("replay.enabled", "replay.ratio", "replay.lambda", "replay.memory")
"""Settings of plain replay; distillation reads the whole group."""


def groups(name: str) -> tuple[str, ...]:
    """Names, or groups, of the settings that a method reads beside the common ones."""
    read: tuple[str, ...] = METHODS.get(name).part("reads")()
    return (*COMMON, *read)
