"""Tiny models of every way to make logits, with adapters that change what they say."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Learned, rotary and linear-bias positions; windows; capped and scaled heads; every
# place a body can be.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "qwen2": {},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 4.0, "sliding_window": 8},
    "gemma3_text": {"head_dim": 8, "final_logit_softcapping": 4.0, "sliding_window": 8},
    "mistral": {"sliding_window": 8},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 3.0},
    "phi": {},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 16, "init_std": 0.2},
    "falcon": {"alibi": True},
    "bloom": {"n_layer": 2, "n_head": 4},
}


def build(kind: str, *, bias: float = 0.0, **settings: Any) -> Any:
    """A random model of a kind; ``bias`` is the standard deviation of its biases."""
    # OPT and others have no field of some of these names and keep them as extras.
    config = AutoConfig.for_model(kind, **(SIZES | KINDS.get(kind, {}) | settings))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        for name, value in model.named_parameters():
            if bias and name.endswith("bias"):
                torch.nn.init.normal_(value, std=bias)
    return model


def adapted(model: Any, config: Any = None, **lora: Any) -> Any:
    """The model with an adapter that changes it: ``config``, else LoRA's ``lora``."""
    from peft import LoraConfig, get_peft_model

    if config is None:
        settings = {"target_modules": ["q_proj", "v_proj"], **lora}
        config = LoraConfig(r=4, task_type="CAUSAL_LM", **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = get_peft_model(model, config)
        for name, weight in model.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                torch.nn.init.normal_(weight, std=0.3)
    return model.eval()
