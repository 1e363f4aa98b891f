"""The loss against the plainest float64 computation, and its token shift."""

from __future__ import annotations

import math

import numpy as np
import torch

from spark_train.losses import next_token_nll


def naive(logits: np.ndarray, ids: np.ndarray, mask: np.ndarray) -> float:
    """Token by token in float64; position t is predicted by position t - 1."""
    nlls = []
    for row in range(ids.shape[0]):
        for t in range(1, ids.shape[1]):
            if mask[row, t]:
                scores = logits[row, t - 1].astype(np.float64)
                largest = scores.max()
                log_sum = largest + math.log(np.exp(scores - largest).sum())
                nlls.append(log_sum - scores[ids[row, t]])
    return float(np.mean(nlls))


def test_the_loss_is_the_mean_nll_of_the_masked_tokens() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (3, 9, 17)).astype(np.float32)
    ids = rng.integers(0, 17, (3, 9))
    mask = rng.random((3, 9)) < 0.4
    mask[:, 0] = True  # has no prediction and must not count
    loss = next_token_nll(
        torch.from_numpy(logits), torch.from_numpy(ids), torch.from_numpy(mask)
    )
    assert loss.dtype == torch.float32
    assert math.isclose(loss.item(), naive(logits, ids, mask), rel_tol=1e-6)


def test_a_token_is_predicted_by_the_position_before_it() -> None:
    # Position t is certain of token t + 1; any other shift costs 100 nats.
    ids = torch.tensor([[3, 1, 4, 2, 0]])
    logits = torch.zeros(1, 5, 5)
    for t in range(4):
        logits[0, t, ids[0, t + 1]] = 100.0
    everything = torch.ones(1, 5, dtype=torch.bool)
    assert next_token_nll(logits, ids, everything).item() < 1e-6
    for t in range(1, 5):
        wrong = logits.clone()
        wrong[0, t - 1] = 0.0
        wrong[0, t - 1, (ids[0, t] + 1) % 5] = 100.0
        only = torch.zeros(1, 5, dtype=torch.bool)
        only[0, t] = True
        assert next_token_nll(wrong, ids, only).item() > 99
        assert next_token_nll(wrong, ids, everything & ~only).item() < 1e-6


def test_gradients_reach_the_predictions_of_masked_tokens_only() -> None:
    logits = torch.zeros(1, 4, 6, requires_grad=True)
    ids, mask = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[False, False, True, True]])
    next_token_nll(logits, ids, mask).backward()
    touched = logits.grad.abs().sum(dim=-1)[0] > 0
    assert touched.tolist() == [False, True, True, False]


def test_an_empty_mask_costs_nothing() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    ids = torch.zeros(2, 3, dtype=torch.int64)
    first = torch.zeros(2, 3, dtype=torch.bool)
    first[:, 0] = True
    loss = next_token_nll(logits, ids, first)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad.abs().sum().item() == 0.0


def test_bfloat16_logits_are_summed_in_float32() -> None:
    rng = torch.Generator().manual_seed(1)
    logits = (torch.randn(2, 8, 300, generator=rng) * 3).bfloat16()
    ids = torch.randint(0, 300, (2, 8), generator=rng)
    mask = torch.ones(2, 8, dtype=torch.bool)
    exact = naive(logits.float().numpy(), ids.numpy(), mask.numpy())
    assert math.isclose(next_token_nll(logits, ids, mask).item(), exact, rel_tol=1e-6)
