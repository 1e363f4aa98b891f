"""LoRA's variants, as PEFT's own tests have them: PEFT's figures, or a reason."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import IDS, change, opened, problem_of, refused, said
from slow_cases import fast_and_slow
from tiny_models import make_model, save_model

pytestmark = [
    # What PEFT warns of while it saves and loads the reference.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
MOST = 1e-5
"""Nats that our figures may differ from PEFT's by, both in float64."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Path]:
    """Tiny bases: head and embeddings tied, apart, with biases, with experts."""
    folder = tmp_path_factory.mktemp("bases")
    return {
        "tied": save_model(make_model(tie_word_embeddings=True), folder / "tied"),
        "apart": save_model(make_model(tie_word_embeddings=False), folder / "apart"),
        "qwen2": save_model(make_model("qwen2", bias=0.1), folder / "qwen2"),
        "gpt2": save_model(make_model("gpt2"), folder / "gpt2"),
    }


def saved(
    folder: Path, base: Path, *, rows: int = 0, embeddings: Any = "auto", **lora: Any
) -> Path:
    """Save LoRA with random numbers as PEFT does, after so many ``rows`` more."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    if rows:
        model.resize_token_embeddings(300 + rows, mean_resizing=False)
    settings = {"r": 4, "target_modules": ["q_proj", "v_proj"], **lora}
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.2 * torch.randn(weight.shape))
    model.save_pretrained(folder, save_embedding_layers=embeddings)
    return folder


def log_probabilities(model: Any) -> torch.Tensor:
    """Log-probabilities in float64, shape ``(10, V)``."""
    with torch.inference_mode():
        logits = model.double()(input_ids=IDS, use_cache=False).logits[0]
    return logits.log_softmax(-1)


def nats_apart(folder: Path, base: Path, *, rows: int = 0) -> float:
    """The largest difference from what PEFT itself makes of the folder."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    loaded = opened(folder, base=base)
    with loaded.active() as model:
        own_log_p = log_probabilities(model)
    reference = AutoModelForCausalLM.from_pretrained(base)
    if rows:
        reference.resize_token_embeddings(300 + rows, mean_resizing=False)
    reference = PeftModel.from_pretrained(reference, folder).eval()
    reference_log_p = log_probabilities(reference)
    assert own_log_p.shape == reference_log_p.shape
    assert not problem_of(folder, base=base)
    return float((own_log_p - reference_log_p).abs().max())


VARIANTS: list[dict[str, Any]] = [
    {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}},
    {"use_dora": True, "target_modules": "all-linear"},
    {"target_modules": ["q_proj", "lm_head"]},
    {"target_modules": ["q_proj", "lm_head"], "use_dora": True},
    {"target_modules": ["q_proj", "embed_tokens"]},
    {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    {"embeddings": True},
    {"modules_to_save": ["embed_tokens"]},
    {"modules_to_save": ["lm_head"]},
    {"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
    {"trainable_token_indices": [5, 7]},
    {"trainable_token_indices": {"embed_tokens": [3]}},
    {"layer_replication": [[0, 2], [1, 2]]},
    {"layer_replication": [[0, 2], [0, 2]], "layers_to_transform": [3]},
    {"init_lora_weights": "pissa"},
    {"init_lora_weights": "pissa_niter_4", "use_rslora": True},
    {"init_lora_weights": "olora"},
    {"init_lora_weights": "orthogonal"},
    {"init_lora_weights": "gaussian"},
    {"init_lora_weights": "mica"},
    {"exclude_modules": ["layers.0.self_attn.q_proj"]},
    {"layers_to_transform": [1], "layers_pattern": "layers"},
    {"target_parameters": ["q_proj.weight"], "target_modules": ["v_proj"]},
    {"bias": "all"},
    {"bias": "lora_only"},
    {"lora_bias": True},
]


def on_both_bases(variants: list[dict[str, Any]]) -> list[Any]:
    """Every variant on both bases: always on one of them, in turn."""
    tied = [(lora, "tied") for lora in variants]
    separate_cases = [(lora, "apart") for lora in variants]
    fast = [*tied[::2], *separate_cases[1::2]]
    return fast_and_slow([*tied, *separate_cases], fast=fast)


@pytest.mark.parametrize(("lora", "base"), on_both_bases(VARIANTS), ids=str)
def test_variants_have_the_figures_of_peft(lora, base, bases, tmp_path):
    folder = saved(tmp_path / "a", bases[base], **lora)
    assert nats_apart(folder, bases[base]) <= MOST


def test_eva_has_the_figures_of_peft(bases, tmp_path):
    """Its beginning is read from data, and gives each layer a rank of its own."""
    from peft import EvaConfig, LoraConfig, get_peft_model, initialize_lora_eva_weights
    from transformers import AutoModelForCausalLM

    base = bases["apart"]
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=4,
        target_modules=["q_proj", "v_proj", "down_proj"],
        init_lora_weights="eva",
        eva_config=EvaConfig(rho=2.0, use_label_mask=False),
    )
    model = get_peft_model(model, config)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        rows = torch.randint(3, 300, (32, 12))
        texts = [{"input_ids": row, "attention_mask": row > 0} for row in rows]
        batches = torch.utils.data.DataLoader(texts, batch_size=8)
        initialize_lora_eva_weights(model, batches, show_progress_bar=False)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path / "a")
    saved_as = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert saved_as["init_lora_weights"] == "eva"
    assert saved_as["rank_pattern"]
    assert nats_apart(tmp_path / "a", base) <= MOST


GROWN: list[dict[str, Any]] = [
    {},
    {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    {"modules_to_save": ["embed_tokens", "lm_head"]},
    {"trainable_token_indices": [300, 5]},
    {"use_dora": True, "use_rslora": True},
]


@pytest.mark.parametrize("base", ["tied", "apart"])
@pytest.mark.parametrize("lora", GROWN, ids=str)
def test_grown_vocabularies_have_the_figures_of_peft(lora, base, bases, tmp_path):
    folder = saved(tmp_path / "a", bases[base], rows=2, **lora)
    assert nats_apart(folder, bases[base], rows=2) <= MOST


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"init_lora_weights": "corda"}, "training began with corda"),
    ({"init_lora_weights": "lora_ga"}, "training began with lora_ga"),
    ({"init_lora_weights": "loftq"}, "training began with loftq"),
    ({"alora_invocation_tokens": [5, 7]}, "acts only behind a string"),
    ({"use_qalora": True}, "sets use_qalora, which is not opened"),
    ({"arrow_config": {"top_k": 2}}, "sets arrow_config, which is not opened"),
    ({"use_bdlora": {"nblocks": 2}}, "sets use_bdlora, which is not opened"),
    ({"kasa_config": {"beta": 0.1}}, "sets kasa_config, which is not opened"),
    ({"velora_config": {"num_groups": 2}}, "sets velora_config, which is not"),
    ({"monteclora_config": {"num_samples": 2}}, "sets monteclora_config, which"),
    ({"megatron_config": {"layers": 2}}, "sets megatron_config, which is not"),
    ({"qalora_group_size": 8}, "sets qalora_group_size, which is not opened"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=str)
def test_what_its_file_alone_does_not_give_is_refused(
    changes, reason, bases, make_adapter, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    change(folder / "adapter_config.json", **changes)
    refused(folder, reason, base=bases["apart"])


LATER_AND_EARLIER: list[dict[str, Any]] = [
    {"runtime_config": {"ephemeral_gpu_offload": False}},
    {"corda_config": {"corda_method": "ipm", "cache_file": None, "verbose": False}},
    {"lora_ga_config": {"direction": "ArB2r", "scale": "stable", "stable_gamma": 16}},
    {"loftq_config": {"loftq_bits": 4, "loftq_iter": 1}},
    {"eva_config": {"rho": 2.0, "tau": 0.99}},
    {"lora_alpha": "8", "r": "4", "lora_dropout": "0.05"},
    {"peft_type": "lora", "task_type": "causal_lm"},
    {"peft_type": "PeftType.LORA"},
    {"lora_dtype": "AUTO", "lorap_lr_ratio": None, "lorap_emb_lr": 1e-6},
    {"use_future": False, "future_config": {"on": False, "names": []}},
    {"future_list": [], "future_text": "", "future_count": 0},
    {"enable_lora": None, "merge_weights": False, "modules_to_save": []},
]


@pytest.mark.parametrize("changes", LATER_AND_EARLIER, ids=str)
def test_configurations_of_other_versions_compute_the_same(
    changes, bases, make_adapter, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    before = said(opened(folder, base=bases["apart"]))
    change(folder / "adapter_config.json", **changes)
    assert torch.equal(said(opened(folder, base=bases["apart"])), before)
    assert not problem_of(folder, base=bases["apart"])


NO_PART_OF_FIGURES = {
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "megatron_core"),
    *("peft_version", "revision"),
}
"""Fields that other tests have: names, and what loading sets by itself."""


def test_every_field_of_peft_stands_in_a_table():
    """``fan_in_fan_out`` is set for GPT-2, below, by its layers."""
    from peft import LoraConfig

    tables = [*VARIANTS, *GROWN, *LATER_AND_EARLIER, *(row[0] for row in REFUSED)]
    tried = {field for row in tables for field in row} | {"fan_in_fan_out"}
    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    assert fields - NO_PART_OF_FIGURES <= tried


def test_layers_that_are_stored_the_other_way_round_have_the_figures_of_peft(
    bases, tmp_path
):
    modules = ["c_attn", "c_proj"]
    folder = saved(
        tmp_path / "a", bases["gpt2"], target_modules=modules, fan_in_fan_out=True
    )
    assert nats_apart(folder, bases["gpt2"]) <= MOST
