"""The processes of a run: each computes its rows, and sums are the same for all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, cuda, distributed

from spark_audit.errors import InputError, SparkError

T = TypeVar("T")


def assemble(device: str) -> str:
    """Join what ``accelerate launch`` or ``torchrun`` started; return the device.

    Parameters
    ----------
    device
        The device of a single process. Among several, each process has its own, or all
        have the CPU.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return device
    from accelerate import PartialState

    on_cpu = device == "cpu" or not cuda.is_available()
    return str(PartialState(cpu=on_cpu).device)


def world() -> int:
    """Return how many processes there are."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def rank() -> int:
    """Return the number of this process; 0 writes the files."""
    return distributed.get_rank() if world() > 1 else 0


def share(items: Sequence[T]) -> list[T]:
    """Return this process's part of what all have to do."""
    return list(items[rank() :: world()])


def added(tensor: Tensor) -> Tensor:
    """Add a tensor up over all processes, in place, and return it."""
    if world() > 1:
        with _reached():
            distributed.all_reduce(tensor)
    return tensor


def gathered(items: list[T]) -> list[T]:
    """Return the lists of all processes, one after the other."""
    if world() == 1:
        return items
    from accelerate.utils import gather_object

    with _reached():
        return list(gather_object(items))


@contextmanager
def together() -> Iterator[None]:
    """Wait until all are here; a fault of one stops them all, and the first raises it.

    Nothing inside may wait for other processes.

    Raises
    ------
    SparkError
        The fault of the lowest process that has one, in the first process.
    SystemExit
        In the others, with its exit code.
    """
    faults: list[SparkError] = []
    try:
        yield
    except SparkError as error:
        faults = [error]

    # Outside the try block: a process with a fault takes part in the exchange, too.
    if faults := gathered(faults):
        raise SystemExit(faults[0].exit_code) if rank() else faults[0]


@contextmanager
def _reached() -> Iterator[None]:
    """Refuse in one line where another process is gone."""
    try:
        yield
    except RuntimeError as error:
        # A process that ends closes its connections, which the others then miss.
        raise InputError(
            "another process of the run has stopped; its message says why"
        ) from error
