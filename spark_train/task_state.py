"""What a method carries from task to task beside the adapter.

Importances and the like follow from rows and weights, but computing them again on
resume would cost what they cost the first time: they are kept in the run folder while
the run goes on, and removed when it is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from spark_audit.checksums import BLANK, intact_file, sealed
from spark_audit.errors import OutputError
from spark_audit.files import write_atomically
from spark_train.stream import CARRIED, Stream

Tensors = dict[str, dict[str, Tensor]]


class Carried:
    """Named groups of tensors after each task; a group has one tensor a weight.

    Without a run folder they are held in memory.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._held: dict[int, Tensors] = {}

    def keep(self, k: int, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keep what is known after task ``k``.

        The file of the task before stays until the next one: a run that is killed now
        begins with the end of task ``k`` again.
        """
        folder, processes = self._stream.folder, self._stream.processes
        plain = {
            group: {name: value.detach().cpu().clone() for name, value in some.items()}
            for group, some in tensors.items()
        }
        if folder is None:
            self._held[k] = plain
            return
        if processes.first:
            flat = {
                f"{group}:{name}": value.contiguous()
                for group, some in plain.items()
                for name, value in some.items()
            }
            place = folder / CARRIED / f"{self._stream.label(k)}.safetensors"
            write_tensors(place, flat, mode=0o600)
            if k > 1:
                old = folder / CARRIED / f"{self._stream.label(k - 2)}.safetensors"
                old.unlink(missing_ok=True)
        processes.wait()

    def read(self, k: int) -> Tensors:
        """What was kept after task ``k``, on the student's device.

        Raises
        ------
        OutputError
            If the file is gone, cannot be read, or is damaged.
        """
        folder, device = self._stream.folder, self._stream.student.device
        if folder is None:
            return {
                group: {name: value.to(device) for name, value in some.items()}
                for group, some in self._held[k].items()
            }
        place = folder / CARRIED / f"{self._stream.label(k)}.safetensors"
        groups: Tensors = {}
        for key, value in read_tensors(place, device=device).items():
            group, _, name = key.partition(":")
            groups.setdefault(group, {})[name] = value
        return groups


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, mode: int = 0o644
) -> None:
    """Write tensors whole or not at all.

    Raises
    ------
    OutputError
        If they cannot be written.
    """
    data = sealed(save(dict(tensors), metadata={"seal": BLANK}))
    write_atomically(path, lambda file: file.write(data), mode=mode)


def read_tensors(
    path: Path,
    *,
    device: torch.device | str = "cpu",
    needed: Collection[str] = (),
) -> dict[str, Tensor]:
    """Tensors of :func:`write_tensors`, on a device.

    Raises
    ------
    OutputError
        If the file is gone, cannot be read, or is damaged.
    """
    try:
        if intact_file(path) is False:
            raise ValueError("other bytes than were written")
        tensors: dict[str, Tensor] = load_file(path, device=str(device))
        if not tensors.keys() >= set(needed):
            raise ValueError("other tensors than were written")
        return tensors
    except (OSError, SafetensorError, ValueError) as error:
        raise OutputError(
            "is gone or damaged",
            where=str(path),
            fix="remove the run folder and train again",
        ) from error
