"""Choose devices for weights, and measure the free bytes on them."""

from __future__ import annotations

import os
import shutil
import tempfile

import torch

from spark_audit.errors import InputError, free_bytes

MAX_COPY_BYTES = 1_500_000_000
"""Bytes besides the weights, for the computation."""


def pick_device(device: str) -> str:
    """Return the chosen device; ``auto`` is CUDA if available, or else the CPU.

    Workers of one launcher on one machine each get a GPU of their own.

    Raises
    ------
    InputError
        If CUDA is requested, but not available.
    """
    if device == "auto":
        if not torch.cuda.is_available():
            return "cpu"
        # torchrun and SLURM number the workers of a machine.
        rank = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", ""))
        if rank.isdecimal():
            return f"cuda:{int(rank) % torch.cuda.device_count()}"
        return "cuda"

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(
            "there is no CUDA device here", where="--device", fix="use --device cpu"
        )
    return device


def rooms(device: str) -> dict[str, int]:
    """Return free bytes by device: GPUs (if one may be used), ``cpu`` and ``disk``.

    ``cpu`` is missing if the system does not report its free memory.
    """
    free: dict[str, int] = {}
    if device.startswith("cuda"):
        for number in range(torch.cuda.device_count()):
            free[f"cuda:{number}"] = torch.cuda.mem_get_info(number)[0]

    memory = free_bytes()
    if memory is not None:
        free["cpu"] = memory
    free["disk"] = shutil.disk_usage(tempfile.gettempdir()).free
    return free
