"""What a method is: its phases, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_train.loop import Phase
    from spark_train.stream import Stream

COMMON = ("loss", "lora")
REHEARSAL = ("replay.enabled", "replay.ratio", "replay.lambda", "replay.memory")
"""Settings of plain replay; distillation reads the whole group."""

UNKNOWN = "the method does not declare which rows it reads outside its steps"


@dataclass(frozen=True)
class Method:
    """A function from the stream of tasks to its phases.

    Attributes
    ----------
    reads
        Names, or groups, of the settings that it reads beside the common ones.
    no_epsilon
        Why no epsilon can be claimed for it under DP-SGD; empty where one can.
    summary
        Its first line is for ``spark-train methods``.
    """

    name: str
    phases: Callable[[Stream], list[Phase]]
    reads: tuple[str, ...] = ()
    no_epsilon: str = UNKNOWN
    summary: str | None = None
