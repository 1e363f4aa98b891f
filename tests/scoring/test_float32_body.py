"""What a half-precision body costs, beside the same body in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
)

from spark_audit.scoring.passes.plain import Scorer
from spark_audit.scoring.score import drift

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True, pad_token_id=299),
    "gemma2": Gemma2Config(**SIZES),
    "gpt2": GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3
    ),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_drift_is_that_from_a_float32_copy(
    kind: str, make_loaded: Callable[..., Any], make_items: Callable[..., Any]
) -> None:
    config: PretrainedConfig = CONFIGS[kind]
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config).eval()
    half = model.to(torch.bfloat16)
    before = {name: one.clone() for name, one in half.state_dict().items()}
    items = make_items([5, 17, 30])
    loaded = make_loaded(half, dtype="bfloat16")
    with loaded.active() as module:
        scorer = Scorer(loaded, module, items[0], pytest.fail)
        own, wide = scorer.nll(items), scorer.widened()
        assert wide is not None
        with wide:
            full = scorer.nll(items)
        assert all(map(np.array_equal, scorer.nll(items), own))
    for name, one in half.state_dict().items():
        assert one.dtype == before[name].dtype
        assert torch.equal(one, before[name])
    apart = np.abs(np.concatenate(own) - np.concatenate(full))
    _, found = drift(loaded, items)
    assert found is not None
    # The same texts in another order: half precision rounds a batch its own way.
    np.testing.assert_allclose(found, (apart.mean(), apart.max()), rtol=0.3)
    assert apart.max() > 1e-3
    wider = make_loaded(half.float())
    with wider.active() as module:
        scorer = Scorer(wider, module, items[0], pytest.fail)
        for ours, theirs in zip(full, scorer.nll(items), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_float32_has_no_drift(
    make_loaded: Callable[..., Any], make_items: Callable[..., Any]
) -> None:
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(CONFIGS["llama"]).eval()
    assert drift(make_loaded(model), make_items([5]))[1] is None
