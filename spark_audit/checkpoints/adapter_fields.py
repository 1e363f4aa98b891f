"""The fields of adapter_config.json, with checks of those that are opened.

Some fields of PEFT open a second model or a file, import a package, or put a string of
the file into a regular expression. So this module lists each field that shapes what an
adapter computes, with its allowed values. Fields that matter only before or during
training keep PEFT's own values. Any other field that is set is refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

MAX_COUNT = 10**6
"""Largest rank, scale or number of tokens; real ones are far below."""
MAX_ADAPTED_LAYERS = 1000
"""Most layers that an adapter may have, repeated ones included."""
_MAX_PATTERNS = 1024
"""Most patterns of a field."""
_MAX_PATTERN_LETTERS = 2000
"""Longest regular expression."""
SAVED_CONFIG = "give the adapter_config.json that was saved with these weights"
LEAVES_BASE = ("gaussian", "orthogonal", "eva", "mica")
"""Initialisations that leave the base's weights unchanged: the file holds every tensor,
so the initialisation has no effect."""

# Limits on numbers, because a file could ask for any amount of memory.
_Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
_Scale = Annotated[float, Field(gt=0, le=MAX_COUNT)]
_Rate = Annotated[float, Field(ge=0, le=1)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Index = Annotated[int, Field(ge=0, le=2**31)]
# Names of modules, and patterns of them that match in linear time.
_Name = Annotated[str, Field(pattern=r"\A[\w.-]{1,200}\Z")]
_ModulePattern = Annotated[str, Field(pattern=r"\A\^?(\.\*)?[\w.\\-]{1,200}\$?\Z")]
_Names = Annotated[list[_Name], Field(max_length=MAX_ADAPTED_LAYERS)]
_Indices = Annotated[list[_Index], Field(max_length=MAX_ADAPTED_LAYERS)]
_Tokens = Annotated[list[_Index], Field(max_length=MAX_COUNT)]
# Any expression: it is matched under a time limit, see adapter_modules.
_Targets = (
    Annotated[str, Field(min_length=1, max_length=_MAX_PATTERN_LETTERS)] | list[str]
)
# Initialisations of LoRA without a change of the base, or with a computable one.
_Initialisation = Annotated[
    str,
    Field(pattern=rf"\A({'|'.join(LEAVES_BASE)}|pissa(_niter_\d{{1,2}})?|olora)\Z"),
]
# Forks have other names for their tasks; these are not language modelling.
_Task = Annotated[
    str, Field(pattern=r"\A(?!(SEQ_CLS|TOKEN_CLS|QUESTION_ANS|FEATURE_EXTRACTION)\Z)")
]
_FewPatterns = Field(max_length=_MAX_PATTERNS)
_Layer = Annotated[int, Field(ge=0, le=MAX_ADAPTED_LAYERS)]
# The first layer to repeat, and the layer after the last.
_LayerRange = Annotated[list[_Layer], Field(min_length=2, max_length=2)]
_LoftQ = dict[Literal["loftq_bits", "loftq_iter"], Annotated[int, Field(ge=1, le=64)]]

_VALUE_TYPES: dict[str, Any] = {
    "target_modules": _Targets,
    "exclude_modules": _Targets,
    "feedforward_modules": _Targets,
    "modules_to_save": _Names,
    "target_parameters": _Names,
    "r": _Count,
    "num_virtual_tokens": _Count,
    "token_dim": _Count,
    "num_attention_heads": _Count,
    "alpha": _Scale,
    "lora_alpha": _Scale,
    "d_initial": _Scale,
    "lora_dropout": _Rate,
    "rank_dropout": _Rate,
    "module_dropout": _Rate,
    "vera_dropout": _Rate,
    "projection_prng_key": _Index,
    "fan_in_fan_out": bool,
    "use_rslora": bool,
    "use_dora": bool,
    "lora_bias": bool,
    "ensure_weight_tying": bool,
    "use_effective_conv2d": bool,
    "decompose_both": bool,
    "rank_dropout_scale": bool,
    "save_projection": bool,
    "init_lora_weights": bool | _Initialisation,
    "bias": Literal["none", "all", "lora_only", "vera_only"],
    "layers_to_transform": Annotated[int, Field(ge=0, le=MAX_COUNT)] | _Indices,
    "layers_pattern": _Name | _Names,
    "rank_pattern": Annotated[dict[_ModulePattern, _Count | _Share], _FewPatterns],
    "alpha_pattern": Annotated[dict[_ModulePattern, _Scale], _FewPatterns],
    "trainable_token_indices": _Tokens | dict[_Name, _Tokens],
    "decompose_factor": Literal[-1] | _Count,
    "effective_rank": _Count | _Share,
    "num_transformer_submodules": Literal[1],
    "num_layers": Annotated[int, Field(ge=1, le=MAX_ADAPTED_LAYERS)],
    "task_type": _Task,
    "layer_replication": list[_LayerRange],
    "loftq_config": _LoftQ,
}
"""Fields that shape what an adapter computes -> the type of their values. A field of a
new type of adapters is added here, or to ``WITHOUT_EFFECT``."""
# Each field may be left out.
_DEFINITIONS: dict[str, Any] = {
    name: (value_type, None) for name, value_type in _VALUE_TYPES.items()
}
OpenedFields: Any = create_model(
    "OpenedFields",
    __config__=ConfigDict(strict=True, regex_engine="python-re"),
    **_DEFINITIONS,
)
"""A configuration of only these fields, each of them checked."""

WITHOUT_EFFECT = frozenset(
    {
        # Fields of O-LoRA and other forks.
        "r_sum",
        "save_loranew",
        # Fields of other versions of PEFT, and of ms-swift.
        "lora_dtype",
        "lorap_emb_lr",
        "lorap_lr_ratio",
        "swift_type",
        # Names that nothing follows, and values that loading sets itself.
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "megatron_core",
        "peft_type",
        "peft_version",
        "revision",
        # The start of training, or an encoder that only training runs.
        "encoder_dropout",
        "encoder_hidden_size",
        "encoder_num_layers",
        "encoder_reparameterization_type",
        "eva_config",
        "init_ia3_weights",
        "init_weights",
        "prefix_projection",
        "prompt_tuning_init",
        "prompt_tuning_init_text",
        "tokenizer_kwargs",
        "tokenizer_name_or_path",
    }
)
"""Fields without an effect on the figures of opened adapters."""
_FILE_FIELDS = ("cache_file", "covariance_file")
"""Fields on the start of training that name a file."""
_START_SETTINGS: dict[str, frozenset[str]] = {
    "corda_config": frozenset(
        {
            "cache_file",
            "covariance_file",
            "corda_method",
            "verbose",
            "use_float16_for_covariance",
            "prune_temporary_fields",
        }
    ),
    "lora_ga_config": frozenset({"direction", "scale", "stable_gamma"}),
}
"""Settings of the start of training -> their known fields. They change no figure, so
the settings are left out; an unknown field could have any effect."""
NUMBER_FIELDS = ("r", "alpha", "lora_alpha", "lora_dropout", "num_virtual_tokens")
"""Fields that some tools write as text."""


def is_empty(value: object) -> bool:
    """Return whether a field is empty, or an object of such fields only."""
    if isinstance(value, dict):
        return all(is_empty(inner) for inner in value.values())
    return value is None or value in (False, "", [], {})


def is_start_of_training(name: str, value: object) -> bool:
    """Return whether a field describes only the start of training, without a file."""
    known_fields = _START_SETTINGS.get(name)
    if known_fields is None or not isinstance(value, dict):
        return False
    if not value.keys() <= known_fields:
        return False

    scalars = bool | int | float | str | None
    is_plain = all(isinstance(inner, scalars) for inner in value.values())
    return is_plain and not any(value.get(field) for field in _FILE_FIELDS)


def as_number(value: object) -> object:
    """Return a number that is written as text as a number; anything else as it is."""
    # Only short numbers: a longer one is not a rank or a scale, and Python may refuse
    # it.
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}\.\d{1,9}", value):
        return float(value)
    return value
