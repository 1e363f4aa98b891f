"""Adapters of the text class on the whole model, and the other way round."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import IDS, change, opened, problem_of, refused
from tiny_architectures import tiny_model
from tiny_models import make_tokenizer
from transformers import AutoModelForCausalLM
from transformers.models.auto import modeling_auto

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
MOST = 1e-5
"""Nats that our figures may differ from PEFT's by, both in float64."""


def log_probabilities(model: Any) -> torch.Tensor:
    """Log-probabilities in float64, shape ``(10, V)``."""
    with torch.inference_mode():
        logits = model.double()(input_ids=IDS, use_cache=False).logits[0]
    return logits.log_softmax(-1)


@pytest.fixture(scope="module", params=["gemma3", "qwen3_5"])
def bases(request, tmp_path_factory) -> tuple[Path, Path]:
    """A model that also reads images, and its language model as a class of its own."""
    folder = tmp_path_factory.mktemp(request.param)
    full_model = tiny_model(
        request.param, modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING
    )
    text = AutoModelForCausalLM.from_config(full_model.config.get_text_config())
    if hasattr(text.model, "language_model"):
        pytest.skip("transformers gives the whole class for the text's configuration")
    text.model.load_state_dict(full_model.model.language_model.state_dict())
    text.lm_head.load_state_dict(full_model.lm_head.state_dict())
    for name, model in (("whole", full_model), ("text", text)):
        model.save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    return folder / "whole", folder / "text"


def saved(
    folder: Path, base: Path, *, cls: Any = AutoModelForCausalLM, **settings: Any
) -> torch.Tensor:
    """Save LoRA on a model; return PEFT's figures with it."""
    from peft import LoraConfig, get_peft_model

    model = cls.from_pretrained(base)
    settings = {"target_modules": ["q_proj", "down_proj"], "r": 4, **settings}
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.2 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    return log_probabilities(model.eval())


SETTINGS: list[dict[str, Any]] = [
    {},
    {"target_modules": r"model\.layers\.1\..*\.(down|up)_proj"},
    {
        "rank_pattern": {"model.layers.1.mlp.down_proj": 2},
        "alpha_pattern": {"^model.layers.1.mlp.down_proj": 3},
    },
    {"use_dora": True, "layers_to_transform": [1], "layers_pattern": "layers"},
    {"modules_to_save": ["embed_tokens"]},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_adapter_of_the_text_class_has_its_figures_on_the_whole_model(
    settings, bases, tmp_path
):
    full_base, text = bases
    adapter = saved(tmp_path / "a", text, **settings)
    loaded = opened(tmp_path / "a", base=full_base)
    with loaded.active() as model:
        log_p = log_probabilities(model)
    assert float((log_p - adapter).abs().max()) <= MOST
    assert any("trained on another class" in note for note in loaded.notes)
    assert not problem_of(tmp_path / "a", base=full_base)


def test_an_adapter_with_a_layer_that_is_not_there_is_refused(bases, tmp_path):
    from safetensors.torch import load_file, save_file

    full_base, text = bases
    saved(tmp_path / "a", text)
    file = tmp_path / "a" / "adapter_model.safetensors"
    state = {k.replace("layers.1.", "layers.7."): t for k, t in load_file(file).items()}
    save_file(state, file, metadata={"format": "pt"})
    change(tmp_path / "a" / "adapter_config.json", base_model_name_or_path=None)
    refused(tmp_path / "a", "does not fit the base", base=full_base)


def test_an_adapter_of_the_whole_model_has_its_figures_on_the_text_class(
    bases, tmp_path
):
    from transformers import AutoModelForImageTextToText

    full_base, text = bases
    targets = r".*language_model\.layers\..*\.(q_proj|down_proj)"
    adapter = saved(
        tmp_path / "a",
        full_base,
        target_modules=targets,
        cls=AutoModelForImageTextToText,
    )
    with opened(tmp_path / "a", base=text).active() as model:
        log_p = log_probabilities(model)
    assert float((log_p - adapter).abs().max()) <= MOST
