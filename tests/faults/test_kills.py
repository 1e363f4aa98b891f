"""A command that was killed and is begun again leaves what an undisturbed one does."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed import LINES, Commands, left

FEW = {"import": 3, "inject": 3, "build": 2, "render": 2, "audit": 2, "train": 2}
"""Command -> how many of its operations are tried where time is short."""


def check(
    commands: Commands, fresh: Callable[[str], Path], name: str, few: int
) -> None:
    """Kill the command at some of its file operations, or at all of them."""
    whole = fresh(name)
    ended = commands.run(whole, LINES[name])
    assert ended.code == 0, ended.err
    expected = left(whole)
    places = range(1, ended.operations + 1)
    chosen = random.Random(few).sample(places, few) if few else places
    for at in chosen:
        folder = fresh(name)
        assert commands.run(folder, LINES[name], at=at).code == -signal.SIGKILL
        again = commands.run(folder, LINES[name])
        assert again.code == 0, (at, again.err)
        assert left(folder) == expected, at


@pytest.mark.parametrize("name", FEW)
def test_a_command_killed_at_some_file_operations(
    name: str, commands: Commands, fresh: Callable[[str], Path]
) -> None:
    check(commands, fresh, name, FEW[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_a_command_killed_at_every_file_operation(
    name: str, commands: Commands, fresh: Callable[[str], Path]
) -> None:
    check(commands, fresh, name, 0)
