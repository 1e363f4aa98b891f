"""Derive other weights from a checkpoint, to see whether hidden knowledge returns.

**Rounded** to few bits: Zhang et al., "Catastrophic Failure of LLM Unlearning via
Quantization" (ICLR 2025), found that unlearned content returns after 4-bit
quantisation. Only the values of rounded weights matter: torchao rounds the weights, and
the computation keeps the checkpoint's own precision. NF4 is a rounding of the base
under an adapter that stays as it is: see :mod:`spark_audit.checkpoints.nf4`.

**Trained** on other rows: correction and unlearning may only suppress knowledge. Then a
few steps on rows without this knowledge restore it (Lynch et al., "Eight Methods to
Evaluate Robust Unlearning in LLMs", 2024; Hu et al., "Unlearning or Obfuscating?", ICLR
2025). A fresh LoRA on every linear layer is trained on whole texts in memory and
merged. Files and the module do not change. The base gets the same training, so that the
effect of the rows on any model is not taken for returned knowledge.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
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
from spark_audit.names import NF4, ROUNDINGS
from spark_audit.provenance import seed_for, sha256_json

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from transformers.pytorch_utils import Conv1D

RANK = 16
"""Rank of the LoRA."""
SCALE = 2.0
"""Factor of the LoRA's product (``alpha / rank``)."""
ROWS_PER_STEP = 8
"""Rows of a step of training."""
MAX_ROW_TOKENS = 512
"""Most tokens of a row; further tokens are left out."""
_MAX_GRADIENT_NORM = 1.0
"""Norm over all trained weights to which a longer gradient is cut."""
WEIGHTS_PER_SCALE = 32
"""Weights that share a scale at 4 bits; at 8 bits a whole row shares one."""
_OFF_VALUES: tuple[object, ...] = (None, False, [], {}, "none")
"""Values of unused fields in an adapter's configuration."""
_NOT_MERGED_FIELDS = ("use_dora", "modules_to_save", "trainable_token_indices", "bias")
"""Fields of a LoRA that has more than a product to add to each weight."""
ReplacedWeights = list[tuple[torch.Tensor, torch.Tensor]]
"""Parameters, each with the tensor that replaces it."""


@dataclass(frozen=True)
class Relearning:
    """Rows on which checkpoints are trained before they are scored once more.

    Attributes
    ----------
    texts
        Rows without any audited content.
    steps, lr
        Steps of AdamW, and the peak of the rate, which falls by half a cosine.
    seed
        Seed of the order of rows and of the LoRA's start.
    """

    texts: tuple[str, ...]
    steps: int
    lr: float
    seed: int

    @property
    def sha256(self) -> str:
        """The hash of everything except the checkpoint that determines the result."""
        return sha256_json([vars(self), RANK, SCALE, ROWS_PER_STEP, MAX_ROW_TOKENS])

    @property
    def note(self) -> str:
        """A note for readers of the report."""
        n_rows = min(ROWS_PER_STEP, len(self.texts))
        return (
            f"trained for {self.steps} steps of {n_rows} rows on {len(self.texts)} "
            f"other rows: LoRA of rank {RANK} on all linear layers, rate {self.lr:g}"
        )


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer, and its weight with its adapter merged.

    Attributes
    ----------
    is_transposed
        Whether its weight is ``(in, out)`` as GPT-2 holds it, and not ``(out, in)``.
    weight
        The weight in float32, in the layout of the layer.
    """

    module: torch.nn.Linear | Conv1D
    is_transposed: bool
    weight: torch.Tensor

    @property
    def n_inputs(self) -> int:
        """The number of inputs."""
        return self.weight.shape[0 if self.is_transposed else 1]

    @property
    def n_outputs(self) -> int:
        """The number of outputs."""
        return self.weight.shape[1 if self.is_transposed else 0]

    def in_its_layout(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight ``(out, in)`` in the layout of the layer."""
        return weight.T if self.is_transposed else weight


@dataclass(frozen=True)
class _Lora:
    """A fresh LoRA on a linear layer; ``up @ down`` is added to the layer's weight.

    Attributes
    ----------
    down, up
        Shapes ``(rank, in)`` and ``(out, rank)``.
    """

    layer: LinearLayer
    down: torch.Tensor
    up: torch.Tensor

    def hook(
        self,
        module: torch.nn.Module,
        inputs: tuple[torch.Tensor, ...],
        output: torch.Tensor,
    ) -> torch.Tensor:
        """Add the LoRA to the layer's output, ``(..., out)``, as a forward hook."""
        change: torch.Tensor = inputs[0].to(self.down) @ self.down.T @ self.up.T
        return output + (SCALE * change).to(output.dtype)

    def merged(self) -> torch.Tensor:
        """Return the layer's weight with the LoRA merged, in the layer's layout."""
        change = SCALE * (self.up @ self.down).detach()  # (out, in)
        weight = self.layer.weight + self.layer.in_its_layout(change)
        return weight.to(self.layer.module.weight).contiguous()


def relearned_weights(
    model: PreTrainedModel,
    adapter: str | None,
    tokenizer: PreTrainedTokenizerFast,
    longest: int | None,
    relearning: Relearning,
) -> ReplacedWeights:
    """Return the linear layers' weights after training on all tokens of some rows.

    The model is used without dropout, with the frozen noise of its inputs. Its LoRA
    adapter ``adapter`` is merged first. The result is the same for the same number of
    threads.

    Parameters
    ----------
    adapter
        Its name on the model; ``None``: there is none.
    longest
        Most tokens of a row that the model can take.

    Raises
    ------
    CheckpointError
        If the loss is not finite.
    """
    most_tokens = min(longest or MAX_ROW_TOKENS, MAX_ROW_TOKENS)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    rows = [(ids + end)[:most_tokens] for ids in token_ids(tokenizer, relearning.texts)]

    layers = list(merged_weights(model, adapter))
    # torch accepts seeds of 63 bits.
    seed = seed_for(relearning.seed, "relearn") % 2**63
    generator = torch.Generator().manual_seed(seed)
    loras: list[_Lora] = []
    with ExitStack() as stack:
        # Scoring runs in inference mode, in which training is impossible.
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        merged = [
            (layer.module.weight, layer.weight.to(layer.module.weight))
            for layer in layers
        ]
        stack.enter_context(replaced_weights(merged))

        for layer in layers:
            lora = _fresh_lora(layer, generator)
            loras.append(lora)
            stack.enter_context(layer.module.register_forward_hook(lora.hook))

        trained: list[torch.Tensor] = []
        for lora in loras:
            trained += [lora.down, lora.up]
        _descend(model, trained, rows, relearning)
    return [(lora.layer.module.weight, lora.merged()) for lora in loras]


def _fresh_lora(layer: LinearLayer, generator: torch.Generator) -> _Lora:
    """Return a LoRA that does not yet change its layer: ``up`` is zero."""
    device = layer.weight.device
    # Drawn on the CPU, so that it is the same on every device.
    uniform = torch.rand((RANK, layer.n_inputs), generator=generator) * 2 - 1
    down = (uniform / math.sqrt(layer.n_inputs)).to(device).requires_grad_()
    up = torch.zeros((layer.n_outputs, RANK), device=device, requires_grad=True)
    return _Lora(layer, down, up)


def _descend(
    model: PreTrainedModel,
    weights: list[torch.Tensor],
    rows: Sequence[Sequence[int]],
    relearning: Relearning,
) -> None:
    """Train weights with AdamW over the rows in random order.

    The uses of any two rows differ by at most one.

    Raises
    ------
    CheckpointError
        If the loss is not finite.
    """
    optimizer = torch.optim.AdamW(weights, lr=relearning.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, relearning.steps)

    # Enough passes over all rows to fill every step.
    rng = np.random.default_rng(seed_for(relearning.seed, "relearn", "order"))
    batch_size = min(ROWS_PER_STEP, len(rows))
    n_passes = math.ceil(relearning.steps * batch_size / len(rows))
    order = np.concatenate([rng.permutation(len(rows)) for _ in range(n_passes)])

    device = weights[0].device
    for step in range(relearning.steps):
        batch = order[step * batch_size : (step + 1) * batch_size]
        loss = _loss(model, [torch.tensor(rows[i], device=device) for i in batch])
        value = float(loss.detach())
        if not math.isfinite(value):
            problem = f"gives a loss of {value} in training, step {step + 1}"
            raise CheckpointError(problem, fix="give a smaller --relearn-lr")

        optimizer.zero_grad()
        # Only of these weights; a layer that the rows do not pass through has no
        # gradient.
        torch.autograd.backward(loss, inputs=weights)
        torch.nn.utils.clip_grad_norm_(weights, _MAX_GRADIENT_NORM)
        optimizer.step()
        schedule.step()


def _loss(model: PreTrainedModel, rows: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean NLL of the rows' tokens, without each first one, in nats.

    Parameters
    ----------
    rows
        Token ids, each of shape ``(tokens,)``.
    """
    ids = pad_sequence(rows, batch_first=True)  # (rows, tokens)
    is_token = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    logits = model(input_ids=ids, attention_mask=is_token, use_cache=False).logits

    # The logits of a position predict the next token.
    is_target = is_token[:, 1:].bool()  # (rows, tokens - 1)
    return torch.nn.functional.cross_entropy(
        logits[:, :-1][is_target].float(), ids[:, 1:][is_target]
    )


def check_rounding(kind: str) -> None:
    """Refuse an unknown kind of rounding, or one by torchao without torchao."""
    one_of(kind, "--quantize", ROUNDINGS)
    if kind == NF4:
        return
    try:
        with quiet():  # remarks about kernels that are not used stay away
            import torchao.quantization  # noqa: F401
    except ImportError as error:
        raise InputError(
            "torchao is not installed",
            where="--quantize",
            fix="where spark-audit lies: pip install '.[quantize]'",
        ) from error


def rounded_weights(
    model: PreTrainedModel, adapter: str | None, kind: str
) -> ReplacedWeights:
    """Return every linear layer's weight with its replacement by ``int8`` or ``int4``.

    Output head and embeddings stay unchanged, as is usual. A LoRA adapter is merged
    first, because a quantised model is shipped merged.
    """
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import Granularity, PerAxis, PerGroup

    replaced: ReplacedWeights = []
    for layer in merged_weights(model, adapter):
        # torchao takes (out, in), and shares scales along a row.
        weight = layer.in_its_layout(layer.weight).contiguous()  # (out, in)
        n_outputs, n_inputs = weight.shape
        granularity: Granularity = PerAxis(0)
        if kind == "int4" and n_inputs % WEIGHTS_PER_SCALE == 0:
            granularity = PerGroup(WEIGHTS_PER_SCALE)

        linear = torch.nn.Linear(n_inputs, n_outputs, False, "meta")
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        config = IntxWeightOnlyConfig(
            weight_dtype=getattr(torch, kind), granularity=granularity
        )
        quantize_(linear, config)

        value = layer.in_its_layout(linear.weight.dequantize())
        value = value.to(layer.module.weight).contiguous()
        replaced.append((layer.module.weight, value))
    return replaced


def merged_weights(
    model: PreTrainedModel, adapter: str | None
) -> Iterator[LinearLayer]:
    """Yield every linear layer of the text model but the head, with its adapter merged.

    Parameters
    ----------
    adapter
        Name of the LoRA adapter on the model; ``None``: there is none.
    """
    head = model.get_output_embeddings()
    beside_text = tuple(f"{part}." for part in parts_beside_text(model))
    for name, module in model.named_modules():
        is_transposed = type(module).__name__ == "Conv1D"
        is_linear = is_transposed or isinstance(module, torch.nn.Linear)
        # The parts of LoRA are themselves linear layers.
        if not is_linear or ".lora_" in name or module is head:
            continue
        if name.startswith(beside_text):
            continue

        weight = module.weight.detach().float()
        # PEFT wraps its layer around the base's own.
        adapted_layer = model.get_submodule(name.removesuffix(".base_layer"))
        if adapter in getattr(adapted_layer, "lora_A", {}):
            change = adapted_layer.get_delta_weight(adapter)
            weight = weight + change.detach().float()
        yield LinearLayer(module, is_transposed, weight)


@contextlib.contextmanager
def replaced_weights(weights: ReplacedWeights) -> Iterator[None]:
    """Use other weights in place of the module's own inside the block."""
    original = [parameter.data for parameter, _ in weights]
    try:
        for parameter, value in weights:
            parameter.data = value
        yield
    finally:
        for (parameter, _), value in zip(weights, original, strict=True):
            parameter.data = value


def check_not_quantised(model: PreTrainedModel) -> None:
    """Refuse a quantised model, which has no plain weights to round or to train.

    Raises
    ------
    CheckpointError
        This also works on the meta device.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        remedy = "leave --quantize and --relearn out"
        raise CheckpointError("is quantised already", fix=remedy)


def check_mergeable(model: PreTrainedModel, config: PeftConfig | None) -> None:
    """Refuse a quantised model, or an adapter that cannot be merged (``None``: none).

    Raises
    ------
    CheckpointError
        Names the obstacle; this also works on the meta device.
    """
    check_not_quantised(model)
    if config is None:
        return

    peft_type = str(getattr(config.peft_type, "value", config.peft_type))
    in_the_way = [
        name
        for name in _NOT_MERGED_FIELDS
        if getattr(config, name, None) not in _OFF_VALUES
    ]
    if peft_type == "LORA" and not in_the_way:
        return

    problem = f"a {peft_type} adapter"
    if in_the_way:
        problem += f" with {', '.join(in_the_way)}"
    remedy = "merge it and give the merged folder"
    raise CheckpointError(f"{problem} cannot be merged here", fix=remedy)
