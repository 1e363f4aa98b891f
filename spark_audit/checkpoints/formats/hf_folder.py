"""A folder that transformers reads itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from spark_audit.checkpoints import specs, untrusted, weight_files
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.errors import CheckpointError

_WRAPPED = ("module.", "_orig_mod.", "_module.", "base_model.model.")


def hf_folder(path: Path, loading: specs.Loading) -> Checkpoint:
    """Full weights that transformers reads from their folder.

    Raises
    ------
    CheckpointError
        If the folder holds an adapter too, code, no weights, or the weights of a
        wrapped model.
    """
    if (path / "adapter_config.json").exists():
        what = "holds full weights and an adapter: which of them is meant?"
        raise CheckpointError(what, fix="put the adapter into a folder of its own")
    config = untrusted.read_config(path, trusted=loading.trust_remote_code)
    files = weight_files.files_of(path)
    read = partial(weight_files.merged, files)
    state = read()
    weight_files.check_filled(state)
    for name in state:
        if name.startswith(_WRAPPED) or ".lora_" in name:
            what = f"the weights are those of a wrapped model (tensor {name})"
            raise CheckpointError(what, fix=f"give the file itself: {files[0].name}")
    return Checkpoint(config, files, read, path, folder=path, whole=True)
