"""Names in a state dictionary of PEFT's model, which still have the adapter's name."""

from __future__ import annotations

import re

from spark_audit.checkpoints.weight_files import State
from spark_audit.errors import CheckpointError, shown

LORA = re.compile(
    r"(?P<part>.+\.lora(?:new)?_(?:embedding_)?[AB]|.+\.lora_magnitude_vector)"
    r"(?:\.(?P<name>(?!(?:weight|bias)$)[^.]+))?(?P<rest>\.(?:weight|bias))?"
)
"""PEFT's tensors; the adapter's name stands behind the part."""
SAVED_MODULE = re.compile(
    r"(?P<module>.+)\.modules_to_save\.(?P<name>[^.]+)(?P<rest>\.(?:weight|bias))"
)
"""A module that was trained whole; the base's own is its ``original_module``."""
ONE_ADAPTER = "save the one to audit alone: model.save_pretrained(FOLDER)"
_TABLE_NAME = re.compile(r"\.(lm_head|embed_tokens|embed_out|wte)\.")


def is_whole_model(state: State) -> bool:
    """Whether a file holds the base's own layers beside the adapter on them."""
    # LoRA of one tensor lies around the layer of another: ".base_layer.lora_A.".
    layers = [
        key
        for key in state
        if ".base_layer." in key
        and not key.endswith(".bias")  # an adapter may train and save these
        and not LORA.fullmatch(key)
    ]
    return any(not _TABLE_NAME.search(key) for key in layers)


def without_adapter_name(state: State) -> State:
    """Return an adapter's tensors by the names that PEFT saves them by.

    Raises
    ------
    CheckpointError
        If there are several adapters, or one tensor twice.
    """
    matches = {key: LORA.fullmatch(key) or SAVED_MODULE.fullmatch(key) for key in state}
    names = {match["name"] for match in matches.values() if match and match["name"]}
    if len(names) > 1:
        listed = ", ".join(sorted(map(shown, names))[:5])
        raise CheckpointError(f"holds several adapters ({listed})", fix=ONE_ADAPTER)
    if not names:
        return state

    renamed = State()
    for key, match in matches.items():
        saved = key
        if match and match["name"]:
            groups = match.groupdict()
            saved = groups.get("part") or groups["module"]
            # PEFT saves DoRA's vector without the name of its parameter.
            saved += "" if saved.endswith("_vector") else match["rest"] or ""
        if saved in renamed:
            what = f"holds the tensor {shown(saved)} twice"
            raise CheckpointError(what, fix=ONE_ADAPTER)
        renamed[saved] = state[key]
    return renamed
