"""What adapter_config.json says: which adapters are opened, O-LoRA's way of LoRA.

Some of PEFT's types and fields open a second model or a file, import a package, or put
a string of the file into a regular expression. So a type is listed here when its code
was read (PEFT 0.21), with the fields that shape what it computes and a check for each;
fields that matter before or during training only are left at PEFT's own values;
whatever else is set is refused.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import regex
import torch
from pydantic import ConfigDict, Field, ValidationError, create_model

from spark_audit.checkpoints import weight_files
from spark_audit.checkpoints.untrusted import foreign
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel

MAX_COUNT = 10**6
_MAX_LAYERS = 1000
_MAX_PATTERNS = 1024
_MAX_PATTERN_LETTERS = 2000
_PATTERN_SECONDS = 2.0
_FAILURES = (TimeoutError, re.error, regex.error, RecursionError, OverflowError)
# Words of PEFT's that are no regular expression.
_ALL_LINEAR = "all-linear"
# Initialisations that leave the base's weights as they are: every tensor is read from
# the file, so they change nothing.
LEAVES_BASE = ("gaussian", "orthogonal", "eva", "mica")
# Those that change the base's weights by data or by a quantisation, so that they cannot
# be found again from the base alone.
_LOSES_BASE = ("corda", "lora_ga", "loftq")
_CONVERT_ADAPTER = (
    "merge it where it was trained; or give the base that this beginning left by "
    "--base, and set init_lora_weights to true in adapter_config.json"
)
NOT_TRAINED = "check that this is the folder that training saved last"
_LIST_NAMES = "list the modules' names"
_SAVED = "give the adapter_config.json that was saved with these weights"


_Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
_Scale = Annotated[float, Field(gt=0, le=MAX_COUNT)]
_Rate = Annotated[float, Field(ge=0, le=1)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Index = Annotated[int, Field(ge=0, le=2**31)]
_Name = Annotated[str, Field(pattern=r"\A[\w.-]{1,200}\Z")]
_Key = Annotated[str, Field(pattern=r"\A\^?(\.\*)?[\w.\\-]{1,200}\$?\Z")]
_Names = Annotated[list[_Name], Field(max_length=_MAX_LAYERS)]
_Indices = Annotated[list[_Index], Field(max_length=_MAX_LAYERS)]
_Tokens = Annotated[list[_Index], Field(max_length=MAX_COUNT)]
_Targets = (
    Annotated[str, Field(min_length=1, max_length=_MAX_PATTERN_LETTERS)] | list[str]
)
_Start = Annotated[
    str,
    Field(pattern=rf"\A({'|'.join(LEAVES_BASE)}|pissa(_niter_\d{{1,2}})?|olora)\Z"),
]
# Of forks there are tasks of other names; these are none of language modelling.
_Task = Annotated[
    str, Field(pattern=r"\A(?!(SEQ_CLS|TOKEN_CLS|QUESTION_ANS|FEATURE_EXTRACTION)\Z)")
]
_Few = Field(max_length=_MAX_PATTERNS)
_Layer = Annotated[int, Field(ge=0, le=_MAX_LAYERS)]
_Pair = Annotated[list[_Layer], Field(min_length=2, max_length=2)]
_LoftQ = dict[Literal["loftq_bits", "loftq_iter"], Annotated[int, Field(ge=1, le=64)]]

_WITH_MODULES = ("LORA", "IA3", "LOHA", "LOKR", "VERA")
OPENED = (*_WITH_MODULES, "OSF", "PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING")
"""Types that are opened; with ``modules_to_save`` only the first ones are."""

_OPENED_VALUES: dict[str, Any] = {
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
    "init_lora_weights": bool | _Start,
    "bias": Literal["none", "all", "lora_only", "vera_only"],
    "layers_to_transform": Annotated[int, Field(ge=0, le=MAX_COUNT)] | _Indices,
    "layers_pattern": _Name | _Names,
    "rank_pattern": Annotated[dict[_Key, _Count | _Share], _Few],
    "alpha_pattern": Annotated[dict[_Key, _Scale], _Few],
    "trainable_token_indices": _Tokens | dict[_Name, _Tokens],
    "decompose_factor": Literal[-1] | _Count,
    "effective_rank": _Count | _Share,
    "num_transformer_submodules": Literal[1],
    "num_layers": Annotated[int, Field(ge=1, le=_MAX_LAYERS)],
    "task_type": _Task,
    "layer_replication": list[_Pair],
    "loftq_config": _LoftQ,
}
"""The fields that are opened -> the type of their values, which pydantic checks."""
# Each field may be left out.
_DEFINITIONS: dict[str, Any] = {
    name: (own, None) for name, own in _OPENED_VALUES.items()
}
_Opened: Any = create_model(
    "_Opened",
    __config__=ConfigDict(strict=True, regex_engine="python-re"),
    **_DEFINITIONS,
)
"""The configuration with these fields alone."""

WITHOUT_EFFECT = frozenset(
    {
        # Of O-LoRA and other forks.
        "r_sum",
        "save_loranew",
        # Of other versions of PEFT, and of ms-swift.
        "lora_dtype",
        "lorap_emb_lr",
        "lorap_lr_ratio",
        "swift_type",
        # Names, which nobody follows, and what loading sets by itself.
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "megatron_core",
        "peft_type",
        "peft_version",
        "revision",
        # How training began, or an encoder that only training runs.
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
"""Fields that change no figure of an adapter that is opened."""
_FILES = ("cache_file", "covariance_file")
_BEGINNINGS: dict[str, frozenset[str]] = {
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
"""Settings of how training began -> their fields. They are dropped."""
_NUMBERS = ("r", "alpha", "lora_alpha", "lora_dropout", "num_virtual_tokens")
"""Fields that some tools write as text."""


def adapter_type(raw: Mapping[str, object]) -> str:
    """Return the adapter's type as PEFT spells it, whatever a tool wrote."""
    return str(raw.get("peft_type")).upper().removeprefix("PEFTTYPE.")


def adapter_config(raw: Mapping[str, object]) -> PeftConfig:
    """Return PEFT's configuration object for the content of adapter_config.json.

    Raises
    ------
    CheckpointError
        For a type that is not opened, a task that is no causal language modelling, a
        beginning of training that left no whole base, or a field that is set and
        neither opened nor without effect.
    """
    import peft
    import peft.mapping

    types: Any = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING
    kind = adapter_type(raw)
    merge = "merge it where it was trained, and give the merged folder"
    if kind not in OPENED:
        what = f"adapters of the type {shown(kind)!r} are not opened (only "
        raise CheckpointError(f"{what}{', '.join(OPENED)})", fix=merge)
    _check_variant(raw)

    cls = types[kind]
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    kept = {}
    for name, value in raw.items():
        if name in WITHOUT_EFFECT or value is None or _is_beginning(name, value):
            continue
        without = name == "modules_to_save" and kind not in _WITH_MODULES
        if name in defaults and name in _Opened.model_fields and not without:
            kept[name] = _number(value) if name in _NUMBERS else value
        elif not (_is_off(value) or value == defaults.get(name)):
            what = f"sets {shown(name)}, which is not opened, or unknown to PEFT "
            what = f"adapter_config.json {what}{peft.__version__}"
            raise CheckpointError(what, fix=merge)
    try:
        validated = _Opened.model_validate(kept)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        # A number may be said; anything else is somebody's text.
        said = f" {kept[name]}" if type(kept[name]) in (int, float, bool) else ""
        what = f"gives {name} a value{said} that is not opened"
        raise CheckpointError(f"adapter_config.json {what}", fix=_SAVED) from error
    _check_layers(validated.layer_replication)
    # Of how training began, too, but PEFT looks at it.
    kept.pop("loftq_config", None)
    if kept.get("init_lora_weights") in LEAVES_BASE:
        kept["init_lora_weights"] = True
    kept |= {"inference_mode": True, "task_type": "CAUSAL_LM"}
    with foreign("adapter_config.json is refused by PEFT"):
        config: PeftConfig = cls(**cls.check_kwargs(**kept))
    return config


def _check_variant(raw: Mapping[str, object]) -> None:
    """Refuse what this adapter's own file cannot give back: parts of base, of texts."""
    start = raw.get("init_lora_weights")
    if isinstance(start, str) and start.lower() in _LOSES_BASE:
        what = f"training began with {start.lower()} (init_lora_weights), which "
        what += "changed the base's weights: what it left of them is not in this folder"
        raise CheckpointError(what, fix=_CONVERT_ADAPTER)
    if raw.get("alora_invocation_tokens"):
        what = "an activated LoRA (alora_invocation_tokens) acts only behind a string "
        what += "that starts it: a text without that string has its base's figures"
        raise CheckpointError(
            what, fix="audit its base, or an adapter that always acts"
        )


def _check_layers(replication: list[list[int]] | None) -> None:
    """Refuse more layers than any model has."""
    n_layers = sum(max(end - start, 0) for start, end in replication or ())
    if replication is not None and not 0 < n_layers <= _MAX_LAYERS:
        what = f"gives layer_replication a value of {n_layers} layers"
        raise CheckpointError(f"adapter_config.json {what}", fix=_SAVED)


def _is_off(value: object) -> bool:
    """Whether a field is empty, or an object of such fields only."""
    if isinstance(value, dict):
        return all(_is_off(inner) for inner in value.values())
    return value is None or value in (False, "", [], {})


def _is_beginning(name: str, value: object) -> bool:
    """Whether a field says only how training began, and names no file."""
    fields = _BEGINNINGS.get(name)
    if fields is None or not isinstance(value, dict) or not value.keys() <= fields:
        return False
    scalars = bool | int | float | str | None
    plain = all(isinstance(inner, scalars) for inner in value.values())
    return plain and not any(value.get(file) for file in _FILES)


def _number(value: object) -> object:
    """A number that is written as text, as a number; anything else as it is."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}\.\d{1,9}", value):
        return float(value)
    return value


def prepared(
    raw: dict[str, object], state: weight_files.State
) -> tuple[dict[str, object], weight_files.State, list[str]]:
    """Configuration and tensors as they are attached, with notes.

    Raises
    ------
    CheckpointError
        If a tensor is empty or holds other than floating-point numbers, the
        configuration has a field that is not opened, or O-LoRA's parts do not fit;
        also for NaN and for LoRA without effect.
    """
    weight_files.check_floats(state)
    adapter_config(raw)
    raw = {**raw, "peft_type": adapter_type(raw)}
    for name in _NUMBERS:
        if name in raw:
            raw[name] = _number(raw[name])
    raw, state, notes = fold_olora(raw, state)
    weight_files.check_filled(state)
    weight_files.check_finite(state)
    of_b = re.compile(r"\.lora_(embedding_)?B(\.weight)?$")
    parts = [state[key] for key in state if of_b.search(key)]
    if parts and not any(map(torch.count_nonzero, parts)):
        what = "every lora_B is zero: the adapter is untrained, and equals its base"
        raise CheckpointError(what, fix=NOT_TRAINED)
    if adapter_type(raw) == "VERA" and raw.get("save_projection") is False:
        note = "VeRA without its projections: they are drawn again from its key, which "
        notes.append(f"{note}another version of torch or PEFT may do otherwise")
    return raw, state, notes


def changes_base(raw: Mapping[str, object]) -> bool:
    """Whether attaching the adapter changes the base's own weights.

    Such an adapter gets a base of its own, never the shared one.
    """
    start = raw.get("init_lora_weights", True)
    replaced = isinstance(start, str) and start.lower() not in LEAVES_BASE
    biased = raw.get("bias") not in (None, "none")
    return replaced or biased or bool(raw.get("layer_replication"))


def fold_olora(
    raw: dict[str, object], state: weight_files.State
) -> tuple[dict[str, object], weight_files.State, list[str]]:
    """O-LoRA's adapters as plain LoRA: new parts joined to old ones, rank from shapes.

    O-LoRA concatenates the low-rank parts of all tasks and keeps the configuration's
    ``r`` and ``lora_alpha``; its scale is ``lora_alpha / r`` at any width. An adapter
    of width m r is therefore loaded as rank m r with alpha m ``lora_alpha``. Parts that
    were saved apart (``loranew_A``, ``loranew_B``) are added. O-LoRA, and TRACE's copy
    of it, write the width of the joined parts down (``r_sum``): with another one, the
    configuration is not that of these weights. Without one, whole multiples are taken
    as O-LoRA's and a note says so; ``r = 1`` is not, for any width is a multiple of it.

    Returns
    -------
    tuple
        Configuration, tensors and notes; the given ones where nothing is to be done.
    """
    if adapter_type(raw) != "LORA":
        return raw, state, []
    folded, notes = dict(state), []
    for key in (new := [key for key in state if ".loranew_" in key]):
        old = key.replace(".loranew_", ".lora_")
        parts = [folded.pop(name) for name in (old, key) if name in folded]
        with foreign(f"tensor {shown(key)} does not fit {shown(old)}"):
            folded[old] = torch.cat(parts, dim=0 if ".loranew_A" in key else 1)
    if new:
        notes = [f"O-LoRA: {len(new)} loranew tensors added to the earlier ones"]
    found, rank = _widths(folded), _rank(raw)
    if len(found) == 1 and not found & {0, rank} and not raw.get("rank_pattern"):
        raw, note = _widened(raw, found.pop(), _widths(state))
        notes.append(note)
    return raw, folded, notes


def _widened(
    raw: dict[str, object], width: int, earlier: set[int]
) -> tuple[dict[str, object], str]:
    """The configuration at the width of all parts, and a note; ``earlier`` widths."""
    rank = _rank(raw)
    alpha = raw.get("lora_alpha", 8)
    written, why = raw.get("r_sum"), "from its r_sum"
    joined = [*earlier] == [written] and width - min(earlier) in (0, rank)
    if written is None:
        why = "only by its width, as it has no r_sum: if it is "
        why += "not of O-LoRA, give its adapter_config.json"
        joined = rank > 1
    fits = joined and width % rank == 0 and not raw.get("use_dora")
    if not fits or not isinstance(alpha, int | float):
        what = f"lora_A has rank {width}, adapter_config.json says r={raw.get('r')}"
        raise CheckpointError(what, fix=f"{_SAVED} (that of O-LoRA says r_sum, too)")
    times = width // rank
    # rsLoRA scales by the square root of the rank.
    alpha *= math.sqrt(times) if raw.get("use_rslora") else times
    return {**raw, "r": width, "lora_alpha": alpha}, (
        f"O-LoRA: rank {width} = {times} x {rank}, loaded with alpha {alpha:g} (the "
        f"scale stays alpha/r of the configuration, {why})"
    )


def _rank(raw: Mapping[str, object]) -> int:
    """Return the rank that a configuration gives, else PEFT's own."""
    rank = raw.get("r")
    return rank if isinstance(rank, int) and rank else 8


def _widths(state: weight_files.State) -> set[int]:
    return {state[k].shape[:1].numel() for k in state if k.endswith(".lora_A.weight")}


def resolve(
    config: PeftConfig, modules: Sequence[str], model: PreTrainedModel | None = None
) -> None:
    """Put names of the base's modules where PEFT would match patterns of the file.

    A regular expression can take longer than the universe lasts; matched here, under a
    clock, PEFT sees none. Names that no module ends with are left out, but those of
    experts, which PEFT itself turns into names of this version of transformers.

    Parameters
    ----------
    modules
        Names of the base's modules, without adapters.
    model
        The base, for the experts that it has.

    Raises
    ------
    CheckpointError
        If an expression is malformed, takes too long, or matches nothing.
    """
    experts = {} if model is None else _experts(model)
    paths = [name.split(".") for name in modules]
    known = {".".join(path[i:]) for path in paths for i in range(len(path))}
    replicated = bool(getattr(config, "layer_replication", None))
    for field in ("target_modules", "exclude_modules", "feedforward_modules"):
        value = getattr(config, field, None)
        if not value or value == _ALL_LINEAR:
            continue
        if not isinstance(value, str):
            # Layers that are repeated have names which the base does not know yet.
            if field != "feedforward_modules" and not replicated:
                kept = set(value) & known
                kept |= {name for name in value if name.split(".")[-1] in experts}
                setattr(config, field, kept or set(list(value)[:1]))
            continue
        if replicated:
            what = f"{field} is an expression, and layers are repeated"
            raise CheckpointError(f"adapter_config.json: {what}", fix=_LIST_NAMES)
        found = _matching(value, [*modules, *experts.values()], field)
        leaves = {name for name, place in experts.items() if place in found}
        setattr(config, field, (found - {*experts.values()}) | leaves)


def _experts(model: PreTrainedModel) -> dict[str, str]:
    """Map names that experts had in transformers 4 to where one of them was.

    Only of models whose experts have been joined since.
    """
    from peft.utils import transformers_weight_conversion as conversion

    theirs: Any = conversion
    kind = theirs._MODEL_TO_CONVERSION_PATTERN.get(model.config.model_type)
    names = theirs._MOE_TARGET_MODULE_MAPPING.get(kind, {})
    places: dict[str, str] = {}
    if not names:
        return places

    for path, _ in model.named_parameters():
        container, _, leaf = path.rpartition(".")
        for old, new in names.items():
            if leaf == new:
                places.setdefault(old, f"{container}.{old}")
    return places


def _matching(pattern: str, names: Sequence[str], field: str) -> set[str]:
    """Return the names that an expression of the file matches, under a clock."""
    what, end = "matches no module of the base", time.monotonic() + _PATTERN_SECONDS
    found = set()
    try:
        re.compile(pattern)  # PEFT's language: the other one has recursion
        match = regex.compile(pattern).fullmatch
        for name in names:
            if match(name, timeout=max(end - time.monotonic(), 1e-3)):
                found.add(name)
    except _FAILURES as error:
        found, what = set(), f"cannot be matched ({type(error).__name__})"
    if not found and field != "exclude_modules":
        what = f"what {field} gives {what} ({shown(pattern, 80)})"
        raise CheckpointError(f"adapter_config.json: {what}", fix=_LIST_NAMES)
    return found
