"""Checkpoints after a short training: trained as said, and nothing else touched."""

from typing import Any

import pytest
import torch

from spark_audit.checkpoints.derived import Relearning
from spark_audit.checkpoints.open import OpenCheckpoints, open_checkpoint
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.errors import CheckpointError

TEXTS = tuple(f"The {word} service was closed." for word in ("old", "new", "late"))
IDS = torch.tensor([[1, 40, 50, 60, 70, 80, 90]])


def logits(loaded: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with loaded.active() as model:
        return model(input_ids=ids).logits.clone()


def mean_nll(loaded: Any) -> float:
    """Of the texts with EOS, by the model itself."""
    total = 0.0
    count = 0
    for text in TEXTS:
        ids = loaded.tokenizer(text)["input_ids"] + [loaded.tokenizer.eos_token_id]
        logp = logits(loaded, torch.tensor([ids]))[0, :-1].log_softmax(-1)
        total -= float(logp.gather(1, torch.tensor(ids)[1:, None]).sum())
        count += len(ids) - 1
    return total / count


@pytest.fixture
def opened(tiny_base, make_adapter, tmp_path):
    """``opened(**relearning)``: figures by name of the base, an adapter, and both."""
    adapter = str(make_adapter(tmp_path / "a"))

    def each(read: Any = logits, **how: Any) -> dict[str, tuple[str, Any]]:
        plan = Relearning(**{"texts": TEXTS, "steps": 6, "lr": 3e-3, "seed": 0} | how)
        loading = Loading(base=str(tiny_base), device="cpu")
        loaded_checkpoints = OpenCheckpoints(
            [Spec("a", (adapter,))], loading, relearning=plan
        ).each()
        return {
            loaded.name: (loaded.model_id, read(loaded))
            for loaded in loaded_checkpoints
        }

    return each


def test_base_and_adapter_learn_the_rows_and_stay_as_they_were(opened, tiny_base):
    nll = {name: value for name, (_, value) in opened(mean_nll).items()}
    assert list(nll) == ["base", "base+relearn", "a", "a+relearn"]
    assert nll["base+relearn"] < nll["base"] - 0.1
    assert nll["a+relearn"] < nll["a"] - 0.1
    plain = logits(open_checkpoint(str(tiny_base), device="cpu"))
    assert torch.equal(opened()["base"][1], plain)


def test_a_vanishing_rate_leaves_the_merged_model(opened):
    log_p = opened(lr=1e-12)
    for name in ("base", "a"):
        torch.testing.assert_close(log_p[f"{name}+relearn"][1], log_p[name][1])


def test_the_same_plan_gives_the_same_model_and_any_other_another_id(opened):
    first = opened()
    again = opened()
    ids = {first["a"][0]}
    for name, (key, value) in first.items():
        assert key == again[name][0]
        assert torch.equal(value, again[name][1])
    ids.add(first["a+relearn"][0])
    for changed_field in (
        {"steps": 7},
        {"lr": 2e-3},
        {"seed": 1},
        {"texts": TEXTS[:2]},
    ):
        ids.add(opened(lambda _: None, **changed_field)["a+relearn"][0])
    assert len(ids) == 6


def test_a_loss_that_is_not_finite_is_refused(opened):
    with pytest.raises(CheckpointError, match="--relearn-lr"):
        opened(lr=1e30)


def test_it_does_not_go_with_an_adapter_that_cannot_be_merged(
    tiny_base, make_adapter, tmp_path
):
    spec = Spec("a", (str(make_adapter(tmp_path / "dora", use_dora=True)),))
    plan = Relearning(TEXTS, 1, 1e-3, 0)
    loading = Loading(base=str(tiny_base), device="cpu")
    with pytest.raises(CheckpointError, match="/dora: "):
        OpenCheckpoints([spec], loading, relearning=plan)
