"""A module in memory: what does not fit it, what it says on a probe, where it lies."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from spark_audit.checkpoints.offline import foreign
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import CheckpointError, InputError, shown
from spark_audit.host_memory import free_bytes

PROBE_LENGTH = 12
ITS_OWN = "give the config.json that was saved with these weights"


def quantised(config: Any) -> bool:
    """Whether the weights are stored quantised."""
    return bool(getattr(config, "quantization_config", None))


def max_positions(config: Any) -> int | None:
    """Context length, ``None`` when the configuration states none."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or None


def refuse_differences(
    theirs: Mapping[str, Sequence[int]],
    ours: Mapping[str, Sequence[int]],
    *,
    tensor: str = "tensor",
    fix: str = f"{ITS_OWN}, or save the whole model again",
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


def untied(model: Any) -> bool:
    """Whether head and embeddings differ, though the configuration ties them.

    A file of ``torch.save`` names a tied tensor twice; that is no difference.
    """
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    if not tied or head is None or head.weight is embeddings.weight:
        return False
    one, other = head.weight, embeddings.weight
    apart = one.is_meta or other.is_meta or one.device != other.device
    return apart or not torch.equal(one, other)


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
