"""GGUF files, written by the gguf package as llama.cpp's converter lays them out."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def named(name: str) -> str:
    for gguf_name, own_name in NAMES.items():
        name = name.replace(gguf_name, own_name)
    return name


def turned(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of query and key as llama.cpp has them: halves of a head interleaved."""
    half = weight.reshape(heads, 2, len(weight) // heads // 2, weight.shape[1])
    return half.swapaxes(1, 2).reshape(weight.shape)


def written(
    file: Path, model: Any, tokens: list[str], kind: str = "F32", **fields: float
) -> Path:
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(int(fields.get("hidden", config.hidden_size)))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if fields.get("key_value_heads", 1):
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    for name, tensor in model.state_dict().items():
        value = tensor.float().numpy()
        for projection, heads in (
            ("q_proj", config.num_attention_heads),
            ("k_proj", config.num_key_value_heads),
        ):
            if projection in name:
                value = turned(value, heads)
        quantization = gguf.GGMLQuantizationType["F32" if value.ndim == 1 else kind]
        packed = gguf.quants.quantize(np.ascontiguousarray(value), quantization)
        writer.add_tensor(named(name), packed, raw_dtype=quantization)
    if more := int(fields.get("more", 0)):
        writer.add_tensor("more.weight", np.zeros(more, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def number(value: int, code: str = "Q") -> bytes:
    return struct.pack(f"<{code}", value)


def string(text: bytes, length: int | None = None) -> bytes:
    return number(len(text) if length is None else length) + text


def written_lora(
    file: Path,
    state: dict[str, Any],
    config: Any,
    *,
    architecture: str = "llama",
    alpha: float = 8.0,
    kind: str = "F32",
) -> Path:
    """Write LoRA of PEFT's names as llama.cpp's ``convert_lora_to_gguf.py`` does."""
    import gguf

    writer = gguf.GGUFWriter(file, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, tensor in state.items():
        value = tensor.float().numpy()
        layer, _, projection = name.removeprefix("base_model.model.").rpartition(
            ".lora_"
        )
        heads = {
            "q_proj": config.num_attention_heads,
            "k_proj": config.num_key_value_heads,
        }.get(layer.rpartition(".")[2])
        if heads and projection == "B.weight" and architecture == "llama":
            value = turned(value, heads)
        end = "lora_a" if projection == "A.weight" else "lora_b"
        quantization = gguf.GGMLQuantizationType[kind]
        packed = gguf.quants.quantize(np.ascontiguousarray(value), quantization)
        writer.add_tensor(
            f"{named(layer)}.weight.{end}", packed, raw_dtype=quantization
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
