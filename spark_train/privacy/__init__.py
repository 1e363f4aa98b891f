"""Privacy options of a run: one file each, around whatever method is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.registry import Entry, Registry
from spark_train.request import NONE

if TYPE_CHECKING:
    from spark_train.loop import Phase
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


Method: TypeAlias = "Entry[Callable[[Stream], list[Phase]]]"

PRIVACY: Registry[Callable[[Stream, Method], Protected]] = Registry(
    "spark_train.privacy", kind="privacy option", folder=Path(__file__).parent
)


def options() -> list[str]:
    """The values of ``--dp``."""
    return [NONE, *PRIVACY.names()]


def groups(name: str) -> tuple[str, ...]:
    """Groups of the settings that an option reads."""
    if name == NONE:
        return ()
    read: tuple[str, ...] = PRIVACY.get(name).part("reads")()
    return read
