"""The processes of a run, which share rows and agree on sums.

With a single process every function here does nothing but return its input. Functions
that wait for the other processes must be called by all of them, in the same order:
:func:`summed_over_processes`, :func:`gathered` and the end of :func:`together`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, cuda, distributed

from spark_audit.errors import InputError, SparkError

T = TypeVar("T")


def assemble(device: str) -> str:
    """Join the processes of ``accelerate launch`` or ``torchrun``; return the device.

    Parameters
    ----------
    device
        The device of a single process. With several processes, each has its own GPU, or
        all use the CPU.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return device
    from accelerate import PartialState

    on_cpu = device == "cpu" or not cuda.is_available()
    return str(PartialState(cpu=on_cpu).device)


def n_processes() -> int:
    """Return how many processes there are."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def rank() -> int:
    """Return the number of this process; 0 writes the files."""
    return distributed.get_rank() if n_processes() > 1 else 0


def share(items: Sequence[T]) -> list[T]:
    """Return the items of this process: every ``n``-th one of ``n`` processes."""
    return list(items[rank() :: n_processes()])


def summed_over_processes(tensor: Tensor) -> Tensor:
    """Sum a tensor of any shape over all processes, in place, and return it."""
    if n_processes() > 1:
        with _with_connection():
            distributed.all_reduce(tensor)
    return tensor


def gathered(items: list[T]) -> list[T]:
    """Return the lists of all processes, one after the other."""
    if n_processes() == 1:
        return items
    from accelerate.utils import gather_object

    with _with_connection():
        return list(gather_object(items))


@contextmanager
def together() -> Iterator[None]:
    """Run a block in all processes, and stop all of them if one has an error in it.

    Each process waits at the end of the block for the others. Nothing inside the block
    may wait for other processes.

    Raises
    ------
    SparkError
        In the first process: the error of the first process that has one.
    SystemExit
        In the other processes, with the exit code of that error.
    """
    own_errors: list[SparkError] = []
    try:
        yield
    except SparkError as error:
        own_errors = [error]

    # Outside of the try block, because a process with an error also takes part here.
    errors = gathered(own_errors)
    if not errors:
        return
    # Only the first process reports, and the others end silently.
    if rank() > 0:
        raise SystemExit(errors[0].exit_code)
    raise errors[0]


@contextmanager
def _with_connection() -> Iterator[None]:
    """Turn a lost connection to another process into an error of one line."""
    try:
        yield
    except RuntimeError as error:
        # A process that ends closes its connections, and the others notice that.
        raise InputError(
            "another process of the run has stopped; its message says why"
        ) from error
