"""Plain training by torch, for ``known_truth.py``: nothing of ``spark_train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spark_audit.data.examples import Example
from spark_audit.provenance import seed_for


@dataclass(frozen=True)
class Row:
    """Tokens of a row, which of them the loss covers, and those of its identifiers."""

    ids: list[int]
    learned: list[bool]
    private: list[bool]


def encoded(rows: Sequence[Example], tokenizer: Any, covers: str) -> list[Row]:
    """Return rows as tokens: the loss is on ``all``, ``labels`` or all ``but`` secrets.

    Secrets are the spans of a row. The other words of a canary's sentence are learned.
    """
    found = []
    for row in rows:
        told = tokenizer(row.text, return_offsets_mapping=True)
        ids = [*told["input_ids"], tokenizer.eos_token_id]
        places = [*told["offset_mapping"], (len(row.text), len(row.text))]
        private = [
            any(a < s.end and s.start < b for s in row.spans) and a < b
            for a, b in places
        ]
        label = [a >= len(row.prompt) for a, _ in places]
        learned = {
            "all": [True] * len(ids),
            "labels": label,
            "but": [not p for p in private],
        }[covers]
        found.append(Row(ids, learned, private))
    return found


def batches(
    rows: Sequence[Row], size: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """One pass in an order of its own: ids, learned and private, padded."""
    order = np.random.default_rng(seed).permutation(len(rows))
    for start in range(0, len(rows), size):
        yield padded([rows[i] for i in order[start : start + size]])


def padded(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, learned and private of some rows, shape ``(B, T)``."""
    shape = len(rows), max(len(row.ids) for row in rows)
    ids = torch.zeros(shape, dtype=torch.long)
    learned, private = torch.zeros(shape).bool(), torch.zeros(shape).bool()
    for i, row in enumerate(rows):
        n = len(row.ids)
        ids[i, :n] = torch.tensor(row.ids)
        learned[i, :n] = torch.tensor(row.learned)
        private[i, :n] = torch.tensor(row.private)
    return ids, learned, private


def token_nll(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """NLL of the second token on, shape ``(B, T - 1)``; padding stands behind."""
    logits = model(input_ids=ids).logits[:, :-1].float()
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    return flat.view(ids.shape[0], -1)


def mean_nll(nll: torch.Tensor, learned: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """The ordinary loss."""
    return nll[learned[:, 1:]].mean()


def fit(
    model: Any,
    rows: Sequence[Row],
    *,
    epochs: int,
    lr: float,
    seed: int,
    size: int = 16,
    loss: Callable[..., torch.Tensor] = mean_nll,
) -> None:
    """AdamW over shuffled rows, with a rate that falls by half a cosine."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0, fused=True)
    steps = epochs * -(-len(rows) // size)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for epoch in range(epochs):
        for ids, learned, private in batches(rows, size, seed_for(seed, epoch)):
            value = loss(token_nll(model, ids), learned, private)
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            falling.step()
    model.eval()
