"""What adapter_config.json says, and O-LoRA's way of saving LoRA."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from spark_audit.checkpoints.adapter_fields import (
    FIELDS,
    LEAVES_BASE,
    OPENED,
    WITHOUT_EFFECT,
    checked,
)
from spark_audit.checkpoints.offline import foreign
from spark_audit.checkpoints.weight_files import (
    check_filled,
    check_finite,
    check_floats,
)
from spark_audit.errors import CheckpointError, shown

State = dict[str, torch.Tensor]

_UNSUPPORTED = {
    "SHADOW": "open a second model",
    "XLORA": "load further adapters by their paths: audit those separately",
    "POLY": "need a task id with every text",
    "MULTITASK_PROMPT_TUNING": "need a task id with every text",
}
_OTHER_TASKS = {"SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION"}


def adapter_config(raw: Mapping[str, Any]) -> Any:
    """PEFT's configuration object for the content of adapter_config.json.

    Raises
    ------
    CheckpointError
        For an unknown type, a field that this version of PEFT does not know and that
        is set, a task that is no causal language modelling, or code to import.
    """
    import peft
    import peft.mapping

    types: Any = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING
    kind = str(raw.get("peft_type"))
    if kind in _UNSUPPORTED:
        raise CheckpointError(f"{kind} adapters {_UNSUPPORTED[kind]}")
    if kind not in types:
        raise CheckpointError(
            f"adapter_config.json has the type {shown(kind)!r}, unknown to PEFT "
            f"{peft.__version__}",
            fix="upgrade peft, or, where the type is of a copy of PEFT, merge the "
            "adapter there and give the result",
        )
    if kind not in OPENED:
        raise CheckpointError(
            f"{kind} adapters are not opened (only {', '.join(OPENED)})",
            fix="merge adapter and base and give the merged folder",
        )
    task = raw.get("task_type")
    if isinstance(task, str) and task in _OTHER_TASKS:
        raise CheckpointError(
            f"the adapter was trained for {task}, not for causal language modelling"
        )
    if raw.get("megatron_config"):
        raise CheckpointError("the adapter imports another package (megatron_config)")
    cls = types[kind]
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    kept = {"inference_mode": True, "task_type": "CAUSAL_LM"}
    for name, value in raw.items():
        if name in defaults and name in FIELDS and name not in OPENED[kind]:
            if value is not None:
                kept[name] = checked(name, value)
        elif name not in WITHOUT_EFFECT and value not in (None, False, "", [], {}):
            here = name in defaults and name != "runtime_config"
            if not here or value != defaults[name]:
                raise CheckpointError(
                    f"adapter_config.json sets {shown(name)}, "
                    + (
                        "which is not opened here"
                        if here
                        else f"unknown to PEFT {peft.__version__}"
                    ),
                    fix="merge adapter and base and give the merged folder, or upgrade "
                    "peft to the version that saved the adapter",
                )
    with foreign("adapter_config.json is refused by PEFT"):
        return cls(**cls.check_kwargs(**kept))


def prepared(
    raw: dict[str, Any], state: State
) -> tuple[dict[str, Any], State, list[str]]:
    """Configuration and tensors as they are attached, with notes.

    Raises
    ------
    CheckpointError
        If a tensor is empty or holds other than floating-point numbers, the
        configuration has a field that is not opened, or O-LoRA's parts do not fit;
        unless only headers were read, also for NaN and for LoRA without effect.
    """
    check_floats(state)
    adapter_config(raw)
    raw, state, notes = fold_olora(raw, state)
    check_filled(state)
    if not any(tensor.is_meta for tensor in state.values()):
        check_finite(state)
        _check_trained(state)
    if raw.get("peft_type") == "VERA" and raw.get("save_projection") is False:
        notes.append(
            "VeRA without its projections: they are drawn again from its key, which "
            "another version of torch or PEFT may do otherwise"
        )
    return raw, state, notes


def changes_base(raw: Mapping[str, Any]) -> bool:
    """Whether attaching the adapter changes the base's own weights.

    Such an adapter gets a base of its own, never the shared one.
    """
    start = raw.get("init_lora_weights", True)
    replaced = isinstance(start, str) and start.lower() not in LEAVES_BASE
    bias = raw.get("bias") not in (None, "none")
    return replaced or bias or bool(raw.get("layer_replication"))


def fold_olora(
    raw: dict[str, Any], state: State
) -> tuple[dict[str, Any], State, list[str]]:
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
    if str(raw.get("peft_type")) != "LORA":
        return raw, state, []
    folded, notes = dict(state), []
    for key in (new := [key for key in state if ".loranew_" in key]):
        old = key.replace(".loranew_", ".lora_")
        parts = [folded[old]] if old in folded else []
        with foreign(f"tensor {shown(key)} does not fit {shown(old)}"):
            axis = 0 if ".loranew_A" in key else 1
            folded[old] = torch.cat([*parts, folded.pop(key)], dim=axis)
    if new:
        notes = [f"O-LoRA: {len(new)} loranew tensors added to the earlier ones"]
    rank, alpha = raw.get("r", 8), raw.get("lora_alpha", 8)
    found, earlier = _widths(folded), _widths(state)
    if len(found) != 1 or raw.get("rank_pattern"):
        return raw, folded, notes
    width = found.pop()
    if rank is None or alpha is None:
        raise CheckpointError("adapter_config.json has no r or lora_alpha")
    if width == rank or width == 0:
        return raw, folded, notes
    if (written := raw.get("r_sum")) is None:
        joined_as, why = rank > 1, "only by its width, as it has no r_sum: if it is "
        why += "not of O-LoRA, give its adapter_config.json"
    else:
        joined_as = [*earlier] == [written] and width - min(earlier) in (0, rank)
        why = "from its r_sum"
    if width % rank or raw.get("use_dora") or not joined_as:
        raise CheckpointError(
            f"lora_A has rank {width}, adapter_config.json says r={rank}",
            fix="give the adapter_config.json that was saved with these weights (that "
            "of O-LoRA says r_sum, too)",
        )
    times = width // rank
    # rsLoRA scales by the square root of the rank.
    alpha *= math.sqrt(times) if raw.get("use_rslora") else times
    alpha = int(alpha) if float(alpha).is_integer() else alpha
    notes.append(
        f"O-LoRA: rank {width} = {times} x {rank}, loaded with alpha {alpha} (the "
        f"scale stays alpha/r of the configuration, {why})"
    )
    return {**raw, "r": width, "lora_alpha": alpha}, folded, notes


def _widths(state: State) -> set[int]:
    return {int(state[key].shape[0]) for key in state if key.endswith(".lora_A.weight")}


def _check_trained(state: State) -> None:
    """Some ``lora_B`` of a LoRA adapter is not zero."""
    of_b = re.compile(r"\.lora_(embedding_)?B(\.weight)?$")
    parts = [state[key] for key in state if of_b.search(key)]
    if parts and not any(map(torch.count_nonzero, parts)):
        raise CheckpointError(
            "every lora_B is zero: the adapter is untrained and would be audited as "
            "its base",
            fix="check that this is the folder that training saved last",
        )
