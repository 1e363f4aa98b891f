"""Weights that lie in several places: GPUs, CPU, disk."""

from __future__ import annotations

from typing import Any

import torch


def entry_device(model: Any) -> torch.device:
    """Where a model takes token ids."""
    embeddings = model.get_input_embeddings()
    found = getattr(_hook(embeddings), "execution_device", None)
    return torch.device(embeddings.weight.device if found is None else found)


def weight_of(layer: Any, name: str = "weight") -> torch.Tensor | None:
    """A layer's tensor, from wherever it lies; ``None`` if it has none."""
    tensor: torch.Tensor | None = getattr(layer, name, None)
    if tensor is None:
        return None
    hook = _hook(layer)
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
        if base is not None and (hook := _hook(base)) is not None:
            return torch.device(hook.execution_device)
    return torch.device("cpu")


def release(model: Any) -> None:
    """Free a module's memory, whoever still holds the module."""
    for layer in model.modules():
        hook = _hook(layer)
        if getattr(hook, "weights_map", None) is not None:
            hook.weights_map = None
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def _hook(layer: Any) -> Any:
    """Accelerate's hook that brings a layer's weights, among those it has."""
    hook = getattr(layer, "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        if hasattr(one, "execution_device"):
            return one
    return None
