"""The processes of one run: each computes its rows, and sums are the same for all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Crew:
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
            torch.distributed.all_reduce(tensor)
        return tensor

    def collect(self, items: dict[str, T]) -> dict[str, T]:
        """What all processes have found, by key."""
        if self.world == 1:
            return items
        from accelerate.utils import gather_object

        return dict(gather_object(list(items.items())))

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            torch.distributed.barrier()


def assemble(device: str) -> tuple[Crew, str]:
    """The crew that ``accelerate launch`` or ``torchrun`` started, and the device.

    Parameters
    ----------
    device
        ``auto`` (CUDA when there is one), ``cpu``, ``cuda``.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return Crew(), device
    from accelerate import PartialState

    on_cpu = device == "cpu" or not torch.cuda.is_available()
    state = PartialState(cpu=on_cpu)
    return Crew(state.process_index, state.num_processes), str(state.device)
