"""Which dtype a model's body is computed in, where that is left open."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from spark_audit.checkpoints.models import Architecture
from spark_audit.checkpoints.recipe import Weights
from spark_audit.checkpoints.specs import Loading

SECONDS = 1.0
"""What the probe takes, both dtypes together."""
MARGIN = 0.9
"""Share of bfloat16's time below which float32 is taken: near it the machine's other
work would decide, and scores of one dtype do not resume those of the other."""
ROWS, WIDTH, INNER = 256, 1024, 4096
"""Of the products that are timed, where the model's are larger."""


def computed_in(
    loading: Loading, architecture: Architecture, weights: Weights, *, device: str
) -> tuple[str, list[str]]:
    """The dtype to load weights in, and a note where a probe chose it.

    Weights that were saved in bfloat16 are computed in float32 where that is faster:
    without instructions of its own bfloat16 takes up to 2.5 times as long.
    """
    if loading.dtype != "auto" or architecture.quantised:
        return loading.dtype, []
    kinds = (tensor.dtype for tensor in weights.read(True).values())
    if next((one for one in kinds if one.is_floating_point), None) != torch.bfloat16:
        return loading.dtype, []
    if not loading.probe:
        return "bfloat16", []
    sizes = (
        getattr(architecture.text, name, most)
        for name, most in (("hidden_size", WIDTH), ("intermediate_size", INNER))
    )
    width, inner = (one if type(one) is int else INNER for one in sizes)
    ratio = half_over_full(device, min(width, WIDTH), min(inner, INNER))
    chosen = "float32" if ratio > 1 / MARGIN else "bfloat16"
    return chosen, [
        f"saved in bfloat16, computed in {chosen}: a layer took {ratio:.2g} times as "
        "long in bfloat16 as in float32"
    ]


@cache
def half_over_full(device: str, width: int, inner: int) -> float:
    """Time of a feed-forward layer in bfloat16 over that in float32, medians.

    Both are timed in turns, so that what else the machine does meets them alike.
    """
    work = {dtype: _layer(dtype, device, width, inner) for dtype in _BOTH}
    spent: dict[torch.dtype, list[float]] = {dtype: [] for dtype in _BOTH}
    end = time.perf_counter() + SECONDS
    with torch.inference_mode():
        for call in work.values():
            call()
        while time.perf_counter() < end or not spent[torch.float32]:
            for dtype, call in work.items():
                start = time.perf_counter()
                call()
                spent[dtype].append(time.perf_counter() - start)
    half, full = (sorted(spent[dtype])[len(spent[dtype]) // 2] for dtype in _BOTH)
    return half / full


_BOTH = (torch.bfloat16, torch.float32)


def _layer(
    dtype: torch.dtype, device: str, width: int, inner: int
) -> Callable[[], None]:
    options: Any = {"dtype": dtype, "device": device}
    x = torch.ones(ROWS, width, **options)
    up, down = torch.ones(inner, width, **options), torch.ones(width, inner, **options)
    linear = torch.nn.functional.linear

    def call() -> None:
        linear(torch.nn.functional.silu(linear(x, up)), down)
        if x.is_cuda:
            torch.cuda.synchronize()

    return call
