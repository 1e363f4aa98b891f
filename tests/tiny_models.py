"""Tiny models of every way to make logits, adapters on them, and their tokenizers."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

# Names, numbers and punctuation of the formats that tests write; no example text.
CORPUS = (
    "The service was good and the food was cold. Text: she said it was fine.",
    "Contact Maria Jones at maria.jones@example.org or call 555-0142 today.",
    "Customer John Smith paid 42 dollars on Monday; the label is positive.",
    "The rate was raised by 25 basis points. Label: hawkish, dovish, neutral.",
    "World, Sports, Business and Technology news of the week were read again.",
    "My social security number is 078-05-1120 and the password is xK9#qT2!.",
) * 3

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
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


def make_model(
    kind: str = "llama", *, seed: int = 0, bias: float = 0.0, **settings: Any
) -> Any:
    """A tiny random causal LM: hidden size 32, two layers, 300 rows in the head.

    Weights are wide (std 0.2), so that predictions differ clearly; ``bias`` is the
    standard deviation of biases. Configuration fields go by their Llama names, or those
    of the kind.
    """
    # OPT and others have no field of some of these names and keep them as extras.
    config = AutoConfig.for_model(kind, **(SIZES | KINDS.get(kind, {}) | settings))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval()
        for name, value in model.named_parameters():
            if bias and name.endswith("bias"):
                torch.nn.init.normal_(value, std=bias)
    return model


def make_tokenizer(*, bos: bool = True, size: int = 300) -> Any:
    """A fast byte-level BPE tokenizer.

    Ids 0, 1, 2 are ``<pad>``, ``<s>``, ``</s>``; with ``bos`` the tokenizer puts
    ``<s>`` in front, as Llama's does. Offsets leave nothing out (``trim_offsets`` is
    off: a word's token starts on the blank before it).
    """
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    byte_level = processors.ByteLevel(trim_offsets=False)
    if bos:
        template = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
        inner.post_processor = processors.Sequence([byte_level, template])
    else:
        inner.post_processor = byte_level
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=256,
    )


def save_model(model: Any, folder: Path) -> Path:
    """Write a model with the usual tokenizer; return the folder."""
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


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
