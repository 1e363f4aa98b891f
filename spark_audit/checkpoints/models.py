"""Full weights into a module: strictly, silently, and seen to work on a probe."""

from __future__ import annotations

import copy
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spark_audit.checkpoints.locate import walk
from spark_audit.checkpoints.offline import foreign
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.weight_files import check_floats
from spark_audit.errors import CheckpointError, InputError, shown
from spark_audit.host_memory import free_bytes

PROBE_LENGTH = 12
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
# How configurations call what each takes modules of its own.
_COUNT = re.compile(r"(?:^|_)(?:n|num)_(?:\w+_)?(?:layers?|blocks|experts)$|layers$")
_ITS_OWN = "give the config.json that was saved with these weights"
MOST_LAYERS = 1000
_POSITIONS = range(1 << 31)
MOST_BUFFERS = 1 << 28


def model_class(config: Any, folder: Path) -> Any:
    """The class of a causal language model; ``None``: there is none.

    A model's own code, in its folder, runs only where that is trusted: else a
    configuration that names some is refused before.
    """
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.models.auto import modeling_auto

    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    mapping: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if own is not None:
        with foreign("its own code cannot be loaded"):
            return get_class_from_dynamic_module(own, folder, local_files_only=True)
    return mapping[type(config)] if type(config) in mapping else None


def quantised(config: Any) -> bool:
    """Whether the weights are stored quantised."""
    return bool(getattr(config, "quantization_config", None))


def max_positions(config: Any) -> int | None:
    """Context length, ``None`` when the configuration states none."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or None


def empty(config: Any, cls: Any) -> Any:
    """The module as the configuration has it, on the meta device."""
    with foreign("config.json describes no model"), torch.device("meta"):
        return cls(copy.deepcopy(config))


def read_architecture(
    folder: Path, content: Mapping[str, Any], trusted: bool
) -> tuple[Any, Any]:
    """A folder's configuration, and its class: a causal language model for sure.

    Parameters
    ----------
    content
        The content of config.json.
    trusted
        Whether code that comes with it may run.

    Raises
    ------
    CheckpointError
        If it is another kind of model, by name, or unknown to transformers.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    names: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    listed = content.get("architectures") or []
    if not isinstance(listed, list) or not all(isinstance(n, str) for n in listed):
        what = "config.json gives architectures that are no list of names"
        raise CheckpointError(what)
    with foreign("config.json is not understood"):
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and (type(limit) is not int or limit not in _POSITIONS):
        what = "config.json says max_position_embeddings, but no length of a context"
        raise CheckpointError(what, fix=_ITS_OWN)
    # By name: the mapping itself would import every model there is.
    known = (n if isinstance(n, list | tuple) else [n] for n in names.values())
    causal = not listed or {*chain.from_iterable(known)}.intersection(listed)
    causal = causal or getattr(config, "auto_map", None)
    cls = model_class(config, folder) if causal else None
    if cls is None or getattr(config, "is_encoder_decoder", False):
        name = shown(listed[0]) if listed else type(config).__name__
        raise CheckpointError(f"{name} is not a causal language model (decoder only)")
    return config, cls


def check_layers(config: Mapping[str, Any], *, tensors: int) -> None:
    """Refuse a configuration that asks for more layers than the weights can fill.

    Each is some dozen Python objects before anything can be compared.
    """
    for key, value in walk(config):
        most = min(tensors, MOST_LAYERS) if key in _LAYERS else MOST_LAYERS
        if _COUNT.search(key) and isinstance(value, int) and value > most:
            what = f"config.json says {shown(key)} {str(value)[:20]}, the weights are"
            raise CheckpointError(f"{what} {tensors} tensors", fix=_ITS_OWN)


def check_weights(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Refuse other numbers where the model has floating-point ones.

    Parameters
    ----------
    model
        On the meta device.
    state
        What its files hold.
    """
    front = f"{model.base_model_prefix}."
    own = {name for name, one in model.named_parameters() if one.is_floating_point()}
    floats = [n for n in state if n.endswith(".weight") or own & {n, front + n}]
    check_floats({name: state[name] for name in floats})


def check_buffers(model: Any) -> None:
    """Refuse a configuration that asks for much memory that no weights back.

    Tables of positions are as long as the configuration says; on the meta device, as
    the model is, they cost nothing.
    """
    size = sum(one.numel() * one.element_size() for one in model.buffers())
    if size > MOST_BUFFERS:
        what = f"config.json needs {size:.3g} bytes beside the weights"
        raise CheckpointError(what, fix=_ITS_OWN)


def check_quantised(config: Any, *, device: str) -> None:
    """Refuse weights that are stored in a way which cannot be read here.

    Transformers passes over a method that it does not know, and takes the weights for
    plain ones.
    """
    from transformers.quantizers import auto

    quantizer: Any = auto.AutoHfQuantizer
    said = config.quantization_config
    with foreign("transformers cannot load it"):
        if not quantizer.supports_quant_method(said):
            what = "config.json names a quant_method that transformers does not know"
            raise CheckpointError(what, fix="upgrade transformers")
        quantizer.from_config(said, pre_quantized=True).validate_environment(
            device_map=None if device == "cpu" else {"": device}, weights_only=True
        )


def build(
    config: Any,
    cls: Any,
    *,
    folder: Path | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
    dtype: str = "auto",
    device_map: Any = "meta",
    **options: Any,
) -> Any:
    """Put weights into a module, every tensor of both in its place.

    Parameters
    ----------
    folder, state
        One of both: a folder that transformers reads, or the tensors themselves
        (on the meta device for a check without weights).
    device_map, options
        Of ``from_pretrained``.

    Raises
    ------
    CheckpointError
        With the name of the tensor that is missing, unexpected or of another shape.
    """
    sdpa = getattr(cls, "_supports_sdpa", False)
    with foreign("transformers cannot load it"):
        model, info = cls.from_pretrained(
            folder,
            state_dict=state,
            config=config,
            attn_implementation="sdpa" if sdpa else "eager",
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            device_map=device_map,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=True,
            weights_only=True,
            **options,
        )
    theirs = dict.fromkeys(info["unexpected_keys"], torch.Size())
    ours = dict.fromkeys(info["missing_keys"], torch.Size())
    for name, there, here in info["mismatched_keys"]:
        theirs[name], ours[name] = there, here
    refuse_differences(theirs, ours)
    for message in info["error_msgs"]:
        raise CheckpointError(str(message).split("\n")[0])
    return model.eval()


def refuse_differences(
    theirs: Mapping[str, Sequence[int]],
    ours: Mapping[str, Sequence[int]],
    *,
    tensor: str = "tensor",
    fix: str = f"{_ITS_OWN}, or save the whole model again",
) -> None:
    """Raise, naming the first tensor that does not fit and how many more do not.

    Parameters
    ----------
    theirs, ours
        Shapes of tensors by name, in the file and in the model. One that the file lacks
        would be random.
    tensor, fix
        Words of the error.
    """
    for wrong in (
        [f"{shown(name)} is missing" for name in sorted(ours.keys() - theirs)],
        [f"{shown(name)} is unexpected" for name in sorted(theirs.keys() - ours)],
        [
            f"{shown(name)} has shape {[*shape]}, the model needs {[*ours[name]]}"
            for name, shape in sorted(theirs.items())
            if name in ours and tuple(shape) != tuple(ours[name])
        ],
    ):
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise CheckpointError(f"{tensor} {wrong[0]}{more}", fix=fix)


def probe_ids(usable: np.ndarray, *, max_positions: int | None) -> torch.Tensor:
    """Shape ``(2, n)`` int64: two rows of token ids that differ in the last one."""
    ids = np.flatnonzero(usable)
    n = min(PROBE_LENGTH, max_positions or PROBE_LENGTH)
    row = ids[np.linspace(0, len(ids) - 1, n).astype(int)]
    other = row.copy()
    other[-1] = row[0] if row[0] != row[-1] else ids[len(ids) // 2]
    return torch.from_numpy(np.stack([row, other]))


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Shape ``(2, n, V)`` float32: what a model says on the probe.

    Raises
    ------
    CheckpointError
        If it cannot be run on token ids alone.
    """
    device = entry_device(model)
    with foreign("the model cannot be run"), torch.inference_mode():
        out: torch.Tensor = model(input_ids=ids.to(device), use_cache=False).logits
    return out.float().clone()


def check_probe(plain: torch.Tensor) -> None:
    """Refuse a model that gives no finite logits or reads ahead."""
    if not bool(torch.isfinite(plain).all()):
        fix = "its dtype may be too narrow: try --dtype float32"
        raise CheckpointError("the model gives NaN or infinite logits", fix=fix)
    if not torch.allclose(plain[0, :-1], plain[1, :-1], rtol=1e-2, atol=1e-2):
        what = "the model reads ahead: a later token changes earlier predictions"
        raise CheckpointError(what, fix="give a causal language model")


def head_rows(model: Any) -> int:
    """How many rows the output head has."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    text = model.config.get_text_config()
    return int(text.vocab_size if weight is None else weight.shape[0])


def entry_device(model: Any) -> torch.device:
    """Where a model takes token ids."""
    embeddings = model.get_input_embeddings()
    found = getattr(offload_hook(embeddings), "execution_device", None)
    return torch.device(embeddings.weight.device if found is None else found)


def offload_hook(layer: Any) -> Any:
    """Accelerate's hook that brings a layer's weights, among those it has."""
    hook = getattr(layer, "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        if hasattr(one, "execution_device"):
            return one
    return None


# --- where weights go -----------------------------------------------------------------

BESIDE = 1_500_000_000
"""Bytes beside the weights, for what is computed."""


def pick_device(device: str) -> str:
    """``auto`` is CUDA when there is one, else the CPU.

    Workers that a launcher started on one machine each take a GPU of their own.
    """
    if device == "auto":
        if not torch.cuda.is_available():
            return "cpu"
        rank = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", ""))
        known = rank.isdecimal()
        return f"cuda:{int(rank) % torch.cuda.device_count()}" if known else "cuda"
    if device.startswith("cuda") and not torch.cuda.is_available():
        what, fix = "there is no CUDA device here", "use --device cpu"
        raise InputError(what, where="--device", fix=fix)
    return device


def rooms(device: str) -> dict[str, int]:
    """Free bytes by place: GPUs (where one may be used), ``cpu`` and ``disk``."""
    found = {}
    if device.startswith("cuda"):
        for number in range(torch.cuda.device_count()):
            found[f"cuda:{number}"] = torch.cuda.mem_get_info(number)[0]
    if (memory := free_bytes()) is not None:
        found["cpu"] = memory
    found["disk"] = shutil.disk_usage(tempfile.gettempdir()).free
    return found


def placed(
    loading: Loading, device: str, *, folder: str | None = None
) -> dict[str, Any]:
    """Options of transformers that say where a model goes.

    Parameters
    ----------
    folder
        For what neither GPUs nor memory hold.
    """
    if loading.device_map is None:
        return {"device_map": None if device == "cpu" else {"": device}}
    most = {
        int(place[5:]) if place.startswith("cuda") else place: max(free - BESIDE, 0)
        for place, free in rooms(device).items()
        if place != "disk"
    }
    return {"device_map": "auto", "max_memory": most, "offload_folder": folder}


def weight_of(layer: Any, name: str = "weight") -> torch.Tensor | None:
    """A layer's tensor, from wherever it lies; ``None`` if it has none."""
    tensor: torch.Tensor | None = getattr(layer, name, None)
    if tensor is None:
        return None
    hook = offload_hook(layer)
    if tensor.is_meta and getattr(hook, "weights_map", None) is not None:
        tensor = hook.weights_map[name].to(hook.execution_device)
    return tensor.detach()


def offloaded(model: Any) -> bool:
    """Whether some weights are fetched from CPU or disk each time."""
    return any(tensor.is_meta for tensor in model.parameters())


def materialise(model: Any, adapter: str) -> None:
    """Give an adapter memory where the layers that it is on compute.

    PEFT puts it where their weights are, which is nowhere while they are on disk; the
    numbers are anybody's until the adapter's are filled in.
    """
    for path, layer in model.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if parameter.is_meta and adapter in (name, *path.split(".")):
                empty = torch.empty_like(parameter, device=_computes(model, path))
                layer._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)


def _computes(model: Any, path: str) -> torch.device:
    """Where the layer computes that a part of an adapter is on."""
    while path:
        path = path.rpartition(".")[0]
        base = getattr(model.get_submodule(path), "base_layer", None)
        if base is not None and (hook := offload_hook(base)) is not None:
            return torch.device(hook.execution_device)
    return torch.device("cpu")


def release(model: Any) -> None:
    """Free a module's memory, whoever still holds the module."""
    for layer in model.modules():
        hook = offload_hook(layer)
        if getattr(hook, "weights_map", None) is not None:
            hook.weights_map = None
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
