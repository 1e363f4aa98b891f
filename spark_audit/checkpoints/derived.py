"""Other weights made of a checkpoint's own, to see whether what it hides comes back.

**Rounded** to few bits: Zhang et al., "Catastrophic Failure of LLM Unlearning via
Quantization" (ICLR 2025), found that unlearned content returns after 4-bit
quantisation. What counts is the value that a rounded weight stands for: weights are
rounded by torchao and computed with at the checkpoint's own precision.

**Trained** on other rows: correction and unlearning may only suppress what a checkpoint
knows: a few steps on rows that hold none of it then restore it (Lynch et al., "Eight
Methods to Evaluate Robust Unlearning in LLMs", 2024; Hu et al., "Unlearning or
Obfuscating?", ICLR 2025). A fresh LoRA on every linear layer is trained on whole texts,
in memory, and merged: neither files nor the module are changed. The base is treated
alike, so that what the rows teach any model is not taken for what comes back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from spark_audit.checkpoints.architecture import parts_beside_text
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.data.encoding import token_ids
from spark_audit.errors import CheckpointError, InputError, one_of
from spark_audit.names import ROUNDINGS
from spark_audit.provenance import seed_for, sha256_json

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from transformers.pytorch_utils import Conv1D

RANK, SCALE = 16, 2.0
"""Rank of the LoRA, and the factor of its product (``alpha / rank``)."""
ROWS, LONGEST = 8, 512
"""Rows of a step, and tokens of a row at most: the rest is left out."""


@dataclass(frozen=True)
class Relearning:
    """What checkpoints are trained on before they are scored once more.

    Attributes
    ----------
    texts
        Rows that hold nothing that is audited.
    steps, lr
        Of AdamW; the rate falls by half a cosine from ``lr``.
    seed
        Decides the order of the rows and where the LoRA starts.
    """

    texts: tuple[str, ...]
    steps: int
    lr: float
    seed: int

    @property
    def sha256(self) -> str:
        """Of everything that decides what comes of a checkpoint, besides itself."""
        return sha256_json([vars(self), RANK, SCALE, ROWS, LONGEST])

    @property
    def note(self) -> str:
        """What a reader of the report must know."""
        rows = min(ROWS, len(self.texts))
        return (
            f"trained for {self.steps} steps of {rows} rows on {len(self.texts)} other "
            f"rows: LoRA of rank {RANK} on all linear layers, rate {self.lr:g}"
        )


def train(
    model: PreTrainedModel,
    on: str | None,
    tokenizer: PreTrainedTokenizerFast,
    longest: int | None,
    how: Relearning,
) -> Rounded:
    """The linear layers' weights after training on all tokens of rows ``how.texts``.

    The model is used without dropout and as it stands, with the frozen noise of its
    inputs, but for the LoRA adapter ``on``, which is merged first. The result is the
    same for the same number of threads.

    Raises
    ------
    CheckpointError
        If its loss is not finite.
    """
    most, end = min(longest or LONGEST, LONGEST), tokenizer.eos_token_id
    own = [] if end is None else [end]
    rows = [(ids + own)[:most] for ids in token_ids(tokenizer, how.texts)]
    layers = list(merged_weights(model, on))
    rng = torch.Generator().manual_seed(seed_for(how.seed, "relearn") % 2**63)
    low: list[
        tuple[torch.nn.Linear | Conv1D, bool, torch.Tensor, torch.Tensor, torch.Tensor]
    ] = []
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        merged = [(m.weight, weight.to(m.weight)) for m, _, weight in layers]
        stack.enter_context(swapped(merged))
        for module, turned, weight in layers:
            size, of = weight.shape if turned else weight.shape[::-1]
            start = (torch.rand((RANK, size), generator=rng) * 2 - 1) / math.sqrt(size)
            down = start.to(weight.device).requires_grad_()
            up = torch.zeros((of, RANK), device=weight.device, requires_grad=True)
            low.append((module, turned, weight, down, up))
            stack.enter_context(module.register_forward_hook(_adding(down, up)))
        _descend(model, [one for *_, down, up in low for one in (down, up)], rows, how)
    trained = []
    for module, turned, weight, down, up in low:
        moved = SCALE * (up @ down).detach()
        value = weight + (moved.T if turned else moved)
        trained.append((module.weight, value.to(module.weight).contiguous()))
    return trained


def _adding(down: torch.Tensor, up: torch.Tensor) -> Callable[..., torch.Tensor]:
    def add(
        _: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        moved: torch.Tensor = inputs[0].to(down) @ down.T @ up.T
        return output + (SCALE * moved).to(output.dtype)

    return add


def _descend(
    model: PreTrainedModel,
    weights: list[torch.Tensor],
    rows: Sequence[Sequence[int]],
    how: Relearning,
) -> None:
    """AdamW over the rows in mixed order, each as often as any other to within once."""
    optimizer = torch.optim.AdamW(weights, lr=how.lr, weight_decay=0.0)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.steps)
    draw = np.random.default_rng(seed_for(how.seed, "relearn", "order"))
    size = min(ROWS, len(rows))
    passes = -(-how.steps * size // len(rows))
    order = np.concatenate([draw.permutation(len(rows)) for _ in range(passes)])
    for step in range(how.steps):
        asked = order[step * size : (step + 1) * size]
        chosen = [torch.tensor(rows[i], device=weights[0].device) for i in asked]
        ids = pad_sequence(chosen, batch_first=True)
        real = pad_sequence([*map(torch.ones_like, chosen)], batch_first=True)
        logits = model(input_ids=ids, attention_mask=real, use_cache=False).logits
        told = real[:, 1:].bool()
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1][told].float(), ids[:, 1:][told]
        )
        if not math.isfinite(value := float(loss.detach())):
            what = f"gives a loss of {value} in training, step {step + 1}"
            raise CheckpointError(what, fix="give a smaller --relearn-lr")
        optimizer.zero_grad()
        # Of these alone; a layer that the rows do not pass through has none.
        torch.autograd.backward(loss, inputs=weights)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        falling.step()


WEIGHTS_PER_SCALE = 32
"""Weights that share a scale at 4 bits; at 8 bits a whole row does."""
_WITHOUT: tuple[object, ...] = (None, False, [], {}, "none")


Rounded = list[tuple[torch.Tensor, torch.Tensor]]
"""Parameters, each with what stands in its place."""


def check_kind(kind: str) -> None:
    """Refuse an unknown kind, and any where torchao is not installed."""
    one_of(kind, "--quantize", ROUNDINGS)
    try:
        with quiet():  # remarks about kernels that are not used stay away
            import torchao.quantization  # noqa: F401
    except ImportError as error:
        what = "torchao is not installed"
        fix = "where spark-audit lies: pip install '.[quantize]'"
        raise InputError(what, where="--quantize", fix=fix) from error


def rounded(model: PreTrainedModel, on: str | None, kind: str) -> Rounded:
    """Every linear layer's weight with what stands for it, rounded.

    Output head and embeddings stay as they are, as is usual. A LoRA adapter is merged
    first: a quantised model is shipped merged.
    """
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import Granularity, PerAxis, PerGroup

    found = []
    for module, turned, weight in merged_weights(model, on):
        rows = (weight.T if turned else weight).contiguous()
        grouped = kind == "int4" and rows.shape[1] % WEIGHTS_PER_SCALE == 0
        how: Granularity = PerGroup(WEIGHTS_PER_SCALE) if grouped else PerAxis(0)
        layer = torch.nn.Linear(rows.shape[1], len(rows), False, "meta")
        layer.weight = torch.nn.Parameter(rows, requires_grad=False)
        size = getattr(torch, kind)
        quantize_(layer, IntxWeightOnlyConfig(weight_dtype=size, granularity=how))
        value = layer.weight.dequantize()
        value = (value.T if turned else value).to(module.weight)
        found.append((module.weight, value.contiguous()))
    return found


def merged_weights(
    model: PreTrainedModel, on: str | None
) -> Iterator[tuple[torch.nn.Linear | Conv1D, bool, torch.Tensor]]:
    """Every linear layer of text but the output head, with its adapter's share.

    Yields the module, whether its weight is ``(in, out)`` as GPT-2 holds it and not
    ``(out, in)``, and its weight with that of the LoRA adapter ``on``, in float32.
    """
    head = model.get_output_embeddings()
    beside = tuple(f"{part}." for part in parts_beside_text(model))
    for name, module in model.named_modules():
        turned = type(module).__name__ == "Conv1D"
        linear = turned or isinstance(module, torch.nn.Linear)
        if not linear or ".lora_" in name or module is head:
            continue
        if name.startswith(beside):
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


def check_mergeable(model: PreTrainedModel, config: PeftConfig | None) -> None:
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
