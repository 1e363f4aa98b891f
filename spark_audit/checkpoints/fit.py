"""Where a model's weights go, and whether they fit there, before any is read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import torch

from spark_audit.checkpoints.adapter_config import changes_base
from spark_audit.checkpoints.models import Rehearsal, pick_device
from spark_audit.checkpoints.recipe import Recipe
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import CheckpointError
from spark_audit.memory import free_bytes

BESIDE = 1_500_000_000
"""Bytes beside the weights, for what is computed."""
_FURTHER = ("use_dora", "modules_to_save", "trainable_token_indices")


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
    loading: Loading, device: str, *, config: Any, folder: str | None = None
) -> dict[str, Any] | None:
    """Options of transformers for a model in several places; ``None`` for one place.

    Parameters
    ----------
    config
        The model's.
    folder
        For what neither GPUs nor memory hold.
    """
    if loading.tp > 1:
        from transformers.distributed.configuration_utils import DistributedConfig

        from spark_audit.checkpoints.conv1d import plan_of

        shares = DistributedConfig(tp_size=loading.tp, tp_plan=plan_of(config))
        return {"distributed_config": shares}
    if loading.device_map is None:
        return None
    most = {
        int(place[5:]) if place.startswith("cuda") else place: max(free - BESIDE, 0)
        for place, free in rooms(device).items()
        if place != "disk"
    }
    return {"device_map": "auto", "max_memory": most, "offload_folder": folder}


def check_shared(item: Recipe, rehearsal: Rehearsal, *, where: str) -> None:
    """Refuse what processes cannot share: no plan, odd heads, other than plain LoRA.

    Raises
    ------
    CheckpointError
        With what to use instead.
    """
    count = item.given.tp
    if count == 1:
        return
    from spark_audit.checkpoints.conv1d import odd_outputs, plan_of

    model, text = rehearsal.model, rehearsal.architecture.text
    heads = [
        getattr(text, name, None) or count
        for name in ("num_attention_heads", "num_key_value_heads")
    ]
    config = item.adapter.config if item.adapter is not None else None
    ours = model is not None and plan_of(model.config) is not None
    if model is None or not (ours or model.supports_tp_plan):
        name = "this model" if model is None else type(model).__name__
        reason = f"transformers has no plan for sharing {name} among processes"
    elif ours and odd_outputs(model, count):
        reason = f"the outputs of some layer are not shared by {count}"
    elif not ours and any(one % count for one in heads):
        reason = f"{heads[0]} heads ({heads[1]} of keys) are not shared by {count}"
    elif config is not None and not _plain_lora(config):
        reason = "processes share plain LoRA only, and no other adapter"
    else:
        return
    raise CheckpointError(
        reason, where=where, fix="use --device-map auto instead of --tp"
    )


def _plain_lora(config: Mapping[str, Any]) -> bool:
    further = any(config.get(name) for name in _FURTHER)
    plain = config.get("peft_type") == "LORA" and config.get("bias", "none") == "none"
    return plain and not further and not changes_base(dict(config))


def weight_bytes(item: Recipe, rehearsal: Rehearsal, dtype: str | None = None) -> int:
    """Bytes of a checkpoint's full weights as they are computed."""
    if rehearsal.model is None:  # own code or quantised: as it is stored
        assert item.weights is not None
        return sum(path.stat().st_size for path in item.weights.files)
    dtype = dtype or item.given.dtype
    count: int = sum(one.numel() for one in rehearsal.model.parameters())
    if dtype == "auto":
        assert item.weights is not None
        kinds = [one.dtype for one in item.weights.read(True).values()]
        return count * next(k for k in kinds if k.is_floating_point).itemsize
    size: int = getattr(torch, dtype).itemsize
    return count * size


def check_room(item: Recipe, rehearsal: Rehearsal, *, where: str) -> str:
    """Where a model's weights fit, in words.

    Parameters
    ----------
    item
        With the full weights.

    Raises
    ------
    CheckpointError
        If they do not fit where they are to go, with what would.
    """
    given = item.given
    device = pick_device(given.device)
    free, need = rooms(device), weight_bytes(item, rehearsal)
    gpus = [size for place, size in free.items() if place.startswith("cuda")]
    one = max(gpus) if gpus else free.get("cpu")
    every = sum(free.values())
    if given.device_map:
        fits = need <= every
    elif one is None:
        fits = True
    else:
        # Processes on one machine's CPU share its memory.
        fits = need / (given.tp if gpus else 1) <= one
    kind = "their own dtype" if given.dtype == "auto" else given.dtype
    there = ", ".join(f"{_gb(size)} {place}" for place, size in free.items())
    said = f"weights of {_gb(need)} in {kind}; free: {there}"
    if fits:
        return said
    half = weight_bytes(item, rehearsal, "bfloat16")
    room = 0 if one is None else one
    count = next((n for n in (2, 4, 8) if n <= len(gpus) and need / n <= room), None)
    ways = [
        (half < need and half <= room, "--dtype bfloat16"),
        (count is not None, f"torchrun with --tp {count}"),
        (need <= every and not given.device_map, "--device-map auto, which is slow"),
    ]
    fix = next((way for does, way in ways if does), None)
    raise CheckpointError(
        f"does not fit: {said}",
        where=where,
        fix=f"use {fix}" if fix else f"use a machine with {_gb(need + BESIDE)}",
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
