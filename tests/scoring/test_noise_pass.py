"""Noise on input embeddings: the same draws for every batch, checkpoint and scale."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scored_by_hand import make_items, make_loaded
from tiny_models import adapted, make_model

from spark_audit.errors import InputError
from spark_audit.scoring.items import Item
from spark_audit.scoring.passes.noise import unit_normals
from spark_audit.scoring.score import score
from spark_audit.scoring.table import COLUMN_TYPES, Pass, TokenTable

LENGTHS = (12, 40, 7, 33, 2, 1)
KIND = Pass("noise", 0.1, 3)


@pytest.fixture(scope="module")
def items():
    return make_items(LENGTHS)


def nll(model: Any, item: Item, noise: torch.Tensor) -> np.ndarray:
    """One text whose embeddings are given with their noise, in float64."""
    ids = torch.from_numpy(item.ids.astype(np.int64))[None]
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    with torch.inference_mode():
        embedded = inner.get_input_embeddings()(ids) + noise
        logits = model(inputs_embeds=embedded, use_cache=False).logits[0, :-1].double()
    logp = torch.log_softmax(logits, -1)
    return -logp.gather(1, ids[0, 1:, None])[:, 0].numpy()


def assert_fits(
    table: TokenTable, model: Any, items: Sequence[Item], kind: Pass
) -> None:
    width = model.get_input_embeddings().weight.shape[1]
    for item in items:
        noise = kind.sigma * unit_normals(item, kind.draw, width)
        np.testing.assert_allclose(
            table.columns["nll"][table.rows(item.key)],
            nll(model, item, noise),
            atol=2e-5,
        )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_noise_is_added_to_what_is_read_and_to_nothing_else(kind, tied, items):
    model = make_model(kind, tie_word_embeddings=tied)
    scored = score(make_loaded(model), items, passes=[KIND, Pass()])
    assert scored.notes == ()
    assert_fits(scored[KIND], model, items, KIND)
    clean = scored[Pass()].columns["nll"]
    assert np.abs(scored[KIND].columns["nll"] - clean).max() > 0.05
    assert {k: v.dtype for k, v in scored[KIND].columns.items()} == COLUMN_TYPES[
        "noise"
    ]
    again = score(make_loaded(model), items)[Pass()]  # the hook is gone
    np.testing.assert_array_equal(again.columns["nll"], clean)


def test_a_batch_changes_nothing(items):
    loaded = make_loaded(make_model("llama"))
    first = score(loaded, items, passes=[KIND])[KIND]
    others = [score(loaded, items[::-1], passes=[KIND])[KIND]]
    for size in (1, 2, 6):
        others.append(score(loaded, items, passes=[KIND], batch_size=size)[KIND])
    for table in others:
        np.testing.assert_allclose(
            table.columns["nll"], first.columns["nll"], atol=1e-5
        )


def test_draws_follow_from_number_and_content_alone(items):
    one = items[1]
    normals = unit_normals(one, 0, 32)
    assert torch.equal(unit_normals(replace(one, key="other"), 0, 32), normals)
    assert not torch.equal(unit_normals(one, 1, 32), normals)
    changed = replace(one, ids=np.append(one.ids[:-1], 5).astype(np.int32))
    assert not torch.equal(unit_normals(changed, 0, 32), normals)
    moved = replace(one, positions=one.positions + 1)
    assert not torch.equal(unit_normals(moved, 0, 32), normals)
    many = torch.cat([unit_normals(one, draw, 320) for draw in range(20)])
    assert abs(float(many.mean())) < 0.01
    assert abs(float(many.std()) - 1) < 0.01
    # Positions draw apart.
    assert abs(float(torch.corrcoef(many[:2])[0, 1])) < 0.3


def test_relative_is_sigma_over_the_embeddings_size(items):
    model = make_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[-1] = 1e6  # no token
    usable = np.arange(300) < 299
    items = [
        replace(item, ids=np.minimum(item.ids, 298).astype(np.int32)) for item in items
    ]
    table = score(make_loaded(model, usable=usable), items, passes=[KIND])[KIND]
    weight = model.get_input_embeddings().weight.detach().numpy()[:299].astype(float)
    expected = KIND.sigma / np.sqrt((weight**2).mean())
    np.testing.assert_allclose(table.columns["relative"], expected, rtol=1e-6)


def test_an_adapter_and_frozen_noise_stay(items):
    from spark_audit.checkpoints.adapters import input_noise

    model = adapted(make_model("llama"), target_modules=["q_proj"])
    frozen = torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
    loaded = make_loaded(model, usable=np.ones(300, dtype=bool))
    with input_noise(model, frozen):
        table = score(loaded, items, passes=[KIND])[KIND]
        assert_fits(table, model, items, KIND)  # its embedding has the frozen part too
    without = score(loaded, items, passes=[KIND])[KIND]
    assert np.abs(table.columns["nll"] - without.columns["nll"]).max() > 0.1


@pytest.mark.parametrize("sigma", [0.0, -0.1, float("nan"), float("inf")])
def test_sigma_is_a_positive_number(sigma, items):
    loaded = make_loaded(make_model("llama"))
    with pytest.raises(InputError, match="^noise pass: "):
        score(loaded, items, passes=[Pass("noise", sigma)])
