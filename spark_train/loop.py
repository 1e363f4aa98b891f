"""The training loop, whole on one page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from spark_audit.errors import InputError
from spark_train.data import TrainRow, collate
from spark_train.losses import next_token_nll

Progress = Callable[[int, int], None]


def fit(
    model: Any,
    rows: Sequence[TrainRow],
    *,
    epochs: int,
    lr: float,
    batch_size: int,
    seed: int,
    scope: Literal["response", "full"] = "response",
    schedule: Literal["cosine", "constant"] = "cosine",
    clip: float = 1.0,
    progress: Progress | None = None,
) -> list[float]:
    """Train ``model``'s trainable parameters on ``rows``, in place.

    A fresh AdamW without weight decay; the order of rows and any dropout follow
    ``seed`` alone, so that a run on one machine repeats to the bit.

    Parameters
    ----------
    scope
        Tokens the loss covers: the response's, or all of the text (which trains
        identifiers in prompts too: a positive control for audits).
    schedule
        Learning rate: half a cosine from ``lr`` to 0 over the run, or constant.
    clip
        Largest gradient norm.
    progress
        Called after each step with the steps done and all steps.

    Returns
    -------
    list of float
        The loss of each step, nats per token.

    Raises
    ------
    InputError
        If there is nothing to train on, or a loss is not finite.
    """
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    if not rows or not trainable or min(epochs, batch_size) < 1:
        raise InputError(
            f"nothing to train: {len(rows)} rows, {len(trainable)} trainable tensors, "
            f"{epochs} epochs, batches of {batch_size}",
            where="fit",
        )
    device = trainable[0].device
    optimizer = torch.optim.AdamW(trainable, lr=lr, weight_decay=0.0)
    order = torch.Generator().manual_seed(seed)
    total = epochs * math.ceil(len(rows) / batch_size)
    losses: list[float] = []
    model.train()
    # Dropout draws from the global generator: give it the seed and put it back.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for _ in range(epochs):
            shuffled = torch.randperm(len(rows), generator=order).tolist()
            for start in range(0, len(rows), batch_size):
                chosen = [rows[i] for i in shuffled[start : start + batch_size]]
                batch = collate(chosen).to(device)
                step = len(losses)
                for group in optimizer.param_groups:
                    group["lr"] = lr * _share(step, total, schedule)
                out = model(
                    input_ids=batch.ids,
                    attention_mask=batch.attention.long(),
                    use_cache=False,
                )
                mask = batch.response if scope == "response" else batch.attention
                loss = next_token_nll(out.logits, batch.ids, mask)
                losses.append(loss.item())
                if not math.isfinite(losses[-1]):
                    raise InputError(
                        f"the loss is not finite at step {step + 1} of {total}",
                        where="fit",
                        fix="lower the learning rate",
                    )
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(trainable, clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if progress is not None:
                    progress(len(losses), total)
    model.eval()
    return losses


def _share(step: int, total: int, schedule: str) -> float:
    """The part of the learning rate that a step takes."""
    if schedule == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * step / total))
