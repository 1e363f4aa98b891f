"""Open LoRA in a GGUF file by llama.cpp's ``convert_lora_to_gguf.py``.

The parts of a layer are ``NAME.weight.lora_a`` (rank, in) and ``NAME.weight.lora_b``
(out, rank). Their product is multiplied by ``adapter.lora.alpha`` / rank. Rows of
``lora_b`` have the order of the layer's rows in GGUF: in Llama and Mistral, the two
halves of each head of query and key are interleaved.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints import specs, untrusted
from spark_audit.checkpoints.architecture import empty, read_architecture
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.tensor_checks import State, check_filled
from spark_audit.checkpoints.weight_files import PEFT_PREFIX
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedConfig, PreTrainedModel

MERGE = (
    "give the PEFT folder that it was converted from, or merge it: llama-export-lora "
    "-m BASE.gguf --lora FILE.gguf -o OUT.gguf, and give OUT.gguf"
)
_OTHER_BASE = "give the model that it was trained on by --base"
_MODEL_TYPES = {
    "llama": ("llama", "mistral"),
    "qwen2": ("qwen2",),
    "qwen3": ("qwen3",),
    "gemma2": ("gemma2",),
    "gemma3": ("gemma3_text",),
    "phi3": ("phi3",),
    "starcoder2": ("starcoder2",),
}
"""Architectures of GGUF that store linear layers unchanged, except for Llama's query
and key -> types of transformers' models."""
_GGUF_LORA_TENSOR = re.compile(r"(?P<layer>.+)\.weight\.lora_(?P<part>[ab])")


def is_gguf_lora(reader: GGUFReader) -> bool:
    """Return whether a file declares itself an adapter, or contains parts of one."""
    has_parts = any(str(tensor.name).endswith(".lora_a") for tensor in reader.tensors)
    return has_parts or _field(reader, "general.type") == "adapter"


def gguf_lora(
    file: Path, reader: GGUFReader, loading: specs.Loading
) -> StoredCheckpoint:
    """Return a LoRA adapter on the given base.

    Raises
    ------
    CheckpointError
        If no base is given, if it has another architecture, or if the file holds
        anything but LoRA of linear layers.
    """
    if loading.base is None:
        raise CheckpointError("is a LoRA adapter in GGUF", fix="give --base MODEL")
    alpha = _alpha(reader)

    # The base's module gives the names and shapes of its linear layers.
    base = loading.locate(loading.base)
    folder = base if base.is_dir() else base.parent
    model = empty(*read_architecture(folder, loading.trust_remote_code))
    architecture = str(_field(reader, "general.architecture"))
    _check_architecture(architecture, model, loading.base)

    read = partial(_peft_tensors, reader, model, architecture)
    state = read()
    check_filled(state)
    rank_by_module: dict[str, int] = {}
    for key, tensor in state.items():
        if key.endswith("lora_A.weight"):
            module = key.removeprefix(PEFT_PREFIX).removesuffix(".lora_A.weight")
            rank_by_module[module] = len(tensor)

    # The most frequent rank is the adapter's, and layers with other ranks are listed.
    rank = Counter(rank_by_module.values()).most_common(1)[0][0]
    config: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(rank_by_module),
        "rank_pattern": {
            module: own_rank
            for module, own_rank in rank_by_module.items()
            if own_rank != rank
        },
    }
    n_layers = len(rank_by_module)
    note = f"GGUF: LoRA of rank {rank}, alpha {alpha:g}, on {n_layers} layers"
    return StoredCheckpoint(
        config=config,
        files=(file,),
        read=read,
        config_folder=folder,
        folder=file.parent,
        is_adapter=True,
        notes=(note, note_on_types(reader)),
    )


def note_on_types(reader: GGUFReader) -> str:
    """Return a note on the types of a file's tensors."""
    counts = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return f"GGUF tensors, dequantised as they are: {listed}"


def _field(reader: GGUFReader, name: str) -> object:
    """Return a value of the file's header, or ``None``."""
    field = reader.fields.get(name)
    return None if field is None else field.contents()


def _alpha(reader: GGUFReader) -> float:
    """Return LoRA's alpha.

    Raises
    ------
    CheckpointError
        If the file states none, or is not plain LoRA.
    """
    if _field(reader, "adapter.type") != "lora":
        problem = "is an adapter in GGUF of another type than LoRA"
        raise CheckpointError(problem, fix=MERGE)
    if _field(reader, "adapter.alora.invocation_tokens") is not None:
        problem = "is an activated LoRA, which acts only behind a string that starts it"
        raise CheckpointError(problem, fix="audit its base")

    alpha = _field(reader, "adapter.lora.alpha")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha) or alpha <= 0:
        raise CheckpointError("has no adapter.lora.alpha above 0", fix=MERGE)
    return float(alpha)


def _check_architecture(
    architecture: str, model: PreTrainedModel, base: str | Path
) -> None:
    """Refuse an adapter of another architecture, or with unknown layers.

    Raises
    ------
    CheckpointError
        Says what to do instead.
    """
    model_types = _MODEL_TYPES.get(architecture)
    if model_types is None:
        problem = (
            f"is LoRA in GGUF on {shown(architecture)}, whose layers GGUF may store "
            f"otherwise (opened are: {', '.join(_MODEL_TYPES)})"
        )
        raise CheckpointError(problem, fix=MERGE)

    base_type = model.config.model_type
    if base_type not in model_types:
        base_name = untrusted.printable(str(base))
        problem = f"is LoRA on {architecture}, and {base_name} is {base_type}"
        raise CheckpointError(problem, fix=_OTHER_BASE)


def _peft_tensors(
    reader: GGUFReader, model: PreTrainedModel, architecture: str
) -> State:
    """Return the tensors with PEFT's names and the row order of transformers.

    Raises
    ------
    CheckpointError
        Names a tensor that does not belong to a linear layer of the base.
    """
    import gguf

    path_of_layer = _linear_layers(model, architecture)
    state = State()
    for tensor in reader.tensors:
        name = str(tensor.name)
        match = _GGUF_LORA_TENSOR.fullmatch(name)
        path = path_of_layer.get(match["layer"]) if match else None
        if match is None or path is None:
            problem = (
                f"holds {shown(name)}, which is no LoRA of a linear layer of the base"
            )
            raise CheckpointError(problem, fix=MERGE)

        with untrusted.foreign(f"tensor {shown(name)} cannot be read"):
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        # A copy, because the mapped file must not be written to.
        weight = torch.from_numpy(values.copy())
        is_a = match["part"] == "a"
        _check_fits(name, weight, model.get_submodule(path), is_a=is_a)
        if architecture == "llama" and not is_a:
            weight = _with_halves_in_order(weight, match["layer"], model.config)

        # lora_A is (rank, in), lora_B (out, rank).
        part = "lora_A" if is_a else "lora_B"
        state[f"{PEFT_PREFIX}{path}.{part}.weight"] = weight
    return state


def _check_fits(
    name: str, weight: torch.Tensor, linear: torch.nn.Module, *, is_a: bool
) -> None:
    """Refuse a part of LoRA whose shape does not fit the layer of the base.

    Parameters
    ----------
    weight
        Shape ``(rank, in)`` if ``is_a``, else ``(out, rank)``.
    linear
        The layer.
    """
    assert isinstance(linear, torch.nn.Linear)
    if weight.ndim == 2 and is_a and weight.shape[1] == linear.in_features:
        return
    if weight.ndim == 2 and not is_a and weight.shape[0] == linear.out_features:
        return
    problem = (
        f"tensor {shown(name)} does not fit the base's layer "
        f"({linear.in_features} to {linear.out_features})"
    )
    raise CheckpointError(problem, fix=_OTHER_BASE)


def _linear_layers(model: PreTrainedModel, architecture: str) -> dict[str, str]:
    """Return paths in the base by GGUF's names of layers, without ambiguous ones."""
    import gguf

    key_of_name = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    n_layers = model.config.num_hidden_layers
    gguf_names = gguf.get_tensor_name_map(key_of_name[architecture], n_layers)
    paths_by_name: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        name = gguf_names.get_name(path)  # None for what GGUF does not store
        if name is not None and isinstance(module, torch.nn.Linear):
            paths_by_name.setdefault(name, []).append(path)
    return {name: paths[0] for name, paths in paths_by_name.items() if len(paths) == 1}


def _with_halves_in_order(
    weight: torch.Tensor, layer: str, config: PreTrainedConfig
) -> torch.Tensor:
    """Return rows of Llama's query and key in the order of transformers.

    In GGUF, rows of a head's two halves alternate. In transformers, the first half
    precedes the second.

    Parameters
    ----------
    weight
        Shape ``(out, rank)``, like the result.
    layer
        GGUF's name of the layer. Only rows of query and key are reordered.
    """
    heads_by_layer = {
        "attn_q": config.num_attention_heads,
        "attn_k": config.num_key_value_heads,
    }
    n_heads = heads_by_layer.get(layer.rpartition(".")[2])
    if n_heads is None:
        return weight

    half = len(weight) // n_heads // 2
    pairs = weight.reshape(n_heads, half, 2, -1)  # (heads, row of a half, half, rank)
    halves = pairs.transpose(1, 2)  # (heads, half, row of a half, rank)
    return halves.reshape(weight.shape).contiguous()
