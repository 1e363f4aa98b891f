"""What a half-precision body costs, beside the same body in float32."""

from typing import Any

import numpy as np
import pytest
import torch
from scored_by_hand import make_items, make_loaded
from tiny_models import make_model

from spark_audit.scoring.drift import drift
from spark_audit.scoring.passes.plain import Scorer

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True, "pad_token_id": 299},
    "gemma2": {"final_logit_softcapping": 30.0},
    "gpt2": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_drift_is_that_from_a_float32_copy(kind):
    model = make_model(kind, **KINDS[kind], initializer_range=0.3)
    half = model.to(torch.bfloat16)
    before = {name: one.clone() for name, one in half.state_dict().items()}
    items = make_items([5, 17, 30])
    loaded = make_loaded(half, dtype="bfloat16")
    with loaded.active() as module:
        scorer = Scorer(loaded, module, items[0], pytest.fail)
        own = scorer.nll(items)
        wide = scorer.widened()
        with wide:
            full = scorer.nll(items)
        assert all(map(np.array_equal, scorer.nll(items), own))
    for name, one in half.state_dict().items():
        assert one.dtype == before[name].dtype
        assert torch.equal(one, before[name])
    apart = np.abs(np.concatenate(own) - np.concatenate(full))
    _, found = drift(loaded, items)
    # The same texts in another order: half precision rounds a batch its own way.
    np.testing.assert_allclose(found, (apart.mean(), apart.max()), rtol=0.3)
    assert apart.max() > 1e-3
    wider = make_loaded(half.float())
    with wider.active() as module:
        scorer = Scorer(wider, module, items[0], pytest.fail)
        for ours, theirs in zip(full, scorer.nll(items), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-5)
