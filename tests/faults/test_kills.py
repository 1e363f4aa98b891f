"""A command that was killed and is begun again leaves what an undisturbed one does."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from disturbed import LINES, SEED, Commands, left

FEW = {"import": 1, "inject": 1, "build": 1, "audit": 1, "train": 1}
"""Command -> how many of its operations are tried where time is short."""
EVERY = {"import": 1, "inject": 2, "build": 3, "audit": 8, "render": 15, "compare": 70}
EVERY |= {"train": 15, "relearn": 4, "all": 60, "score": 4}
"""Command -> every how many operations it is killed; FAULTS_EVERY: for all of them."""


def check(
    commands: Commands,
    fresh: Callable[[str], Path],
    name: str,
    choose: Callable[[random.Random, int], list[int]],
) -> None:
    """Kill the command at some of its file operations, each time in a fresh folder."""
    whole = fresh(name)
    ended = commands.run(whole, LINES[name])
    assert ended.code == 0, ended.err
    expected = left(whole)
    for at in choose(random.Random(SEED), ended.operations):
        folder = fresh(name)
        assert commands.run(folder, LINES[name], at=at).code == -signal.SIGKILL, at
        again = commands.run(folder, LINES[name])
        # Relearning does not write over what it has finished.
        finished = name == "relearn" and again.code == 2
        assert again.code == 0 or finished, (at, again.err)
        assert left(folder) == expected, at


@pytest.mark.parametrize("name", FEW)
def test_a_command_killed_at_some_file_operations_resumes(name, commands, fresh):
    def choose(rng: random.Random, operations: int) -> list[int]:
        return rng.sample(range(1, operations + 1), FEW[name])

    check(commands, fresh, name, choose)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_a_command_killed_at_every_nth_file_operation_resumes(name, commands, fresh):
    every = int(os.environ.get("FAULTS_EVERY", EVERY[name]))

    def choose(rng: random.Random, operations: int) -> list[int]:
        return list(range(rng.randint(1, every), operations + 1, every))

    check(commands, fresh, name, choose)
