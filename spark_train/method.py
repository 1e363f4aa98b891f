"""Methods, and their phases under a privacy option.

A new method is a function from the stream to its phases, mostly by
:func:`task_by_task`, and a :class:`Method` in ``training_methods/``, whose
``__init__.py`` lists all of them. A new privacy option is an :data:`Option` that is
listed in ``privacy.py`` and in ``DP`` of ``training_request.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TypeAlias

from spark_train.loop import Phase
from spark_train.stream import Stream

Phases: TypeAlias = Callable[[Stream], list[Phase]]
"""The function of a method: it turns the stream of tasks into phases, in order."""

COMMON = ("loss", "lora")
"""Groups of settings that every method reads."""

REHEARSAL = ("replay.enabled", "replay.ratio", "replay.lambda", "replay.memory")
"""Settings of plain replay; distillation reads the whole group."""

READS_NOT_DECLARED = "the method does not declare which rows it reads outside its steps"
"""Why no epsilon is claimed for a method that says nothing about it."""


@dataclass(frozen=True)
class Method:
    """A function from the stream of tasks to its phases, with settings to read.

    The first line of the function's docstring is what ``spark-train methods`` shows.

    Attributes
    ----------
    name
        The value of ``--method``.
    reads
        Names, or groups, of the settings that it reads beside the common ones.
    no_epsilon
        Why no epsilon can be claimed for it under DP-SGD; empty where one can.
    """

    name: str
    phases: Phases
    reads: tuple[str, ...] = ()
    no_epsilon: str = READS_NOT_DECLARED


def task_by_task(learn: Callable[[Stream, int], list[Phase]]) -> Phases:
    """Make a method from a function that returns the phases of task ``k``."""

    @wraps(learn)
    def phases(stream: Stream) -> list[Phase]:
        all_phases: list[Phase] = []
        for k in range(len(stream.tasks)):
            all_phases += learn(stream, k)
        return all_phases

    return phases


@dataclass(frozen=True)
class Protected:
    """A method's phases under a privacy option.

    Attributes
    ----------
    phases
        The phases to train.
    facts
        Entries of ``run.json`` about the option.
    during
        A context for all computation of the run, answers included.
    noise
        A file that belongs to every adapter of the run.
    """

    phases: list[Phase]
    facts: Mapping[str, object]
    during: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)
    noise: Path | None = None


Option = Callable[[Stream, Method], Protected]
"""A privacy option: it turns a method into protected phases."""
