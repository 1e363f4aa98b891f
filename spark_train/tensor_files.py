"""Read and write tensors in files, with a checksum."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor

from spark_audit.errors import OutputError
from spark_audit.files import BLANK_DIGEST, intact_file, sealed, write_atomically

TRAIN_AGAIN = "remove the run folder and train again"
"""Advice on a damaged file of a run."""


def write_tensors(
    path: Path, tensors: dict[str, Tensor], *, mode: int = 0o644, **about: str
) -> None:
    """Write tensors of any shapes, with texts, whole or not at all, with a checksum.

    Parameters
    ----------
    about
        Texts for the file's metadata, by name.

    Raises
    ------
    OutputError
        If they cannot be written.
    """
    data = sealed(save_tensors(tensors, metadata={**about, "seal": BLANK_DIGEST}))
    write_atomically(path, lambda file: file.write(data), mode=mode)


def read_tensors(
    path: Path, *, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Read the tensors of :func:`write_tensors` onto a device.

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
            "is gone or damaged", where=str(path), fix=TRAIN_AGAIN
        ) from error
