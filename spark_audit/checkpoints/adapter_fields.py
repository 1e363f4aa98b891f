"""Which adapters are opened, and what each field of their configuration may be.

Some of PEFT's types and fields open a second model or a file, import a package, or put
a string of the file into a regular expression. So a type is listed here when its code
was read (PEFT 0.21), with the fields that shape what it computes and a check for each;
fields that matter before or during training only are left at PEFT's own values;
whatever else is set is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import regex
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from spark_audit.errors import CheckpointError, shown

LARGEST = 10**6
_LAYERS = 1000
_PATTERNS = 1024
_LETTERS = 2000
_SECONDS = 2.0
# Words of PEFT's that are no regular expression.
_ALL_LINEAR = "all-linear"
# Initialisations that leave the base's weights as they are: every tensor is read from
# the file, so they change nothing.
LEAVES_BASE = ("gaussian", "orthogonal", "eva")

_STRICT = ConfigDict(strict=True, regex_engine="python-re")


def _short(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if sum(b - a for a, b in pairs) > _LAYERS:
        raise ValueError("more layers than any model has")
    return pairs


_Count = Annotated[int, Field(ge=1, le=LARGEST)]
_Scale = Annotated[float, Field(gt=0, le=LARGEST)]
_Rate = Annotated[float, Field(ge=0, le=1)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Index = Annotated[int, Field(ge=0, le=2**31)]
_Layer = Annotated[int, Field(ge=0, le=_LAYERS)]
_Name = Annotated[str, Field(pattern=r"\A[\w.-]{1,200}\Z")]
_Key = Annotated[str, Field(pattern=r"\A\^?(\.\*)?[\w.\\-]{1,200}\$?\Z")]
_Names = Annotated[list[_Name], Field(max_length=_LAYERS)]
_Indices = Annotated[list[_Index], Field(max_length=_LAYERS)]
_Tokens = Annotated[list[_Index], Field(max_length=LARGEST)]
_Targets = Annotated[str, Field(min_length=1, max_length=_LETTERS)] | list[str]
_Start = Annotated[
    str,
    Field(pattern=rf"\A({'|'.join(LEAVES_BASE)}|pissa(_niter_\d{{1,2}})?|olora)\Z"),
]
_Pair = Annotated[list[_Layer], Field(min_length=2, max_length=2)]

OPENED: Mapping[str, tuple[str, ...]] = {
    "LORA": (),
    "IA3": (),
    "LOHA": ("init_weights",),
    "LOKR": ("init_weights",),
    "VERA": (),
    "OSF": ("modules_to_save",),
    "PROMPT_TUNING": ("modules_to_save",),
    "PREFIX_TUNING": ("modules_to_save", "init_weights"),
    "P_TUNING": ("modules_to_save",),
}
"""Type -> those of :data:`FIELDS` that are not opened for it."""

FIELDS: Mapping[str, Any] = {
    "target_modules": _Targets,
    "exclude_modules": _Targets,
    "feedforward_modules": _Targets,
    "modules_to_save": _Names,
    "fan_in_fan_out": bool,
    "layers_to_transform": Annotated[int, Field(ge=0, le=LARGEST)] | _Indices,
    "layers_pattern": _Name | _Names,
    "r": _Count,
    "alpha": _Scale,
    "lora_alpha": _Scale,
    "rank_pattern": Annotated[dict[_Key, _Count | _Share], Field(max_length=_PATTERNS)],
    "alpha_pattern": Annotated[dict[_Key, _Scale], Field(max_length=_PATTERNS)],
    "lora_dropout": _Rate,
    "rank_dropout": _Rate,
    "module_dropout": _Rate,
    "vera_dropout": _Rate,
    "bias": Literal["none", "all", "lora_only", "vera_only"],
    "use_rslora": bool,
    "init_lora_weights": bool | _Start,
    "init_weights": bool,
    "trainable_token_indices": _Tokens | dict[_Name, _Tokens],
    "use_dora": bool,
    "layer_replication": Annotated[list[_Pair], AfterValidator(_short)],
    "lora_bias": bool,
    "target_parameters": _Names,
    "ensure_weight_tying": bool,
    "use_effective_conv2d": bool,
    "decompose_both": bool,
    "decompose_factor": Literal[-1] | _Count,
    "rank_dropout_scale": bool,
    "projection_prng_key": _Index,
    "save_projection": bool,
    "d_initial": _Scale,
    "effective_rank": _Count | _Share,
    "num_virtual_tokens": _Count,
    "token_dim": _Count,
    "num_transformer_submodules": Literal[1],
    "num_attention_heads": _Count,
    "num_layers": Annotated[int, Field(ge=1, le=_LAYERS)],
}
"""Field -> the values that are opened, as pydantic reads them."""

WITHOUT_EFFECT = frozenset(
    {
        # Of forks and old versions.
        "r_sum",
        "save_loranew",
        # Names, which nobody follows, and what loading sets by itself.
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "megatron_core",
        "peft_type",
        "peft_version",
        "revision",
        "task_type",
        # How training began, or an encoder that only training runs.
        "encoder_dropout",
        "encoder_hidden_size",
        "encoder_num_layers",
        "encoder_reparameterization_type",
        "eva_config",
        "init_ia3_weights",
        "init_weights",
        "loftq_config",
        "prefix_projection",
        "prompt_tuning_init",
        "prompt_tuning_init_text",
        "tokenizer_kwargs",
        "tokenizer_name_or_path",
    }
)


def checked(name: str, value: object) -> Any:
    """A value of a field of :data:`FIELDS`.

    Raises
    ------
    CheckpointError
        For one that is not opened: no positive whole number for a rank or a count,
        no positive finite one for alpha, a name with a pattern in it.
    """
    try:
        TypeAdapter(FIELDS[name], config=_STRICT).validate_python(value)
    except ValidationError as error:
        # A number may be said; anything else is somebody's text.
        said = f" {value}" if type(value) in (int, float, bool) else ""
        raise CheckpointError(
            f"adapter_config.json gives {name} a value{said} that is not opened",
            fix="give the adapter_config.json that was saved with these weights",
        ) from error
    if name == "init_lora_weights" and str(value) in LEAVES_BASE:
        return True
    return value


def resolve(config: Any, modules: Sequence[str]) -> None:
    """Put names of the base's modules where PEFT would match patterns of the file.

    A regular expression can take longer than the universe lasts; matched here, under a
    clock, PEFT sees none. Names that no module ends with are left out.

    Raises
    ------
    CheckpointError
        If an expression is malformed, takes too long, or matches nothing.
    """
    known = {tail for name in modules for tail in _tails(name)}
    for field in ("target_modules", "exclude_modules", "feedforward_modules"):
        value = getattr(config, field, None)
        if isinstance(value, str) and value != _ALL_LINEAR:
            setattr(config, field, _matched(value, modules, field=field))
        elif value and not isinstance(value, str) and field != "feedforward_modules":
            setattr(config, field, set(value) & known or set(list(value)[:1]))


def _tails(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]


def _matched(pattern: str, modules: Sequence[str], *, field: str) -> set[str]:
    what = "is no regular expression"
    try:
        re.compile(pattern)  # PEFT's language: the other one has recursion
        compiled = regex.compile(pattern)
        left, found = _SECONDS, set()
        for name in modules:
            begun = time.monotonic()
            if compiled.fullmatch(name, timeout=max(left, 1e-3)):
                found.add(name)
            left -= time.monotonic() - begun
        if found or field == "exclude_modules":
            return found
        what = "matches no module of the base"
    except TimeoutError:
        what = "takes too long to be matched"
    except (re.error, regex.error, RecursionError, OverflowError):
        pass
    raise CheckpointError(
        f"adapter_config.json: what {field} gives {what} ({shown(pattern)[:80]})",
        fix="list the modules' names",
    )
