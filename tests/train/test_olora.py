"""O-LoRA: adapters that add up, stay frozen, and open as one."""

import copy
import json
from typing import Any

import pytest
import torch
from peft import PeftModel
from plain_training import (
    adapted,
    make_rows,
    make_stream,
    moved,
    one_step,
    response_mean,
    same,
)
from tiny_models import make_model

from spark_train.adapter_folder import load_adapter, save_adapter
from spark_train.lora import EARLIER, add_lora, old_and_new, set_aside
from spark_train.student import Student
from spark_train.training_methods import METHODS

ROWS = make_rows(a=6, b=5, c=4)
FEW = ("epochs=2", "batch_size=3", "lr=0.01")
IDS = torch.arange(5, 29)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def tensors(model: Any, name: str) -> dict[str, torch.Tensor]:
    return {
        key: weight.detach().clone()
        for key, weight in model.named_parameters()
        if f".{name}." in key
    }


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_is_set_aside_goes_on_acting_and_is_frozen(kind):
    model = adapted(kind)
    student = Student(model)
    held = dict(student.trainable)
    for number in (1, 2, 3):
        before = logits(model)
        first = tensors(model, "default")
        set_aside(model, seed=number)
        torch.testing.assert_close(logits(model), before, rtol=1e-12, atol=1e-12)
        trained = {n: w for n, w in model.named_parameters() if w.requires_grad}
        assert {n: id(w) for n, w in trained.items()} == {
            n: id(w) for n, w in held.items()
        }
        assert not any(bool(w.count_nonzero()) for n, w in trained.items() if "_B" in n)
        fresh = tensors(model, "default")
        assert all(not torch.equal(first[n], fresh[n]) for n in fresh if "_A" in n)
        ranks = {len(old) for old, _ in old_and_new(model)}
        assert ranks == {4 * number}
        assert len(old_and_new(model)) == len([n for n in trained if "_A" in n])
        moved(model, seed=number)
        assert (logits(model) - before).abs().max() > 1e-3
    # A fresh adapter follows its seed, wherever the global generator stands.
    torch.rand(1)
    for seed in (3, 4):
        again = adapted(kind)
        set_aside(again, seed=seed)
        for name, weight in tensors(again, "default").items():
            is_same = torch.equal(weight, fresh[name])
            assert is_same is (seed == 3 or "_B" in name)


def test_a_saved_stage_opens_as_one_and_as_its_parts(tmp_path):
    model = adapted()
    set_aside(model, seed=1)
    moved(model, seed=1)
    set_aside(model, seed=2)
    moved(model, seed=2)
    (tmp_path / "a").mkdir()
    save_adapter(model, tmp_path / "a", base="base")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (12, 24)
    plain = make_model("llama", initializer_range=0.4).double()
    stock = PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path / "a")
    torch.testing.assert_close(logits(stock), logits(model), rtol=1e-9, atol=1e-9)

    parts = add_lora(copy.deepcopy(plain), r=4, alpha=8).double()
    for _ in range(2):  # what was there before gives way
        load_adapter(parts, tmp_path / "a")
        for name in ("default", EARLIER):
            mine = tensors(model, name)
            theirs = tensors(parts, name)
            assert mine.keys() == theirs.keys()
            assert mine
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)
        torch.testing.assert_close(logits(parts), logits(model), rtol=1e-12, atol=0)
    (tmp_path / "b").mkdir()
    save_adapter(parts, tmp_path / "b", base="base")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        files = [(tmp_path / side / name).read_bytes() for side in "ab"]
        assert files[0] == files[1]


def test_a_step_pays_for_what_is_not_orthogonal():
    stream = make_stream(adapted(), ROWS, *FEW)
    settings, student = stream.settings.olora, stream.student
    for k, phase in enumerate(METHODS["olora"].phases(stream)):

        def plain(step: Any, k: int = k) -> dict[str, Any]:
            own = dict(student.model.named_parameters())
            found = {"task": response_mean(student.model, step.rows["task"])}
            if k:
                found["orthogonal"] = settings.lambda_1 * sum(
                    (own[name.replace(".default.", f".{EARLIER}.")] @ weight.T)
                    .abs()
                    .sum()
                    for name, weight in student.trainable.items()
                    if ".lora_A." in name
                )
            return {**found, "loss": sum(found.values())}

        seen = one_step(
            stream,
            phase,
            plain=plain,
            after_start=lambda k=k: moved(student.model, seed=k),
        )
        wanted = {"task", "loss", "orthogonal"} - (set() if k else {"orthogonal"})
        assert seen.plain.keys() == wanted
        for name in wanted:
            assert seen.record[name] == pytest.approx(seen.plain[name].item(), rel=1e-9)
        same(seen.gradients, seen.plain_gradients)
