"""Where a model's weights go, and whether they fit there, before any is read."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import torch

from spark_audit.checkpoints.models import Rehearsal, pick_device
from spark_audit.checkpoints.recipe import Recipe
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import CheckpointError
from spark_audit.memory import free_bytes

BESIDE = 1_500_000_000
"""Bytes beside the weights, for what is computed."""


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
) -> dict[str, Any] | None:
    """Options of transformers for a model in several places; ``None`` for one place.

    Parameters
    ----------
    folder
        For what neither GPUs nor memory hold.
    """
    if loading.device_map is None:
        return None
    most = {
        int(place[5:]) if place.startswith("cuda") else place: max(free - BESIDE, 0)
        for place, free in rooms(device).items()
        if place != "disk"
    }
    return {"device_map": "auto", "max_memory": most, "offload_folder": folder}


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
        fits = need <= one
    kind = "their own dtype" if given.dtype == "auto" else given.dtype
    there = ", ".join(f"{_gb(size)} {place}" for place, size in free.items())
    said = f"weights of {_gb(need)} in {kind}; free: {there}"
    if fits:
        return said
    half = weight_bytes(item, rehearsal, "bfloat16")
    room = 0 if one is None else one
    ways = [
        (half < need and half <= room, "--dtype bfloat16"),
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
