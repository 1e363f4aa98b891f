"""Privacy options of a run: one file each, around whatever method is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.registry import Entry, Registry
from spark_train.request import NONE

if TYPE_CHECKING:
    from spark_train.loop import Phase
    from spark_train.privacy.protected import Protected
    from spark_train.stream import Stream

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
