"""LoRA in GGUF, written by the gguf package as llama.cpp's converter lays it out."""

from typing import Any

import pytest
import torch
from gguf_files import written_lora
from refusals import IDS, opened, problem_of, refused
from safetensors.torch import load_file
from tiny_models import adapted, make_model, save_model

pytest.importorskip("gguf", reason="the extra `gguf`")

ALL = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()


def lora_of(base: Any, folder: Any, **lora: Any) -> dict[str, torch.Tensor]:
    """The tensors of an adapter that PEFT saved on a base."""
    from transformers import AutoModelForCausalLM

    adapted(AutoModelForCausalLM.from_pretrained(base), **lora).save_pretrained(folder)
    return load_file(folder / "adapter_model.safetensors")


def by_hand(base: Any, state: dict[str, torch.Tensor], alpha: float) -> torch.Tensor:
    """Logits in float64 of the base with alpha / rank times B A added to weights."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base).double()
    for name in {key.rpartition(".lora_")[0] for key in state}:
        a = state[f"{name}.lora_A.weight"].double()
        b = state[f"{name}.lora_B.weight"].double()
        layer = model.get_submodule(name.removeprefix("base_model.model."))
        layer.weight.data += alpha / len(a) * (b @ a)
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits[0]


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_lora_in_gguf_is_what_a_merge_by_hand_is(kind, tmp_path):
    sizes = {"qwen3": {"head_dim": 8}}.get(kind, {})
    base = save_model(make_model(kind, **sizes), tmp_path / "base")
    lora = {"target_modules": ALL, "rank_pattern": {"k_proj": 2}}
    state = lora_of(base, tmp_path / "a", **lora)
    file = written_lora(
        tmp_path / "lora.gguf",
        state,
        make_model(kind, **sizes).config,
        architecture="llama" if kind == "mistral" else kind,
    )
    loaded = opened(file, base=base)
    with loaded.active() as active_model:
        logits = active_model.double()(input_ids=IDS, use_cache=False).logits[0]
    assert torch.allclose(logits, by_hand(base, state, 8.0), rtol=0, atol=1e-9)
    assert any(note.startswith("GGUF: LoRA of rank 4") for note in loaded.notes)
    assert not problem_of(file, base=base)


def test_half_precision_is_read_as_it_was_rounded(tiny_base, base_model, tmp_path):
    state = lora_of(tiny_base, tmp_path / "a")
    file = written_lora(
        tmp_path / "lora.gguf", state, base_model.config, kind="F16", alpha=3.0
    )
    halves = {key: tensor.half() for key, tensor in state.items()}
    with opened(file, base=tiny_base).active() as active_model:
        logits = active_model.double()(input_ids=IDS, use_cache=False).logits[0]
    expected = by_hand(tiny_base, halves, 3.0)
    assert torch.allclose(logits, expected, rtol=0, atol=1e-9)


def test_what_is_not_known_to_be_exact_is_refused(tiny_base, base_model, tmp_path):
    state = lora_of(tiny_base, tmp_path / "a")
    config = base_model.config
    good = written_lora(tmp_path / "good.gguf", state, config)
    refused(good, "give --base MODEL")
    unfit_file = written_lora(tmp_path / "b.gguf", state, config, architecture="falcon")
    refused(unfit_file, "llama-export-lora", base=tiny_base)
    unfit_file = written_lora(tmp_path / "c.gguf", state, config, architecture="qwen2")
    refused(unfit_file, "is LoRA on qwen2", base=tiny_base)
    unfit_file = written_lora(tmp_path / "d.gguf", state, config, alpha=0.0)
    refused(unfit_file, "adapter.lora.alpha", base=tiny_base)
    wide = {key: torch.cat([t, t], dim=1) for key, t in state.items()}
    unfit_file = written_lora(tmp_path / "e.gguf", wide, config)
    refused(unfit_file, "does not fit the base's layer", base=tiny_base)
    first = next(iter(state))
    table = {"base_model.model.model.embed_tokens.lora_A.weight": state[first]}
    unfit_file = written_lora(tmp_path / "f.gguf", state | table, config)
    refused(unfit_file, "which is no LoRA of a linear layer", base=tiny_base)
