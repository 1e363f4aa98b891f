"""LoRA in a GGUF file, as llama.cpp's ``convert_lora_to_gguf.py`` writes it.

A layer's parts are ``NAME.weight.lora_a`` (rank, in) and ``NAME.weight.lora_b``
(out, rank), and their product is multiplied by ``adapter.lora.alpha`` / rank. The rows
of ``lora_b`` lie as those of the layer do in GGUF: for Llama and Mistral, the halves of
each head of query and key are interleaved.
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
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.weight_files import PEFT_PREFIX, State, check_filled
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedConfig, PreTrainedModel

MERGE = (
    "give the PEFT folder that it was converted from, or merge it: llama-export-lora "
    "-m BASE.gguf --lora FILE.gguf -o OUT.gguf, and give OUT.gguf"
)
_MODEL_TYPES = {
    "llama": ("llama", "mistral"),
    "qwen2": ("qwen2",),
    "qwen3": ("qwen3",),
    "gemma2": ("gemma2",),
    "gemma3": ("gemma3_text",),
    "phi3": ("phi3",),
    "starcoder2": ("starcoder2",),
}
"""Architectures of GGUF whose linear layers are stored as they are, but for Llama's
query and key -> types of transformers' models."""
_GGUF_LORA_TENSOR = re.compile(r"(?P<layer>.+)\.weight\.lora_(?P<part>[ab])")


def is_gguf_lora(reader: GGUFReader) -> bool:
    """Whether a file says that it is an adapter, or holds the parts of one."""
    has_parts = any(str(tensor.name).endswith(".lora_a") for tensor in reader.tensors)
    return has_parts or _field(reader, "general.type") == "adapter"


def gguf_lora(file: Path, reader: GGUFReader, loading: specs.Loading) -> Checkpoint:
    """LoRA on the base that is given.

    Raises
    ------
    CheckpointError
        If no base is given, it is of another architecture, or the file holds anything
        else than LoRA of linear layers.
    """
    if loading.base is None:
        raise CheckpointError("is a LoRA adapter in GGUF", fix="give --base MODEL")
    if _field(reader, "adapter.type") != "lora":
        what = "is an adapter in GGUF of another type than LoRA"
        raise CheckpointError(what, fix=MERGE)
    if _field(reader, "adapter.alora.invocation_tokens") is not None:
        what = "is an activated LoRA, which acts only behind a string that starts it"
        raise CheckpointError(what, fix="audit its base")
    alpha = _field(reader, "adapter.lora.alpha")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha) or alpha <= 0:
        raise CheckpointError("says no adapter.lora.alpha above 0", fix=MERGE)

    base = loading.locate(loading.base)
    folder = base if base.is_dir() else base.parent
    model = empty(*read_architecture(folder, loading.trust_remote_code))
    architecture = str(_field(reader, "general.architecture"))
    _check_architecture(architecture, model, loading.base)

    read = partial(_peft_tensors, reader, model, architecture)
    state = read()
    check_filled(state)
    ranks = {
        key.removeprefix(PEFT_PREFIX).removesuffix(".lora_A.weight"): len(tensor)
        for key, tensor in state.items()
        if key.endswith("lora_A.weight")
    }
    rank = Counter(ranks.values()).most_common(1)[0][0]
    config: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": float(alpha),
        "target_modules": sorted(ranks),
        "rank_pattern": {name: ranks[name] for name in ranks if ranks[name] != rank},
    }
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    note = f"GGUF: LoRA of rank {rank}, alpha {alpha:g}, on {len(ranks)} layers"
    notes = (note, f"GGUF tensors, dequantised as they are: {listed}")
    return Checkpoint(
        config, (file,), read, folder, folder=file.parent, adapter=True, notes=notes
    )


def _field(reader: GGUFReader, name: str) -> object:
    """A value of the file's header, or ``None``."""
    field = reader.fields.get(name)
    return None if field is None else field.contents()


def _check_architecture(
    architecture: str, model: PreTrainedModel, base: str | Path
) -> None:
    """Refuse an adapter of another architecture, or of one whose layers are not known.

    Raises
    ------
    CheckpointError
        With the way out.
    """
    types = _MODEL_TYPES.get(architecture)
    if types is None:
        what = f"is LoRA in GGUF on {shown(architecture)}, whose layers GGUF may store "
        what += f"otherwise (opened are: {', '.join(_MODEL_TYPES)})"
        raise CheckpointError(what, fix=MERGE)
    own = model.config.model_type
    if own not in types:
        what = (
            f"is LoRA on {architecture}, and {untrusted.printable(str(base))} is {own}"
        )
        fix = "give the model that it was trained on by --base"
        raise CheckpointError(what, fix=fix)


def _peft_tensors(
    reader: GGUFReader, model: PreTrainedModel, architecture: str
) -> State:
    """The tensors by PEFT's names, rows in the order of transformers.

    Raises
    ------
    CheckpointError
        With the tensor that is of something else than a linear layer of the base.
    """
    import gguf

    layers = _linear_layers(model, architecture)
    state = State()
    for tensor in reader.tensors:
        name = str(tensor.name)
        match = _GGUF_LORA_TENSOR.fullmatch(name)
        path = layers.get(match["layer"]) if match else None
        if match is None or path is None:
            what = (
                f"holds {shown(name)}, which is no LoRA of a linear layer of the base"
            )
            raise CheckpointError(what, fix=MERGE)
        with untrusted.foreign(f"tensor {shown(name)} cannot be read"):
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weight = torch.from_numpy(values.copy())  # (rank, in) or (out, rank)
        linear = model.get_submodule(path)
        n_features = linear.in_features, linear.out_features
        is_a = match["part"] == "a"
        fits = weight.ndim == 2 and weight.shape[-1 if is_a else 0] == (
            n_features[0] if is_a else n_features[1]
        )
        if not fits:
            what = f"tensor {shown(name)} does not fit the base's layer "
            what += f"({n_features[0]} to {n_features[1]})"
            fix = "give the model that it was trained on by --base"
            raise CheckpointError(what, fix=fix)
        if architecture == "llama" and not is_a:
            weight = _in_order(weight, match["layer"], model.config)
        part = "lora_A" if is_a else "lora_B"
        state[f"{PEFT_PREFIX}{path}.{part}.weight"] = weight
    return state


def _linear_layers(model: PreTrainedModel, architecture: str) -> dict[str, str]:
    """Map GGUF's names of layers to paths in the base; ambiguous ones are left out."""
    import gguf

    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    paths: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        name = names.get_name(path)
        if name is not None and isinstance(module, torch.nn.Linear):
            paths.setdefault(name, []).append(path)
    return {name: found[0] for name, found in paths.items() if len(found) == 1}


def _in_order(
    weight: torch.Tensor, layer: str, config: PreTrainedConfig
) -> torch.Tensor:
    """Rows of Llama's query and key with the halves of each head one behind the other.

    Parameters
    ----------
    weight
        Shape ``(out, rank)``; in GGUF the rows of a head's halves take turns.
    """
    heads = {
        "attn_q": config.num_attention_heads,
        "attn_k": config.num_key_value_heads,
    }
    n_heads = heads.get(layer.rpartition(".")[2])
    if n_heads is None:
        return weight
    half = len(weight) // n_heads // 2
    pairs = weight.reshape(n_heads, half, 2, -1)  # heads, place in a half, half, rank
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()
