"""What a privacy option makes of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_train.loop import Phase
    from spark_train.methods.method import Method
    from spark_train.stream import Stream


@dataclass(frozen=True)
class Protected:
    """A method's phases under a privacy option.

    Attributes
    ----------
    phases
        What is trained.
    facts
        What ``run.json`` says of the option.
    during
        Holds while anything of the run is computed, answers too.
    noise
        A file that belongs to every adapter of the run.
    """

    phases: list[Phase]
    facts: Mapping[str, Any]
    during: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)
    noise: Path | None = None


@dataclass(frozen=True)
class Option:
    """A privacy option: what it makes of a method, and the settings that it reads."""

    protect: Callable[[Stream, Method], Protected]
    reads: tuple[str, ...]
    summary: str | None
