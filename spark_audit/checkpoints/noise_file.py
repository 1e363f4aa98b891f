"""Read the frozen noise on input embeddings with which a checkpoint was trained.

It is in a file beside the checkpoint. Without it, the checkpoint is another model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch

from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.tensor_checks import (
    check_finite,
    check_floats,
    refuse_differences,
)
from spark_audit.checkpoints.weight_files import (
    NOISE_FILE,
    check_whole,
    read_all,
    read_safetensors,
)
from spark_audit.errors import CheckpointError
from spark_audit.files import sha256_file

_COPY = "copy the file of its run next to the adapter"


def frozen_noise(
    folder: Path, files: Iterable[Path], shape: Iterable[int]
) -> torch.Tensor | None:
    """Return the noise of a checkpoint, shape ``(V, H)``; ``None`` if there is none.

    Parameters
    ----------
    folder, files
        The checkpoint's folder and weight files. The header of an adapter's file
        identifies the noise, even if the files beside it were left behind.
    shape
        Shape ``(V, H)`` of the input embeddings and of the noise.

    Raises
    ------
    CheckpointError
        If it is missing, was changed, has another shape, or is not finite.
    """
    # spark-train writes the hash beside an adapter and into the adapter's header.
    sha256 = check_whole(folder).get("noise_sha256")
    for file in files:
        if sha256 is None and file.suffix == ".safetensors":
            sha256 = read_safetensors(file)[1].get("noise_sha256")

    if os.path.lexists(folder / NOISE_FILE):
        return _read_noise(folder / NOISE_FILE, sha256, shape)
    if sha256 is not None:
        problem = (
            f"{NOISE_FILE} is missing: it was trained with noise on its input "
            "embeddings"
        )
        raise CheckpointError(problem, fix=_COPY)
    return None


def _read_noise(path: Path, sha256: object, shape: Iterable[int]) -> torch.Tensor:
    """Return the noise of a file, shape ``(V, H)``.

    Parameters
    ----------
    sha256
        Hash of the file with which the checkpoint was trained; ``None``: unknown.
    """
    untrusted.check_inside(path)
    state = read_all((path,))
    check_floats(state)
    refuse_differences(
        {name: tensor.shape for name, tensor in state.items()},
        {"noise": torch.Size(shape)},
        noun=f"{NOISE_FILE}: tensor",
        fix="give the base it was drawn for by --base",
    )
    check_finite(state)

    # Noise of another run may have the same shape.
    if sha256 is not None and sha256_file(path) != sha256:
        problem = f"{NOISE_FILE} is not the file that it was trained with"
        raise CheckpointError(problem, fix=_COPY)
    return state["noise"]
