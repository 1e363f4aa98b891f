"""The processes of one run: each computes its rows, and sums are the same for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from spark_audit.errors import SparkError

T = TypeVar("T")


class ElsewhereError(SparkError):
    """Another process of the run failed, and tells why itself (exit 2)."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__("another process of the run has stopped; its message says why")


@dataclass(frozen=True)
class Processes:
    """One process of a run; alone by default.

    Attributes
    ----------
    rank, world
        Which process this is, and how many there are.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """The part of this process in what all have to do."""
        return list(items[self.rank :: self.world])

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            _exchange(lambda: torch.distributed.all_reduce(tensor))
        return tensor

    def collect(self, items: dict[str, T]) -> dict[str, T]:
        """What all processes have found, by key."""
        return dict(self.all(list(items.items())))

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            _exchange(torch.distributed.barrier)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A fault of one process stops them all, and one of them tells it.

        Nothing inside may wait for other processes.

        Raises
        ------
        SparkError
            The fault of the lowest process that has one, in the first process.
        ElsewhereError
            In the others.
        """
        fault: SparkError | None = None
        try:
            yield
        except SparkError as error:
            fault = error
        faults = [one for one in self.all([fault]) if one is not None]
        if faults:
            raise faults[0] if self.first else ElsewhereError

    def all(self, items: list[T]) -> list[T]:
        """The lists of all processes, one after the other."""
        if self.world == 1:
            return items
        from accelerate.utils import gather_object

        gathered: list[T] = _exchange(lambda: gather_object(items))
        return gathered


def _exchange(call: Callable[[], T]) -> T:
    try:
        return call()
    except RuntimeError as error:
        # A process that leaves closes its connections, and the others hear of it.
        raise ElsewhereError from error


def assemble(device: str) -> tuple[Processes, str]:
    """The processes that ``accelerate launch`` or ``torchrun`` started, and the device.

    Parameters
    ----------
    device
        ``auto`` (CUDA when there is one), ``cpu``, ``cuda``.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return Processes(), device
    from accelerate import PartialState

    on_cpu = device == "cpu" or not torch.cuda.is_available()
    state = PartialState(cpu=on_cpu)
    return Processes(state.process_index, state.num_processes), str(state.device)
