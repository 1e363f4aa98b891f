"""Names in a state dictionary of PEFT's model, which include the adapter's name."""

from __future__ import annotations

import re

from spark_audit.checkpoints.tensor_checks import State
from spark_audit.errors import CheckpointError, shown

LORA = re.compile(
    r"(?P<part>.+\.lora(?:new)?_(?:embedding_)?[AB]|.+\.lora_magnitude_vector)"
    r"(?:\.(?P<name>(?!(?:weight|bias)$)[^.]+))?(?P<rest>\.(?:weight|bias))?"
)
"""Pattern of PEFT's tensors; the adapter's name follows the part."""
SAVED_MODULE = re.compile(
    r"(?P<module>.+)\.modules_to_save\.(?P<name>[^.]+)(?P<rest>\.(?:weight|bias))"
)
"""Pattern of a module that was trained whole; the base's is its ``original_module``."""
ONE_ADAPTER = "save the one to audit alone: model.save_pretrained(FOLDER)"
_TABLE_NAME = re.compile(r"\.(lm_head|embed_tokens|embed_out|wte)\.")


def is_whole_model(state: State) -> bool:
    """Return whether a file holds the base's own layers together with an adapter."""
    for key in state:
        # An adapter may also save biases, embeddings and heads.
        is_adapters_own = key.endswith(".bias") or _TABLE_NAME.search(key)
        # LoRA of a tensor can be inside the wrapper of a layer: ".base_layer.lora_A.".
        is_base_layer = ".base_layer." in key and not LORA.fullmatch(key)
        if is_base_layer and not is_adapters_own:
            return True
    return False


def name_without_adapter(match: re.Match[str]) -> str:
    """Return the name of a tensor in PEFT's files, without the adapter's name.

    Parameters
    ----------
    match
        A match of :data:`LORA` or :data:`SAVED_MODULE`.
    """
    groups = match.groupdict()
    name = groups.get("part") or groups["module"]
    # PEFT's files leave out the parameter's name of DoRA's vector.
    if name.endswith(".lora_magnitude_vector"):
        return str(name)
    return f"{name}{groups['rest'] or ''}"


def without_adapter_name(state: State) -> State:
    """Return an adapter's tensors with the names in PEFT's files.

    Raises
    ------
    CheckpointError
        If there are several adapters, or one tensor twice.
    """
    matches = {key: LORA.fullmatch(key) or SAVED_MODULE.fullmatch(key) for key in state}
    adapters = {match["name"] for match in matches.values() if match and match["name"]}
    if len(adapters) > 1:
        listed = ", ".join(sorted(shown(adapter) for adapter in adapters)[:5])
        raise CheckpointError(f"holds several adapters ({listed})", fix=ONE_ADAPTER)
    if not adapters:
        return state

    renamed = State()
    for key, match in matches.items():
        saved_name = key
        if match and match["name"]:
            saved_name = name_without_adapter(match)
        # "lora_A.weight" and "lora_A.default.weight" may both exist.
        if saved_name in renamed:
            problem = f"holds the tensor {shown(saved_name)} twice"
            raise CheckpointError(problem, fix=ONE_ADAPTER)
        renamed[saved_name] = state[key]
    return renamed
