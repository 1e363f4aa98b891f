"""What spark-train writes beside the weights: checksums, the base, frozen noise."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.locate import check_inside, read_json
from spark_audit.checkpoints.models import refuse_differences
from spark_audit.checkpoints.weight_files import (
    check_finite,
    check_floats,
    merged,
    safetensors_file,
)
from spark_audit.errors import CheckpointError
from spark_audit.files import DAMAGED, fault, intact, read_regular, sha256_file

NOISE = "frozen_noise.safetensors"
"""Beside a checkpoint: what is added to its input embeddings, one row a token."""
NOISE_ADDED = "the frozen noise next to it is added to input embeddings"
# As spark-train calls it.
_TOLD = "trained_on.json"


def check_whole(folder: Path) -> dict[str, Any]:
    """What spark-train put beside an adapter, its files held against their checksums.

    Raises
    ------
    CheckpointError
        With the name of a file that is not as it was written.
    """
    place = folder / _TOLD
    if not os.path.lexists(place):
        return {}  # of another maker: there is nothing to hold them against
    told = read_json(place)
    seal, files = intact(read_regular(place)), told.get("files")
    if seal is None and files is None:
        return told
    faults: dict[str, str | None] = {_TOLD: DAMAGED}
    if seal and isinstance(files, dict) and all(Path(n).name == n for n in files):
        faults = {name: fault(folder / name, fact) for name, fact in files.items()}
    for name, what in faults.items():
        if what is not None:
            fix = "copy the adapter's folder again, or train again"
            raise CheckpointError(f"{name} {what}", fix=fix)
    return told


def written_down(folder: Path, files: Iterable[Path]) -> tuple[str | None, str | None]:
    """What spark-train writes down with a checkpoint, ``None`` where it did not.

    Parameters
    ----------
    files
        The checkpoint's weights: the header of an adapter's file says which noise
        belongs to it, also where the files beside it were left behind.

    Returns
    -------
    tuple
        ``weights_sha256`` of the base that an adapter was trained on, and the SHA-256
        of the ``frozen_noise.safetensors`` that belongs to the checkpoint.

    Raises
    ------
    CheckpointError
        If a file is not as it was written.
    """
    told = check_whole(folder)
    noise, base = told.get("noise_sha256"), told.get("base_sha256")
    for path in files:
        if noise is None and path.suffix == ".safetensors":
            with safetensors_file(path) as file:
                noise = (file.metadata() or {}).get("noise_sha256")
    return base if isinstance(base, str) else None, noise


def frozen_noise(
    folder: Path, shape: Iterable[int], *, sha256: str | None = None
) -> torch.Tensor | None:
    """The noise that belongs to a checkpoint; ``None`` where there is none.

    Parameters
    ----------
    shape
        Of the input embeddings, ``(V, H)``.
    sha256
        Of the file, where the checkpoint's maker wrote it down: it must be there.

    Raises
    ------
    CheckpointError
        If it is missing, another file, of another shape, or not finite.
    """
    path, fix = folder / NOISE, "copy the file of its run next to the adapter"
    if not os.path.lexists(path):
        if sha256 is None:
            return None
        what = "is missing: it was trained with noise on its input embeddings"
        raise CheckpointError(f"{NOISE} {what}", fix=fix)
    check_inside(path)
    state = merged((path,))
    check_floats(state)
    given = {name: tensor.shape for name, tensor in state.items()}
    refuse_differences(
        given,
        {"noise": torch.Size(shape)},
        tensor=f"{NOISE}: tensor",
        fix="give the base it was drawn for by --base",
    )
    check_finite(state)
    if sha256 is not None and sha256_file(path) != sha256:
        what = "is not the file that it was trained with"
        raise CheckpointError(f"{NOISE} {what}", fix=fix)
    return state["noise"]
