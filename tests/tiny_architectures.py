"""A tiny model of every causal and text-capable class that transformers can build.

Sizes go by the names that configurations share; ``FURTHER`` has what a kind needs
besides. Encoders of images and sounds are made as small, so that whole models of these
kinds are built, saved and opened in a second.
"""

import inspect
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

CAUSAL: dict[str, str] = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
OTHER_MEDIA: dict[str, str] = dict(modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)

MOST_PARAMETERS = 8_000_000
"""Of a model that counts as tiny; what is larger has sizes that nobody can set."""

_NAMES_BY_SIZE = {
    300: "vocab_size text_vocab_size",
    256: "max_position_embeddings n_positions n_ctx max_sequence_length",
    64: """intermediate_size ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim
        ffn_hidden_size shared_expert_intermediate_size moe_intermediate_size
        expert_ffn_hidden_size dense_intermediate_size mlp_dim inner_dim
        intermediate_size_mlp dim_ff block_ff_dim shared_intermediate_size
        moe_shared_expert_intermediate_size ffn_intermediate_size dff""",
    32: """hidden_size n_embd d_model embed_dim embedding_size dim word_embed_proj_dim
        text_embed_dim projection_dim output_dim out_hidden_size emb_dim input_dim
        proj_dim mm_hidden_size width hidden_dim lru_width attention_width
        text_hidden_size audio_hidden_size""",
    16: """kv_lora_rank q_lora_rank mamba_d_state state_size ssm_state_size image_size
        q_rank o_lora_rank image_height index_head_dim hidden_size_per_layer_input
        input_resolution""",
    8: """head_dim d_head linear_key_head_dim linear_value_head_dim v_head_dim
        qk_nope_head_dim qk_rope_head_dim rotary_dim mamba_d_head
        swa_head_dim swa_v_head_dim n_mamba_heads""",
    4: """num_attention_heads n_head num_heads n_heads encoder_attention_heads
        decoder_attention_heads attention_heads num_experts num_local_experts
        n_routed_experts moe_num_experts linear_num_value_heads n_experts
        swa_num_attention_heads patch_size vision_heads num_linear_attention_heads
        index_n_heads""",
    2: """num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers
        depth num_encoder_layers num_decoder_layers layers num_key_value_heads
        n_kv_heads num_kv_heads n_head_kv multi_query_group_num num_experts_per_tok
        num_experts_per_token moe_topk moe_k top_k_experts router_top_k
        num_attention_groups mamba_n_groups n_groups linear_num_key_heads
        swa_num_key_value_heads""",
}
SIZES = {name: size for size, names in _NAMES_BY_SIZE.items() for name in names.split()}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

_SAME_HEADS: dict[str, Any] = {"num_key_value_heads": 4}
_DECODER: dict[str, Any] = {"is_decoder": True}
_GIVEN_HEADS: dict[str, Any] = {"head_dim": 8, "num_key_value_heads": 2}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
# A half of a head's dimensions is divided among time, height and width.
_OF_FOUR: dict[str, Any] = {"rope_parameters": _ROPE | {"mrope_section": [2, 1, 1]}}
_HYBRID: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_expand": 2}
_PER_LAYER: dict[str, Any] = {"vocab_size_per_layer_input": 300}

FURTHER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        """axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa
        longcat_flash minicpm3 youtu""".split(),
        _SAME_HEADS,
    ),
    **dict.fromkeys(
        """bert bert-generation big_bird camembert data2vec-text electra ernie
        megatron-bert rembert roberta roberta-prelayernorm roformer xlm-roberta
        xlm-roberta-xl""".split(),
        _DECODER,
    ),
    **dict.fromkeys(
        "hunyuan_v1_dense hunyuan_v1_moe ministral nemotron".split(), _GIVEN_HEADS
    ),
    **dict.fromkeys(
        """glm46v glm4v paddleocr_vl qwen2_5_omni_thinker qwen2_5_vl
        qwen2_vl""".split(),
        {"text_config": _OF_FOUR | {"head_dim": 8}},
    ),
    "glm_ocr": {"text_config": _OF_FOUR},
    **dict.fromkeys(
        "glm4v_moe glmga".split(),
        {"text_config": {"rope_parameters": _ROPE | {"mrope_section": [1, 1, 0]}}},
    ),
    **dict.fromkeys("kimi_k25 mistral_large4".split(), {"text_config": _SAME_HEADS}),
    "axk1": _SAME_HEADS | {"n_group": 1, "topk_group": 1},
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "deepseek_v2": _SAME_HEADS | {"num_experts_per_tok": 2},
    "gemma3n_text": _PER_LAYER | {"num_kv_shared_layers": 0},
    "gemma4": {"text_config": _PER_LAYER},
    "gemma4_text": _PER_LAYER,
    "glm5_next": {"text_config": _SAME_HEADS},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "granitemoehybrid": _MAMBA | {"layer_types": ["mamba", "attention"]},
    "hunyuan_vl": {"text_config": _GIVEN_HEADS},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4": {
        "vision_config": {
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
    },
    "mamba2": {"num_heads": 8},
    "mistral4": _SAME_HEADS | {"head_dim": 16},
    "qwen3_5": {"text_config": _HYBRID},
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "qwen3_next": _HYBRID,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "roc_bert": {
        "pronunciation_vocab_size": 10,
        "shape_vocab_size": 10,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
        "is_decoder": True,
    },
    "step3p7": {"text_config": {"sliding_window": 8}},
    "zamba2": {"layer_types": ["mamba", "hybrid"], "hybrid_layer_ids": [1]},
    "zamba": {"layer_types": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}


NOT_TINY = frozenset(
    """blt chameleon cohere_compass cohere_compass_text cosmos3_edge dbrx deepseek_ocr2
    diffusion_gemma dots1 dots3_note dots3_note_text emu3 ernie4_5_vl_moe fast_vlm
    florence2 fun_asr_nano gemma3n gemma4_assistant gemma4_unified
    gemma4_unified_assistant glm5_next granite4_vision hunyuan_vl janus
    kyutai_speech_to_text molmo2 muse_glimmer muse_spark musicgen musicgen_melody
    nemo_speechlm nemotron_h_omni perception_lm pix2struct pp_formulanet qwen2_5_omni
    qwen3_omni_moe reformer vibevoice_asr zamba""".split()
)
"""Kinds that are not built here: sizes that nobody can set, rules among many sizes, a
package that is not installed (timm), or defaults that are no model."""


def tiny_config(kind: str) -> Any:
    """The configuration of a kind, with everything in it made small."""
    return _tiny(CONFIG_MAPPING[kind], FURTHER.get(kind, {}))


def _tiny(cls: Any, further: dict[str, Any]) -> Any:
    default = cls()
    names = set(inspect.signature(cls.__init__).parameters)
    names |= set(getattr(cls, "__dataclass_fields__", {})) | set(default.to_dict())
    values: dict[str, Any] = {}
    for name in names & SIZES.keys():
        # What an attribute is mapped to is set by its own name.
        is_alias = name in getattr(cls, "attribute_map", {})
        try:
            is_number = type(getattr(default, name, None)) is int
        except Exception:  # it may differ from layer to layer
            is_number = False
        if is_number and not is_alias:
            values[name] = SIZES[name]
    for name, inner in (getattr(cls, "sub_configs", None) or {}).items():
        if inner is AutoConfig:
            if getattr(default, name, None) is None:
                continue
            inner = type(getattr(default, name))
        values[name] = _tiny(inner, further.get(name, {})).to_dict()
    values |= {name: token for name, token in _TOKENS.items() if name in names}
    parts = (getattr(cls, "sub_configs", None) or {}).keys()
    values |= {name: value for name, value in further.items() if name not in parts}
    return cls(**values)


def tiny_model(kind: str, classes: Any, *, seed: int = 0) -> Any:
    """A random model of a kind, in evaluation mode; weights are wide (std 0.2).

    Parameters
    ----------
    classes
        The mapping of transformers from configurations to classes.

    Raises
    ------
    ValueError
        If it cannot be made tiny.
    """
    config = tiny_config(kind)
    cls = classes[type(config)]
    is_text = cls.config_class is type(config.get_text_config())
    config = config.get_text_config() if is_text else config
    with torch.device("meta"):
        n_parameters = cls(config).num_parameters()
    if n_parameters > MOST_PARAMETERS:
        raise ValueError(f"{kind} has {n_parameters:,} parameters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = cls(config).eval()
        # As saving does it; not every class has done so by now.
        model.tie_weights()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.2)
    return model
