"""Read adapter_config.json: the types of adapters that are opened, and how.

**A new adapter type is recognised here**: it is added to ``OPENED`` once its code in
PEFT was read (PEFT 0.21 for those that are there), and the fields that shape what it
computes to :mod:`spark_audit.checkpoints.adapter_fields`. Any other type is refused:
some of PEFT's types open a second model or a file, or import a package. A folder that
another tool than PEFT writes is a format: see :mod:`spark_audit.checkpoints.detect`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from spark_audit.checkpoints import tensor_checks
from spark_audit.checkpoints.adapter_fields import (
    LEAVES_BASE,
    MAX_ADAPTED_LAYERS,
    NUMBER_FIELDS,
    SAVED_CONFIG,
    WITHOUT_EFFECT,
    OpenedFields,
    as_number,
    is_empty,
    is_start_of_training,
)
from spark_audit.checkpoints.olora import PreparedAdapter, fold_olora
from spark_audit.checkpoints.untrusted import foreign
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from peft import PeftConfig

_WITH_MODULES = ("LORA", "IA3", "LOHA", "LOKR", "VERA")
OPENED = (*_WITH_MODULES, "OSF", "PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING")
"""Types that are opened; only the first ones are opened with ``modules_to_save``."""

# Initialisations that change the base's weights by data or by a quantisation, so that
# the base alone does not give them back.
_LOSES_BASE = ("corda", "lora_ga", "loftq")
_CONVERT_ADAPTER = (
    "merge it where it was trained; or give the base that this beginning left by "
    "--base, and set init_lora_weights to true in adapter_config.json"
)
# Advice for adapters that are refused.
NOT_TRAINED = "check that this is the folder that training saved last"
_MERGE_WHERE_TRAINED = "merge it where it was trained, and give the merged folder"
_UNORDERED_FIELDS = ("target_modules", "modules_to_save")
"""Lists of adapter_config.json that PEFT writes in any order."""
_UNHASHED_FIELDS = (
    "base_model_name_or_path",
    "revision",
    "peft_version",
    "inference_mode",
)
"""Fields of adapter_config.json that do not affect the result."""
# LoRA's second part, which is zero before training.
_LORA_B = re.compile(r"\.lora_(embedding_)?B(\.weight)?$")


def adapter_type(raw: Mapping[str, object]) -> str:
    """Return the adapter's type in PEFT's spelling, whichever tool wrote it."""
    return str(raw.get("peft_type")).upper().removeprefix("PEFTTYPE.")


def stable_fields(raw: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that affect what an adapter computes, with sorted lists.

    An adapter that is saved again has the same ones.

    Parameters
    ----------
    raw
        The content of adapter_config.json, by any tool.
    """
    fields = {key: value for key, value in raw.items() if key not in _UNHASHED_FIELDS}
    for key in _UNORDERED_FIELDS:
        names = raw.get(key)
        if isinstance(names, list):
            fields[key] = sorted(names)
    return fields


def adapter_config(raw: Mapping[str, object]) -> PeftConfig:
    """Return PEFT's configuration object for the content of adapter_config.json.

    Parameters
    ----------
    raw
        The content of adapter_config.json, by any tool.

    Raises
    ------
    CheckpointError
        For a type that is not opened, a task other than causal language modelling, an
        initialisation that did not keep the whole base, or a field that is set, not
        opened and not without effect.
    """
    import peft.mapping

    peft_type = adapter_type(raw)
    if peft_type not in OPENED:
        problem = (
            f"adapters of the type {shown(peft_type)!r} are not opened (only "
            f"{', '.join(OPENED)})"
        )
        raise CheckpointError(problem, fix=_MERGE_WHERE_TRAINED)
    _check_variant(raw)

    class_by_type: Any = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING
    config_class = class_by_type[peft_type]
    fields = _opened_fields(raw, peft_type, config_class)
    _check_values(fields)

    # This describes the start of training only, but PEFT would read it.
    fields.pop("loftq_config", None)
    if fields.get("init_lora_weights") in LEAVES_BASE:
        fields["init_lora_weights"] = True
    fields["inference_mode"] = True
    fields["task_type"] = "CAUSAL_LM"
    with foreign("adapter_config.json is refused by PEFT"):
        config: PeftConfig = config_class(**config_class.check_kwargs(**fields))
    return config


def _check_variant(raw: Mapping[str, object]) -> None:
    """Refuse an adapter that its file does not fully describe, or that varies by text.

    Raises
    ------
    CheckpointError
        With the way out.
    """
    initialisation = raw.get("init_lora_weights")
    if isinstance(initialisation, str) and initialisation.lower() in _LOSES_BASE:
        problem = (
            f"training began with {initialisation.lower()} (init_lora_weights), which "
            "changed the base's weights: what it left of them is not in this folder"
        )
        raise CheckpointError(problem, fix=_CONVERT_ADAPTER)

    if raw.get("alora_invocation_tokens"):
        problem = (
            "an activated LoRA (alora_invocation_tokens) acts only behind a string "
            "that starts it: a text without that string has its base's figures"
        )
        remedy = "audit its base, or an adapter that always acts"
        raise CheckpointError(problem, fix=remedy)


def _opened_fields(
    raw: Mapping[str, object], peft_type: str, config_class: Any
) -> dict[str, Any]:
    """Return the fields that shape what the adapter computes.

    Raises
    ------
    CheckpointError
        Names a field that is set, not opened and not without effect.
    """
    import peft

    defaults = {field.name: field.default for field in dataclasses.fields(config_class)}
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if name in WITHOUT_EFFECT or value is None or is_start_of_training(name, value):
            continue

        is_opened = name in defaults and name in OpenedFields.model_fields
        if name == "modules_to_save" and peft_type not in _WITH_MODULES:
            is_opened = False
        if is_opened:
            fields[name] = as_number(value) if name in NUMBER_FIELDS else value
            continue

        # An unknown field does no harm if it is off or has its default value.
        if not (is_empty(value) or value == defaults.get(name)):
            problem = (
                f"adapter_config.json sets {shown(name)}, which is not opened, or "
                f"unknown to PEFT {peft.__version__}"
            )
            raise CheckpointError(problem, fix=_MERGE_WHERE_TRAINED)
    return fields


def _check_values(fields: Mapping[str, Any]) -> None:
    """Refuse a value that a field must not have.

    Raises
    ------
    CheckpointError
        Names the field.
    """
    try:
        validated = OpenedFields.model_validate(fields)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        # A number may be quoted, but other values may be anybody's text.
        quoted = ""
        if type(fields[name]) in (int, float, bool):
            quoted = f" {fields[name]}"
        problem = f"adapter_config.json gives {name} a value{quoted} that is not opened"
        raise CheckpointError(problem, fix=SAVED_CONFIG) from None

    # Each pair gives the first layer and the layer after the last of those repeated.
    layer_ranges = validated.layer_replication
    if layer_ranges is not None:
        n_layers = sum(max(end - start, 0) for start, end in layer_ranges)
        if not 0 < n_layers <= MAX_ADAPTED_LAYERS:
            problem = (
                "adapter_config.json gives layer_replication a value of "
                f"{n_layers} layers"
            )
            raise CheckpointError(problem, fix=SAVED_CONFIG)


def prepared(raw: dict[str, object], state: tensor_checks.State) -> PreparedAdapter:
    """Return configuration and tensors in the form to attach, with notes.

    Raises
    ------
    CheckpointError
        If a tensor is empty, is not of floating-point numbers, or holds NaN, if the
        configuration has a field that is not opened, if O-LoRA's parts do not fit, or
        if LoRA has no effect.
    """
    tensor_checks.check_floats(state)
    adapter_config(raw)

    config = {**raw, "peft_type": adapter_type(raw)}
    for name in NUMBER_FIELDS:
        if name in config:
            config[name] = as_number(config[name])
    folded = fold_olora(config, state)
    tensor_checks.check_filled(folded.state)
    tensor_checks.check_finite(folded.state)

    # LoRA starts with B = 0, and then computes the same as its base.
    b_tensors = [folded.state[key] for key in folded.state if _LORA_B.search(key)]
    if b_tensors and not any(bool(tensor.any()) for tensor in b_tensors):
        problem = "every lora_B is zero: the adapter is untrained, and equals its base"
        raise CheckpointError(problem, fix=NOT_TRAINED)

    notes = list(folded.notes)
    is_vera = adapter_type(folded.config) == "VERA"
    if is_vera and folded.config.get("save_projection") is False:
        notes.append(
            "VeRA without its projections: they are drawn again from its key, which "
            "another version of torch or PEFT may do otherwise"
        )
    return PreparedAdapter(folded.config, folded.state, notes)


def changes_base(raw: Mapping[str, object]) -> bool:
    """Return whether the adapter changes the base's own weights when attached.

    Such an adapter gets its own copy of the base.
    """
    initialisation = raw.get("init_lora_weights", True)
    replaces_weights = False
    if isinstance(initialisation, str):
        replaces_weights = initialisation.lower() not in LEAVES_BASE
    trains_biases = raw.get("bias") not in (None, "none")
    return replaces_weights or trains_biases or bool(raw.get("layer_replication"))
