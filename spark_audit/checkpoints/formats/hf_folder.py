"""A Hugging Face folder: config.json with full weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from spark_audit.checkpoints.checkpoint import Checkpoint, Part
from spark_audit.checkpoints.locate import (
    WEIGHT_SUFFIXES,
    read_config,
)
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.weight_files import (
    check_filled,
    has_weights,
    merged,
    weight_files,
)
from spark_audit.errors import CheckpointError

_WRAPPED = ("module.", "_orig_mod.", "_module.", "base_model.model.")


def detect(path: Path) -> bool:
    """config.json, and no adapter unless full weights lie beside it."""
    if not (path / "config.json").exists():
        return False
    return not (path / "adapter_config.json").exists() or has_weights(path)


def hf_folder(path: Path, loading: Loading) -> Checkpoint:
    """Full weights that transformers reads from their folder.

    Raises
    ------
    CheckpointError
        If the folder holds an adapter too, code, no weights, or the weights of a
        wrapped model.
    """
    if (path / "adapter_config.json").exists():
        raise CheckpointError(
            "holds full weights and an adapter: which of them is meant?",
            fix="give the adapter in a separate folder, with --base for the weights",
        )
    config = read_config(path, trusted=loading.trust_remote_code)
    files = weight_files(path)
    if not files:
        others = sorted(p.name for p in path.iterdir() if p.suffix in WEIGHT_SUFFIXES)
        raise CheckpointError(
            "has a config.json, but no model.safetensors or pytorch_model.bin",
            fix=f"give the weights file itself ({others[0]})"
            if others
            else "copy the weights into the folder",
        )
    read = partial(merged, tuple(files))
    headers = read(True)
    check_filled(headers)
    for name in headers:
        if name.startswith(_WRAPPED) or ".lora_" in name:
            raise CheckpointError(
                f"the weights are those of a wrapped model (tensor {name})",
                fix=f"give the file itself: {files[0].name}",
            )
    weights = Part(config, tuple(files), read, path, whole=True)
    return Checkpoint(folder=path, weights=weights)
