"""Round the linear layers of a model to NF4, as QLoRA deploys them.

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs" (NeurIPS 2023), keep
the base in 4-bit NormalFloat, and the adapter beside it in its own precision: it is not
merged. What an adapter has unlearned is then added to other weights than it was trained
with.

The values are those of bitsandbytes 0.50 without its second quantisation, that of the
scales (``bnb_4bit_use_double_quant``), which is off by default in transformers.
Computation keeps the checkpoint's own precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints.architecture import parts_beside_text
from spark_audit.checkpoints.derived import ReplacedWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS_PER_BLOCK = 64
"""Weights that share a scale, one after the other in ``(out, in)``."""
NF4_LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The 16 numbers of NF4 in float32: quantiles of the normal distribution between
0.0323 and 0.9677, 0 among them, divided by the largest. They are QLoRA's appendix E."""
_SMALLEST_SCALE = 1e-38
"""A block of zeros is divided by this, and stays zero."""


def rounded_to_nf4(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight rounded to NF4, in its own shape and dtype.

    The numbers are taken in blocks of 64, one row after the other; the last block may
    be shorter. Each block is divided by its largest absolute value, and each quotient
    becomes the nearest of :data:`NF4_LEVELS`.

    Parameters
    ----------
    weight
        Of any shape; ``(out, in)`` for a linear layer.

    Examples
    --------
    >>> rounded_to_nf4(torch.tensor([2.0, -0.7, 0.1, 0.0])).tolist()
    [2.0, -0.7898349761962891, 0.15916059911251068, 0.0]
    """
    levels = torch.tensor(NF4_LEVELS, device=weight.device)
    halfway = (levels[:-1] + levels[1:]) / 2

    numbers = weight.detach().float().flatten()
    n_padded = -len(numbers) % WEIGHTS_PER_BLOCK
    padded = torch.nn.functional.pad(numbers, (0, n_padded))
    blocks = padded.view(-1, WEIGHTS_PER_BLOCK)

    scales = blocks.abs().amax(dim=1, keepdim=True)  # (blocks, 1)
    factors = 1.0 / scales.clamp(min=_SMALLEST_SCALE)
    quotients = (blocks * factors).clamp(-1, 1)  # (blocks, 64)
    nearest = torch.bucketize(quotients, halfway)

    rounded = (levels[nearest] * scales).flatten()[: len(numbers)]
    return rounded.view(weight.shape).to(weight.dtype)


def nf4_weights(model: PreTrainedModel) -> ReplacedWeights:
    """Return the weights of a base's linear layers with their values in NF4.

    transformers decides which layers those are: as it loads a model with bitsandbytes,
    the output head, weights tied to the embeddings, and what an architecture keeps in
    float32 stay as they are, and so do norms and embeddings. Layers of an adapter on
    the model stay, too, and full layers that were trained with it.
    """
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    skipped_names = HfQuantizer.get_modules_to_not_convert(
        model, keep_in_fp32_modules=model._keep_in_fp32_modules
    )
    beside_text = tuple(f"{part}." for part in parts_beside_text(model))

    replaced: ReplacedWeights = []
    for name, module in model.named_modules():
        is_transposed = isinstance(module, Conv1D)
        # Subclasses such as FalconLinear were rounded by transformers 4, not by 5.
        is_linear = is_transposed or isinstance(module, torch.nn.Linear)
        is_of_adapter = ".lora_" in name or ".modules_to_save." in name
        if not is_linear or is_of_adapter or name.startswith(beside_text):
            continue

        # PEFT wraps its layer around the base's own.
        name_in_base = name.removesuffix(".base_layer")
        if not should_convert_module(name_in_base, skipped_names):
            continue

        # Conv1D holds (in, out), and blocks run along (out, in).
        weight = module.weight.T if is_transposed else module.weight  # (out, in)
        rounded = rounded_to_nf4(weight)
        value = rounded.T if is_transposed else rounded
        replaced.append((module.weight, value.contiguous()))
    return replaced
