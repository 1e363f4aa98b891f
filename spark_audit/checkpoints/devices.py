"""Where weights go: devices, and the bytes that are free there."""

from __future__ import annotations

import os
import shutil
import tempfile

import torch

from spark_audit.errors import InputError, free_bytes

MAX_COPY_BYTES = 1_500_000_000
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
