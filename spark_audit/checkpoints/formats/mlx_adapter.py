"""Open a folder by mlx-lm's LoRA training: ``adapters.safetensors``.

MLX stores ``lora_a`` as (in, rank) and ``lora_b`` as (rank, out), and multiplies their
product by ``scale``. PEFT's tensors are the transposed ones, with alpha = scale * rank.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from spark_audit.checkpoints import specs, tensor_checks, untrusted, weight_files
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.tensor_checks import State
from spark_audit.checkpoints.weight_files import PEFT_PREFIX
from spark_audit.errors import CheckpointError, shown

MLX_ADAPTER_FILE = "adapters.safetensors"
_MLX_TENSOR = re.compile(r"(?P<module>.+)\.(?P<part>lora_a|lora_b|m)")
_LAYER_FRONT = re.compile(r"^.*?\.\d+\.")
_PEFT_NAMES = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight"}
_FUSE = (
    "fuse it: mlx_lm.fuse --model BASE --adapter-path FOLDER --save-path OUT "
    "--dequantize, and give OUT"
)


def is_mlx_adapter(path: Path) -> bool:
    """Return whether a folder holds MLX's file, and no file of PEFT."""
    has_mlx_file = (path / MLX_ADAPTER_FILE).is_file()
    peft_file = weight_files.weights_of(path, weight_files.ADAPTER_FILES)
    return has_mlx_file and peft_file is None


def mlx_adapter(path: Path, loading: specs.Loading) -> StoredCheckpoint:
    """Return a LoRA or DoRA adapter on the given base.

    Raises
    ------
    CheckpointError
        If no base is given, the scale is unknown, or layers other than linear ones were
        trained.
    """
    settings = untrusted.read_json(path / "adapter_config.json")
    untrusted.check_inside(path / MLX_ADAPTER_FILE)

    # MLX also trains whole weights, in a file of the same name.
    training_type = settings.get("fine_tune_type", "lora")
    if training_type not in ("lora", "dora"):
        problem = f"is a training of the type {shown(training_type)!r} by MLX, not LoRA"
        raise CheckpointError(problem, fix=_FUSE)
    if loading.base is None:
        problem = "the adapter of MLX names no base here"
        raise CheckpointError(problem, fix="give --base")

    read = partial(_peft_tensors, path / MLX_ADAPTER_FILE)
    state = read()
    tensor_checks.check_filled(state)
    scale = _scale(settings)

    # PEFT's lora_A is (rank, in).
    ranks = Counter[int]()
    for key, tensor in state.items():
        if key.endswith("lora_A.weight"):
            ranks[len(tensor)] += 1
    if len(ranks) != 1:
        problem = f"{MLX_ADAPTER_FILE} has no lora_a, or such of several ranks"
        raise CheckpointError(problem, fix=_FUSE)

    (rank,) = ranks
    modules = {key.removeprefix(PEFT_PREFIX).rpartition(".lora_")[0] for key in state}
    _check_settings_fit(settings, rank, modules)

    config: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": sorted(modules),
        "use_dora": training_type == "dora",
    }
    note = (
        f"MLX: {training_type} of rank {rank}, scale {scale:g}, "
        f"on {len(modules)} layers"
    )
    return StoredCheckpoint(
        config=config,
        files=(path / MLX_ADAPTER_FILE,),
        read=read,
        config_folder=path,
        folder=path,
        is_adapter=True,
        notes=(note,),
    )


def _lora_parameters(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of LoRA; empty without any."""
    parameters = settings.get("lora_parameters")
    return parameters if isinstance(parameters, dict) else {}


def _check_settings_fit(
    settings: Mapping[str, object], rank: int, modules: Collection[str]
) -> None:
    """Refuse settings that belong to another training than the tensors.

    Their scale would be wrong, too.

    Raises
    ------
    CheckpointError
        If the rank differs, or if a layer has tensors that ``keys`` does not name.
    """
    remedy = "give the file that MLX saved with these weights"
    parameters = _lora_parameters(settings)

    stated_rank = parameters.get("rank", rank)
    if stated_rank != rank:
        problem = (
            f"adapter_config.json says rank {shown(stated_rank)}, "
            f"lora_a has rank {rank}"
        )
        raise CheckpointError(problem, fix=remedy)

    # Without keys, MLX trains a fixed set of modules.
    keys = parameters.get("keys")
    if not isinstance(keys, list):
        return
    for module in sorted(modules):
        # Keys name a module as in each layer: "self_attn.q_proj".
        name_in_layer = _LAYER_FRONT.sub("", module)
        if name_in_layer not in keys:
            problem = (
                f"{MLX_ADAPTER_FILE} has LoRA of {shown(module)}, "
                "which adapter_config.json does not name in keys"
            )
            raise CheckpointError(problem, fix=remedy)


def _scale(settings: Mapping[str, object]) -> float:
    """Return the factor of the product of the parts.

    Raises
    ------
    CheckpointError
        If it is missing, or given by two numbers as in an old version, of which new
        versions read only one.
    """
    parameters = _lora_parameters(settings)
    if "alpha" in parameters:
        problem = (
            "lora_parameters has scale and alpha: old versions of MLX multiplied by "
            "scale * alpha / rank, new ones by scale alone"
        )
        remedy = "write the number that it was trained with as scale, and remove alpha"
        raise CheckpointError(f"adapter_config.json: {problem}", fix=remedy)

    scale = parameters.get("scale")
    if not isinstance(scale, int | float) or not math.isfinite(scale) or scale <= 0:
        problem = "adapter_config.json: lora_parameters has no scale above 0"
        raise CheckpointError(problem, fix="give the file that MLX saved")
    return float(scale)


def _peft_tensors(file: Path) -> State:
    """Return the tensors with PEFT's names and layout.

    Raises
    ------
    CheckpointError
        Names a tensor that does not belong to a linear layer.
    """
    state = State()
    for key, tensor in weight_files.read_all((file,)).items():
        match = _MLX_TENSOR.fullmatch(key)
        is_embedding = key.startswith(("model.embed_tokens.", "model.wte."))
        # DoRA's "m" is a vector, while LoRA's parts are matrices.
        is_magnitude = match is not None and match["part"] == "m"
        n_dims = 1 if is_magnitude else 2
        if match is None or tensor.ndim != n_dims or is_embedding:
            problem = (
                f"{MLX_ADAPTER_FILE} holds {shown(key)}, "
                "which is no LoRA of a linear layer"
            )
            raise CheckpointError(problem, fix=_FUSE)

        module = f"{PEFT_PREFIX}{match['module']}"
        if is_magnitude:
            state[f"{module}.lora_magnitude_vector"] = tensor  # (out,)
        else:
            peft_name = _PEFT_NAMES[match["part"]]
            state[f"{module}.{peft_name}"] = tensor.T.contiguous()
    return state
