"""Files of tensors of a run, with a checksum of their own."""

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
