"""The class of transformers that a folder's configuration describes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.weight_files import ITS_OWN
from spark_audit.errors import CheckpointError, shown

MOST_BUFFERS = 1 << 28


def empty(config: Any, cls: Any) -> Any:
    """The module as the configuration has it, on the meta device."""
    with untrusted.foreign("config.json describes no model"), torch.device("meta"):
        return cls(copy.deepcopy(config))


def read_architecture(folder: Path, trusted: bool) -> tuple[Any, Any]:
    """A folder's configuration, and its class: a causal language model for sure.

    Parameters
    ----------
    trusted
        Whether code that comes with it may run.

    Raises
    ------
    CheckpointError
        If it is another kind of model, by name, or unknown to transformers.
    """
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.models.auto import modeling_auto

    with untrusted.foreign("config.json is not understood"):
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
        listed = [*map(str, getattr(config, "architectures", None) or ())]
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and (type(limit) is not int or not 0 <= limit < 1 << 31):
        what = "config.json says max_position_embeddings, but no length of a context"
        raise CheckpointError(what, fix=ITS_OWN)
    # Code of its own runs only where that is trusted: else it was refused before.
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    # By name: the mapping itself would import every model there is.
    known = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    mapping: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    cls = mapping.get(type(config), None)
    if own is not None:
        with untrusted.foreign("its own code cannot be loaded"):
            cls = get_class_from_dynamic_module(own, folder, local_files_only=True)
    elif listed and known.isdisjoint(listed):
        cls = None
    if cls is None or getattr(config, "is_encoder_decoder", False):
        name = shown(listed[0]) if listed else type(config).__name__
        raise CheckpointError(f"{name} is not a causal language model (decoder only)")
    # Tables of positions are as long as the configuration says: memory that no weights
    # back. On the meta device they cost nothing.
    size = sum(table.nbytes for table in empty(config, cls).buffers())
    if size > MOST_BUFFERS:
        what = f"config.json needs {size:.3g} bytes beside the weights"
        raise CheckpointError(what, fix=ITS_OWN)
    return config, cls
