"""LoRA on a causal LM: the adapter in training, frozen copies, earlier adapters.

A model has up to three kinds of adapters, by their names in PEFT: ``default`` is in
training; ``earlier`` is frozen and acts beside it (O-LoRA); any other is a frozen copy
of ``default`` that acts in its place (a teacher).

In shapes, ``r`` is the rank of an adapter, ``R`` that of the earlier one, and ``n`` the
width of a layer. PEFT computes ``lora_B lora_A x``, times ``lora_alpha / r``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from spark_audit.errors import InputError

ADAPTER_NAME = "default"
"""PEFT's name of the adapter in training: its folder has no subfolder."""

EARLIER = "earlier"
"""PEFT's name of the frozen adapter of earlier tasks, switched on beside the one in
training; it has the sum of their ranks (O-LoRA)."""

_ATTENTION = re.compile(r"(attn|attention).*\.")
"""Part of the full name of a layer that lies in an attention block."""


def projections(model: torch.nn.Module, targets: Sequence[str] = ()) -> list[str]:
    """Return the full names of the linear layers that get LoRA.

    By default these are q, k, v and o of attention blocks.

    Parameters
    ----------
    targets
        Last names of other linear layers to use instead.

    Raises
    ------
    InputError
        If there is no such layer, with the names of the model's layers. Also raised for
        the output head.
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
    }
    if targets:
        names = [name for name in layers if _leaf(name) in targets]
    else:
        names = [name for name in layers if _ATTENTION.search(name)]

    # List the layers if a name is unknown or no layer looks like attention.
    head = getattr(model, "get_output_embeddings", lambda: None)()
    unknown = sorted({*targets} - {_leaf(name) for name in layers})
    if unknown or not names:
        leaves = dict.fromkeys(
            _leaf(name) for name, layer in layers.items() if layer is not head
        )
        wanted = f"linear layer {unknown[0]!r}" if unknown else "attention projections"
        raise InputError(
            f"has no {wanted}; its linear layers are: {', '.join(leaves) or 'none'}",
            where=type(model).__name__,
            fix="name some with --lora-targets" if leaves else "choose a transformer",
        )

    chosen_heads = [name for name in names if layers[name] is head]
    if chosen_heads:
        raise InputError(
            f"{_leaf(chosen_heads[0])!r} is the output head, which stays as it is",
            where="--lora-targets",
        )
    return names


def _leaf(name: str) -> str:
    """Return the last part of a module's full name."""
    return name.rpartition(".")[2]


def add_lora(
    model: PreTrainedModel,
    *,
    r: int = 16,
    alpha: float = 32,
    seed: int = 0,
    targets: Sequence[str] = (),
) -> PeftModel:
    """Put a fresh LoRA adapter on q, k, v and o (SPARK: r=16, alpha=32).

    Parameters
    ----------
    model
        A transformers causal LM. It is changed in place, and everything but the adapter
        is frozen.
    seed
        Seed of the random half (``lora_A``). ``lora_B`` starts at 0, so that the output
        does not change yet.
    targets
        Last names of other linear layers to use instead.

    Returns
    -------
    PeftModel
        ``save_pretrained(folder)`` writes a PEFT adapter folder.
    """
    names = projections(model, targets)
    config = LoraConfig(
        lora_dropout=0.0,
        target_modules=names,  # PEFT shortens a long list
        fan_in_fan_out=isinstance(model.get_submodule(names[0]), Conv1D),
        task_type="CAUSAL_LM",
    )

    # The draw of lora_A depends only on the seed, and does not affect other draws.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT 0.21 reads this attribute of transformers 5.23 by its old name.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
        torch.manual_seed(seed)
        return get_peft_model(model, _with_rank(config, r, alpha=alpha))


def _with_rank(config: LoraConfig, r: int, *, alpha: float) -> LoraConfig:
    """Return the configuration with another rank and scale."""
    return replace(
        config,
        r=r,
        lora_alpha=alpha,  # type: ignore[arg-type]  # any number does
        inference_mode=False,
    )


def copy_adapter(model: PeftModel, source: str, name: str) -> None:
    """Copy an adapter's weights to another one of the same model, which may be new.

    The caller decides which adapter is switched on, and what is trained.
    """
    if name not in model.peft_config:
        config = replace(model.peft_config[source], inference_mode=False)
        model.add_adapter(name, config)
    set_peft_model_state_dict(model, _state(model, source), adapter_name=name)


def _state(model: PeftModel, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter, with PEFT's names in a file."""
    return dict(
        get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    )


def switch(model: PeftModel, name: str = ADAPTER_NAME) -> None:
    """Switch on an adapter, and the earlier adapter if there is one."""
    if EARLIER not in model.peft_config:
        model.set_adapter(name)
        return
    assert isinstance(model.base_model, LoraModel)
    model.base_model.set_adapter([EARLIER, name])
    model.set_requires_grad(EARLIER, requires_grad=False)


def set_aside(model: PeftModel, *, seed: int) -> None:
    """Freeze the trained adapter, and continue with a fresh one beside it.

    The model's output stays the same. The weights in training are the same tensors with
    new values.

    Parameters
    ----------
    seed
        Seed of the fresh ``lora_A``, as in :func:`add_lora`.
    """
    set_earlier(model, whole_adapter(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in _layers(model):
            # PEFT draws a new lora_A, and sets lora_B to 0.
            reset: Callable[[str, bool], None] = module.reset_lora_parameters
            reset(ADAPTER_NAME, True)


def old_and_new(model: PeftModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return ``lora_A`` of earlier tasks ``(R, n)`` and in training ``(r, n)``.

    One pair for each layer.
    """
    return [
        (_weight(module.lora_A[EARLIER]), _weight(module.lora_A[ADAPTER_NAME]))
        for module in _layers(model)
        if EARLIER in module.lora_A
    ]


def _weight(linear: torch.nn.Module) -> torch.Tensor:
    """Return the weight of a linear layer."""
    assert isinstance(linear.weight, torch.Tensor)
    return linear.weight


def _layers(model: PeftModel) -> list[LoraLayer]:
    """Return the layers of a model that have LoRA."""
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def set_earlier(model: PeftModel, state: dict[str, torch.Tensor]) -> None:
    """Replace the earlier adapter by tensors ``(R, n)`` and ``(n, R)``.

    Its alpha is in proportion to its rank, so that the scale stays as it was.
    """
    # PEFT draws random weights for a new adapter, which are replaced at the end.
    with torch.random.fork_rng(devices=[]):
        if EARLIER in model.peft_config:
            remove_earlier(model)
        trained = model.peft_config[ADAPTER_NAME]
        assert isinstance(trained, LoraConfig)
        rank = rank_of(state)
        alpha = trained.lora_alpha * (rank / trained.r)
        model.add_adapter(EARLIER, _with_rank(trained, rank, alpha=alpha))
    set_peft_model_state_dict(model, state, adapter_name=EARLIER)
    switch(model)


def remove_earlier(model: PeftModel) -> None:
    """Remove the adapter of earlier tasks; the one in training stays switched on."""
    model.set_adapter(ADAPTER_NAME)
    model.delete_adapter(EARLIER)


def whole_adapter(model: PeftModel) -> dict[str, torch.Tensor]:
    """Return the tensors of one adapter that acts as all switched-on adapters.

    Low-rank parts are stacked: ``A = [A_1; A_2]``, ``B = [B_1 B_2]``, so that ``B A =
    B_1 A_1 + B_2 A_2``.
    """
    state = _state(model, ADAPTER_NAME)
    if EARLIER not in model.peft_config:
        return state
    earlier = _state(model, EARLIER)
    return {
        name: torch.cat([earlier[name], weight], dim=rank_axis(name))
        for name, weight in state.items()
    }


def rank_axis(name: str) -> int:
    """Return the axis of an adapter's tensor that has the size of the rank.

    ``lora_A`` is ``(r, n)``, and ``lora_B`` is ``(n, r)``.
    """
    return 0 if ".lora_A." in name else 1


def rank_of(state: dict[str, torch.Tensor]) -> int:
    """Return the rank of an adapter from its tensors ``(r, n)`` and ``(n, r)``."""
    return next(len(weight) for name, weight in state.items() if rank_axis(name) == 0)
