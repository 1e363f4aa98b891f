"""Weights rounded to few bits, to see whether what was suppressed comes back.

Zhang et al., "Catastrophic Failure of LLM Unlearning via Quantization" (ICLR 2025),
found that unlearned content returns after 4-bit quantisation. What counts is the value
that a rounded weight stands for: weights are rounded by torchao and computed with at
the checkpoint's own precision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from spark_audit.checkpoints.offline import quiet
from spark_audit.errors import CheckpointError, InputError
from spark_audit.names import ROUNDINGS
from spark_audit.terminal.flags import one_of

GROUP = 32
"""Weights that share a scale at 4 bits; at 8 bits a whole row does."""
_WITHOUT: tuple[object, ...] = (None, False, [], {}, "none")


Rounded = list[tuple[torch.nn.Parameter, torch.Tensor]]
"""Parameters, each with what stands in its place."""


def check_kind(kind: str) -> None:
    """Refuse an unknown kind, and any where torchao is not installed."""
    one_of(kind, "--quantize", ROUNDINGS)
    try:
        with quiet():  # remarks about kernels that are not used stay away
            import torchao.quantization  # noqa: F401
    except ImportError as error:
        raise InputError(
            "torchao is not installed",
            where="--quantize",
            fix="where spark-audit lies: pip install '.[quantize]'",
        ) from error


def rounded(model: Any, on: str | None, kind: str) -> Rounded:
    """Every linear layer's weight with what stands for it, rounded.

    Output head and embeddings stay as they are, as is usual. A LoRA adapter is merged
    first: a quantised model is shipped merged.
    """
    found = []
    for module, turned, weight in merged_weights(model, on):
        value = _round(weight.T if turned else weight, kind)
        value = (value.T if turned else value).to(module.weight)
        found.append((module.weight, value.contiguous()))
    return found


def merged_weights(
    model: Any, on: str | None
) -> Iterator[tuple[Any, bool, torch.Tensor]]:
    """Every linear layer but the output head, with its adapter's share merged in.

    Yields the module, whether its weight is ``(in, out)`` as GPT-2 holds it and not
    ``(out, in)``, and its weight with that of the LoRA adapter ``on``, in float32.
    """
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        turned = type(module).__name__ == "Conv1D"
        linear = turned or isinstance(module, torch.nn.Linear)
        if not linear or ".lora_" in name or module is head:
            continue
        weight = module.weight.detach().float()
        outer = model.get_submodule(name.removesuffix(".base_layer"))
        if on in getattr(outer, "lora_A", {}):
            weight = weight + outer.get_delta_weight(on).detach().float()
        yield module, turned, weight


@contextlib.contextmanager
def swapped(weights: Rounded) -> Iterator[None]:
    """The rounded weights in place of the module's own."""
    own = [parameter.data for parameter, _ in weights]
    try:
        for parameter, value in weights:
            parameter.data = value
        yield
    finally:
        for (parameter, _), before in zip(weights, own, strict=True):
            parameter.data = before


def check_mergeable(model: Any, config: Any) -> None:
    """Refuse a quantised model, and an adapter that cannot be merged (``None``: none).

    Raises
    ------
    CheckpointError
        With what stands in the way; it shows on the meta device, too.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        fix = "leave --quantize and --relearn out"
        raise CheckpointError("is quantised already", fix=fix)
    if config is None:
        return
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    further = ("use_dora", "modules_to_save", "trainable_token_indices", "bias")
    has = [name for name in further if getattr(config, name, None) not in _WITHOUT]
    if kind != "LORA" or has:
        what = f"{kind} adapter" + (f" with {', '.join(has)}" if has else "")
        fix = "merge it and give the merged folder"
        raise CheckpointError(f"a {what} cannot be merged here", fix=fix)


def _round(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """What each weight ``(out, in)`` stands for after rounding; float32."""
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup

    size = getattr(torch, kind)
    grouped = kind == "int4" and weight.shape[1] % GROUP == 0
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight.contiguous(), requires_grad=False)
    granularity = PerGroup(GROUP) if grouped else PerAxis(0)
    quantize_(layer, IntxWeightOnlyConfig(weight_dtype=size, granularity=granularity))
    return layer.weight.dequantize()
