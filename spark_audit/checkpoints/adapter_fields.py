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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex

from spark_audit.errors import CheckpointError, shown

LARGEST = 10**6
_LAYERS = 1000
_PATTERNS = 1024
_LETTERS = 2000
_SECONDS = 2.0
# Words of PEFT's that are no regular expression.
_ALL_LINEAR = "all-linear"
_NAME = re.compile(r"[\w.-]{1,200}")
_KEY = re.compile(r"\^?(\.\*)?[\w.\\-]{1,200}\$?")
# Initialisations that leave the base's weights as they are: every tensor is read from
# the file, so they change nothing.
LEAVES_BASE = ("gaussian", "orthogonal", "eva")
_REPLACES_BASE = re.compile(r"pissa(_niter_\d{1,2})?|olora")

Check = Callable[[Any], bool]


def _whole(value: Any, low: int, high: int = LARGEST) -> bool:
    return type(value) is int and low <= value <= high


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return _whole(value, 1)


def _scale(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= LARGEST


def _rate(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _LAYERS and all(map(_name, value))


def _patterns(value: Any, of: Check) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= _PATTERNS
        and all(_KEY.fullmatch(key) and of(each) for key, each in value.items())
    )


def _targets(value: Any) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= _LETTERS
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _indices(value: Any, *, most: int = _LAYERS) -> bool:
    if not isinstance(value, list):
        return _whole(value, 0)
    return len(value) <= most and all(_whole(each, 0, 2**31) for each in value)


def _tokens(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_name(key) and _tokens(each) for key, each in value.items())
    return isinstance(value, list) and _indices(value, most=LARGEST)


def _ranges(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2]
    whole = all(_whole(a, 0, _LAYERS) and _whole(b, 0, _LAYERS) for a, b in pairs)
    return (
        len(pairs) == len(value) and whole and sum(b - a for a, b in pairs) <= _LAYERS
    )


def _start(value: Any) -> bool:
    if isinstance(value, str):
        return value in LEAVES_BASE or _REPLACES_BASE.fullmatch(value) is not None
    return value is None or isinstance(value, bool)


_PLACES: dict[str, Check] = {
    "target_modules": _targets,
    "exclude_modules": _targets,
    "modules_to_save": _names,
    "fan_in_fan_out": _flag,
}
_LAYERED: dict[str, Check] = {
    **_PLACES,
    "layers_to_transform": _indices,
    "layers_pattern": lambda value: _name(value) or _names(value),
    "r": _count,
    "rank_pattern": lambda value: _patterns(value, _count),
    "alpha_pattern": lambda value: _patterns(value, _scale),
}
_LYCORIS: dict[str, Check] = {
    **_LAYERED,
    "alpha": _scale,
    "rank_dropout": _rate,
    "module_dropout": _rate,
    "use_effective_conv2d": _flag,
}
_PROMPT: dict[str, Check] = {
    "num_virtual_tokens": _count,
    "token_dim": _count,
    "num_transformer_submodules": lambda value: value == 1,
    "num_attention_heads": _count,
    "num_layers": lambda value: _whole(value, 1, _LAYERS),
}

FIELDS: Mapping[str, Mapping[str, Check]] = {
    "LORA": {
        **_LAYERED,
        "lora_alpha": _scale,
        "lora_dropout": _rate,
        "bias": lambda value: value in ("none", "all", "lora_only"),
        "use_rslora": _flag,
        "init_lora_weights": _start,
        "trainable_token_indices": _tokens,
        "use_dora": _flag,
        "layer_replication": _ranges,
        "lora_bias": _flag,
        "target_parameters": _names,
        "ensure_weight_tying": _flag,
    },
    "IA3": {**_PLACES, "feedforward_modules": _targets},
    "LOHA": _LYCORIS,
    "LOKR": {
        **_LYCORIS,
        "decompose_both": _flag,
        "decompose_factor": lambda value: value == -1 or _count(value),
        "rank_dropout_scale": _flag,
    },
    "PROMPT_TUNING": _PROMPT,
    "PREFIX_TUNING": _PROMPT,
    "P_TUNING": _PROMPT,
}
"""Type -> field -> whether a value is one that is opened."""

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


def checked(kind: str, raw: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The fields of a listed type that shape what it computes.

    Raises
    ------
    CheckpointError
        For a value that is not opened: no positive whole number for a rank or a count,
        no positive finite one for alpha, a name with a pattern in it.
    """
    kept = {}
    for name, check in FIELDS[kind].items():
        value = raw.get(name)
        if value is None:
            continue
        if not check(value):
            # A number may be said; anything else is somebody's text.
            said = f" {value}" if type(value) in (int, float, bool) else ""
            raise CheckpointError(
                f"adapter_config.json gives {name} a value{said} that is not opened",
                where=where,
                fix="give the adapter_config.json that was saved with these weights",
            )
        kept[name] = value
    return kept


def resolve(config: Any, modules: Sequence[str], *, where: str) -> None:
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
            setattr(config, field, _matched(value, modules, field=field, where=where))
        elif value and not isinstance(value, str) and field != "feedforward_modules":
            setattr(config, field, set(value) & known or set(list(value)[:1]))


def _tails(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]


def _matched(
    pattern: str, modules: Sequence[str], *, field: str, where: str
) -> set[str]:
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
        where=where,
        fix="list the modules' names",
    )
