"""LoRA stands on q, k, v and o of any architecture and nowhere else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import make_model
from transformers import AutoConfig, AutoModelForCausalLM

from spark_audit.errors import InputError
from spark_train.adapter_folder import replaced, save_adapter
from spark_train.lora import add_lora, projections

SMALL: dict[str, dict[str, Any]] = {
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 64},
    "gpt_neox": {"intermediate_size": 64},
    "phi3": {"intermediate_size": 64, "pad_token_id": 0},
    "qwen2": {"intermediate_size": 64, "num_key_value_heads": 2},
}
EXPECTED = {
    "llama": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "qwen2": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "gpt2": {"c_attn", "c_proj"},
    "opt": {"q_proj", "k_proj", "v_proj", "out_proj"},
    "gpt_neox": {"query_key_value", "dense"},
    "phi3": {"qkv_proj", "o_proj"},
}


@pytest.fixture
def make():
    def build(kind: str) -> Any:
        if kind in ("llama", "gpt2"):
            return make_model(kind)
        config = AutoConfig.for_model(
            kind,
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            **SMALL[kind],
        )
        return AutoModelForCausalLM.from_config(config)

    return build


@pytest.mark.parametrize("kind", EXPECTED)
def test_adapters_stand_on_the_attention_projections(kind, make):
    model = make(kind)
    names = projections(model)
    assert {name.rpartition(".")[2] for name in names} == EXPECTED[kind]
    peft = add_lora(model, r=2, alpha=4)
    on = {
        name.removeprefix("base_model.model.").partition(".lora_A")[0]
        for name, weight in peft.named_parameters()
        if weight.requires_grad and ".lora_A" in name
    }
    assert on == set(names)
    assert all(
        "lora_" in name for name, w in peft.named_parameters() if w.requires_grad
    )


def test_a_model_without_attention_names_its_layers():
    model = torch.nn.Sequential()
    model.add_module("in_proj", torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match=" in_proj; "):
        projections(model)
    with pytest.raises(InputError, match="'q_proj'.* in_proj; "):
        projections(model, ["q_proj"])
    with pytest.raises(InputError, match="'lm_head'"):
        projections(make_model("llama"), ["lm_head"])
    assert projections(model, ["in_proj"]) == ["in_proj"]


def test_a_fresh_adapter_changes_nothing_and_follows_its_seed(make):
    ids = torch.tensor([[1, 5, 9, 3]])
    plain = make("llama")(input_ids=ids).logits
    adapted = [add_lora(make("llama"), seed=seed) for seed in (0, 0, 1)]
    torch.testing.assert_close(adapted[0](input_ids=ids).logits, plain)
    first, again, other = (
        dict(model.named_parameters())[
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
        ]
        for model in adapted
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    config = adapted[0].peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (16, 32, 0.0)
    assert set(config.target_modules) == set(projections(make("llama")))


def test_an_adapter_says_which_base_it_was_trained_on(make, tmp_path, monkeypatch):
    model = add_lora(make("llama"), r=2, alpha=4)
    target = tmp_path / "target"
    link = tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    with replaced(link) as part:
        save_adapter(model, part, base="b", base_sha256="0" * 64)
    assert link.is_symlink()
    told = json.loads((target / "trained_on.json").read_text())
    assert set(told) == {"base_sha256", "files", "seal"}
    assert told["base_sha256"] == "0" * 64
    # The same folder, named from inside; what was there is replaced.
    monkeypatch.chdir(target)
    with replaced(Path(".")) as part:
        save_adapter(model, part, base="b")
    monkeypatch.chdir(tmp_path)
    names = sorted(path.name for path in target.iterdir())
    assert names == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "trained_on.json",
    ]
    assert not list(tmp_path.glob(".*"))
