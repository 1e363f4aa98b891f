"""Open a folder that transformers itself can read."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from spark_audit.checkpoints import specs, tensor_checks, untrusted, weight_files
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.errors import CheckpointError

# Prefixes that wrappers add to the names of tensors.
_WRAPPER_PREFIXES = (
    "module.",
    "_orig_mod.",
    "_module.",
    "_forward_module.",
    "ema_model.",
    "averaged_model.",
    "base_model.model.",
    "pretrained_model.",
)


def hf_folder(path: Path, loading: specs.Loading) -> StoredCheckpoint:
    """Return the full weights of a folder with config.json, ignoring adapters in it.

    Raises
    ------
    CheckpointError
        If the configuration requires code, or if the folder holds no weights or those
        of a wrapped model.
    """
    config = untrusted.read_config(path, trusted=loading.trust_remote_code)
    files = weight_files.files_of(path)
    read = partial(weight_files.read_all, files)
    state = read()

    tensor_checks.check_filled(state)
    tensor_checks.refuse_other_names(
        state, model_type=str(config.get("model_type", ""))
    )
    for name in state:
        if name.startswith(_WRAPPER_PREFIXES) or ".lora_" in name:
            problem = f"the weights are those of a wrapped model (tensor {name})"
            raise CheckpointError(problem, fix=f"give the file itself: {files[0].name}")

    # Transformers would attach an adapter beside the weights, and it searches only the
    # folder itself for weights.
    has_adapter = (path / "adapter_config.json").exists()
    is_in_folder = all(file.parent == path for file in files)
    return StoredCheckpoint(
        config=config,
        files=files,
        read=read,
        config_folder=path,
        folder=path,
        is_read_by_transformers=is_in_folder and not has_adapter,
        notes=tuple(untrusted.notes_on_code(path)),
    )
