"""What a method carries from task to task beside the adapter.

Importances and the like follow from rows and weights, but computing them again on
resume would cost what they cost the first time: they are kept in the run folder while
the run goes on, and removed when it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from spark_audit.checksums import BLANK, intact_file, sealed
from spark_audit.errors import OutputError
from spark_audit.files import write_atomically
from spark_train.stream import CARRIED, Stream


def keep(stream: Stream, k: int, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Keep named groups of tensors, which hold one for each weight, after task ``k``.

    The file of the task before stays until the next one: a run that is killed now
    begins with the end of task ``k`` again.
    """
    if stream.processes.first:
        tensors = {
            f"{group}:{name}": value.detach().cpu().contiguous()
            for group, some in groups.items()
            for name, value in some.items()
        }
        write_tensors(_place(stream, k), tensors, mode=0o600)
        if k > 1:
            _place(stream, k - 2).unlink(missing_ok=True)
    stream.processes.wait()


def kept(stream: Stream, k: int) -> dict[str, dict[str, Tensor]]:
    """What was kept after task ``k``, on the student's device.

    Raises
    ------
    OutputError
        If the file is gone, cannot be read, or is damaged.
    """
    tensors = read_tensors(_place(stream, k), device=stream.student.device)
    groups: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        group, _, name = key.partition(":")
        groups.setdefault(group, {})[name] = value
    return groups


def _place(stream: Stream, k: int) -> Path:
    assert stream.folder is not None
    return stream.folder / CARRIED / f"{stream.label(k)}.safetensors"


def write_tensors(
    path: Path, tensors: dict[str, Tensor], *, mode: int = 0o644, **about: str
) -> None:
    """Write tensors, and texts about them, whole or not at all, with a checksum.

    Raises
    ------
    OutputError
        If they cannot be written.
    """
    data = sealed(save(tensors, metadata={**about, "seal": BLANK}))
    write_atomically(path, lambda file: file.write(data), mode=mode)


def read_tensors(
    path: Path, *, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Tensors of :func:`write_tensors`, on a device.

    Raises
    ------
    OutputError
        If the file is gone, cannot be read, or is damaged.
    """
    try:
        if not intact_file(path):
            raise ValueError("other bytes than were written")
        return dict(load_file(path, device=str(device)))
    except (OSError, SafetensorError, ValueError) as error:
        raise OutputError(
            "is gone or damaged",
            where=str(path),
            fix="remove the run folder and train again",
        ) from error
