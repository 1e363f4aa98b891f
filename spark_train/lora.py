"""LoRA on the attention projections, whatever an architecture calls them."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers.pytorch_utils import Conv1D

from spark_audit.errors import InputError

_ATTENTION = re.compile(r"attn|attention")


def attention_projections(model: torch.nn.Module) -> list[str]:
    """Full names of all linear layers inside attention blocks (q, k, v, o).

    Raises
    ------
    InputError
        If there is none.
    """
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
        and _ATTENTION.search(name.rpartition(".")[0])
    ]
    if not found:
        raise InputError(
            "no attention projections found to put LoRA on",
            where=type(model).__name__,
            fix="choose a transformer with attention layers",
        )
    return found


def add_lora(model: Any, *, r: int = 16, alpha: int = 32, seed: int = 0) -> Any:
    """Put a fresh LoRA adapter on q, k, v and o (SPARK: r=16, alpha=32).

    Parameters
    ----------
    model
        A transformers causal LM; it is changed in place and frozen but for the
        adapter.
    seed
        Of the random half (``lora_A``); ``lora_B`` starts at 0, so that the model's
        output does not change yet.

    Returns
    -------
    PeftModel
        ``save_pretrained(folder)`` writes a PEFT adapter folder.
    """
    names = attention_projections(model)
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=_shortest_target(model, names),
        fan_in_fan_out=isinstance(model.get_submodule(names[0]), Conv1D),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT 0.21 reads this attribute of transformers 5.23 by its old name.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def _shortest_target(model: torch.nn.Module, names: list[str]) -> list[str] | str:
    """Last names where they are unambiguous (Llama), else a pattern (GPT-2)."""
    leaves = sorted({name.rpartition(".")[2] for name in names})
    meant = {n for n, _ in model.named_modules() if n.rpartition(".")[2] in leaves}
    if meant == set(names):
        return leaves
    parents = sorted({name.split(".")[-2] for name in names})
    return rf".*\.({'|'.join(parents)})\.({'|'.join(leaves)})"
