"""Losses: pure functions of logits and masks, in float32."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def next_token_nll(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Mean negative log-likelihood of the masked tokens.

    Parameters
    ----------
    logits
        Shape ``(B, T, V)``: position ``t`` predicts token ``t + 1``.
    ids
        Shape ``(B, T)``, int64.
    mask
        Shape ``(B, T)``, bool over the *predicted* tokens; the first token of a row
        has no prediction and never counts.

    Returns
    -------
    Tensor
        Scalar, nats per token over the whole batch (SPARK's L_task with the response
        mask); 0 when no token is masked.
    """
    wanted = mask[:, 1:]
    if not wanted.any():
        return logits.sum() * 0.0
    # Select first: float32 logits of unwanted positions would only cost memory.
    return F.cross_entropy(logits[:, :-1][wanted].float(), ids[:, 1:][wanted])
