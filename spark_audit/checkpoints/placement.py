"""Where a model's weights go (GPUs, CPU, disk), and whether they fit there."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

import torch

from spark_audit.checkpoints.models import offload_hook
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import CheckpointError, InputError
from spark_audit.host_memory import free_bytes

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


def check_room(loading: Loading, need: int, half: int) -> str:
    """Where a model's weights fit, in words.

    Parameters
    ----------
    need, half
        Bytes of the weights as they are to be computed, and in bfloat16.

    Raises
    ------
    CheckpointError
        If they do not fit where they are to go, with what would.
    """
    free = rooms(pick_device(loading.device))
    gpus = [size for place, size in free.items() if place.startswith("cuda")]
    one, every = max(gpus, default=free.get("cpu", need)), sum(free.values())
    kind = "their own dtype" if loading.dtype == "auto" else loading.dtype
    there = ", ".join(f"{size / 1e9:.1f} GB {place}" for place, size in free.items())
    said = f"weights of {need / 1e9:.1f} GB in {kind}; free: {there}"
    if need <= (every if loading.device_map else one):
        return said
    fix = f"use a machine with {(need + BESIDE) / 1e9:.1f} GB"
    if half < need and half <= one:
        fix = "use --dtype bfloat16"
    elif need <= every and not loading.device_map:
        fix = "use --device-map auto, which is slow"
    raise CheckpointError(f"does not fit: {said}", fix=fix)


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
