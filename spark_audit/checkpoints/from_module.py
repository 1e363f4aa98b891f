"""A model that somebody holds in memory, scored as it stands: while it is trained."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.models import entry_device, head_rows, max_positions
from spark_audit.checkpoints.tokenizer import tokenizer_sha256, usable_rows
from spark_audit.errors import CheckpointError, at

UNKNOWN = "not hashed: a model in memory"
"""Stands for the hash of weights that are still being trained."""


def live(
    model: Any,
    tokenizer: Any,
    *,
    name: str,
    activate: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Loaded:
    """A causal language model in memory as a checkpoint, adapters switched as they are.

    Parameters
    ----------
    model
        Of transformers, or PEFT's around one.
    activate
        What switches it to what is meant, such as ``model.disable_adapter``.

    Raises
    ------
    CheckpointError
        If its parameters are shards of a larger one, or its tokenizer is a slow one.
    """
    with at(f"checkpoint {name!r}"):
        parts = [*model.parameters()]
        if any(hasattr(p, "full_tensor") or hasattr(p, "ds_id") for p in parts):
            raise CheckpointError(
                "its parameters are shards (FSDP, ZeRO-3, tensor parallel)",
                fix="audit the checkpoints that are saved",
            )
        if not getattr(tokenizer, "is_fast", False):
            raise CheckpointError("has no fast tokenizer", fix="give one as tokenizer=")
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        adapter = getattr(model, "active_peft_config", None)
        # Whoever trains may use theirs with a padding and a truncation of its own.
        tokenizer = copy.deepcopy(tokenizer)
        return Loaded(
            name=name,
            source="a model in memory",
            format="live",
            model=model,
            tokenizer=tokenizer,
            **module_facts(inner, tokenizer, adapter),
            device=str(entry_device(inner)),
            weights_sha256=UNKNOWN,
            tokenizer_sha256=tokenizer_sha256(tokenizer),
            model_id=f"live {name}",
            activate=activate,
        )


def module_facts(model: Any, tokenizer: Any, adapter: Any = None) -> dict[str, Any]:
    """What a module is by itself, with PEFT's configuration of what is on it."""
    limit = max_positions(model.config)
    if limit is not None and adapter is not None and adapter.is_prompt_learning:
        limit -= adapter.num_virtual_tokens
    return {
        "architecture": type(model).__name__,
        "usable": usable_rows(tokenizer, head_rows(model)),
        "max_positions": limit,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Leave modes of training and all random numbers as they were.

    Inside, the model computes in the precision of its weights: the autocast that
    accelerate puts around ``forward`` is taken off.
    """
    modes = [(module, module.training) for module in model.modules()]
    # Those of NumPy's old interface are what data collators draw by.
    drawn = random.getstate(), np.random.get_state()  # noqa: NPY002
    cuda: Any = torch.cuda
    devices = range(cuda.device_count()) if cuda.is_initialized() else ()
    own = model.__dict__
    wrapped = own.get("forward") if "_original_forward" in own else None
    with torch.random.fork_rng(devices=[*devices]):
        try:
            if wrapped is not None:
                own["forward"] = own["_original_forward"]
            yield
        finally:
            if wrapped is not None:
                own["forward"] = wrapped
            for module, training in modes:
                module.training = training
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])  # noqa: NPY002
