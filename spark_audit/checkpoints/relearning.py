"""A short training on other rows, to see whether what a checkpoint hides comes back.

Correction and unlearning may only suppress what a checkpoint knows: a few steps on rows
that hold none of it then restore it (Lynch et al., "Eight Methods to Evaluate Robust
Unlearning in LLMs", 2024; Hu et al., "Unlearning or Obfuscating?", ICLR 2025). A fresh
LoRA on every linear layer is trained on whole texts, in memory, and merged: neither
files nor the module are changed. The base is treated alike, so that what the rows
teach any model is not taken for what comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from spark_audit.checkpoints.quantise import Rounded, merged_weights, swapped
from spark_audit.data.encoding import token_ids
from spark_audit.errors import CheckpointError
from spark_audit.provenance import seed_for, sha256_json

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

    def weights(
        self, model: Any, on: str | None, tokenizer: Any, longest: int | None
    ) -> Callable[[], Rounded]:
        """Training that starts when its weights are first asked for: see :func:`train`.

        Where all scores are stored already, nobody asks.
        """

        @cache
        def made() -> Rounded:
            most, end = min(longest or LONGEST, LONGEST), tokenizer.eos_token_id
            own = [] if end is None else [end]
            rows = [(ids + own)[:most] for ids in token_ids(tokenizer, self.texts)]
            return train(model, on, rows, self)

        return made


def train(
    model: Any, on: str | None, rows: Sequence[Sequence[int]], how: Relearning
) -> Rounded:
    """The linear layers' weights after training on all tokens of some rows.

    The model is used without dropout and as it stands, with the frozen noise of its
    inputs, but for the LoRA adapter ``on``, which is merged first. The result is the
    same for the same number of threads.

    Raises
    ------
    CheckpointError
        If its loss is not finite.
    """
    layers = list(merged_weights(model, on))
    rng = torch.Generator().manual_seed(seed_for(how.seed, "relearn") % 2**63)
    low: list[tuple[torch.Tensor, torch.Tensor]] = []
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
            low.append((down, up))
            stack.enter_context(module.register_forward_hook(_adding(down, up)))
        _descend(model, [one for pair in low for one in pair], rows, how)
    trained = []
    for (module, turned, weight), (down, up) in zip(layers, low, strict=True):
        moved = SCALE * (up @ down).detach()
        value = weight + (moved.T if turned else moved)
        trained.append((module.weight, value.to(module.weight).contiguous()))
    return trained


def _adding(down: torch.Tensor, up: torch.Tensor) -> Callable[..., torch.Tensor]:
    def add(_: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = inputs[0].to(down) @ down.T @ up.T
        return output + (SCALE * moved).to(output.dtype)

    return add


def _descend(
    model: Any,
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
