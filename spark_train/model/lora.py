"""LoRA on the attention projections, whatever an architecture calls them."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save
from transformers.pytorch_utils import Conv1D

from spark_audit.checkpoints.sidecar import NOISE
from spark_audit.checksums import BLANK, fact, sealed
from spark_audit.errors import CheckpointError, InputError, OutputError
from spark_audit.files import check_regular, write_atomically, write_text
from spark_audit.provenance import sha256_file

_ATTENTION = re.compile(r"attn|attention")


def attention_projections(model: torch.nn.Module) -> list[str]:
    """Full names of all linear layers inside attention blocks (q, k, v, o).

    Raises
    ------
    InputError
        If there is none, with the names of what linear layers there are.
    """
    names = [n for n in _linear(model) if _ATTENTION.search(n.rpartition(".")[0])]
    if not names:
        raise _no_target(model, "no attention projections found to put LoRA on")
    return names


def named_projections(model: torch.nn.Module, targets: Sequence[str]) -> list[str]:
    """Full names of the linear layers whose last name is among ``targets``.

    Raises
    ------
    InputError
        If a target is no linear layer of the model, or is its output head.
    """
    every = _linear(model)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for target in targets:
        named = [name for name in every if _leaf(name) == target]
        if not named:
            raise _no_target(model, f"has no linear layer {target!r}")
        if any(model.get_submodule(name) is head for name in named):
            raise InputError(
                f"{target!r} is the output head, which stays as it is",
                where="--lora-targets",
            )
    return [name for name in every if _leaf(name) in targets]


def _linear(model: torch.nn.Module) -> list[str]:
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
    ]


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _no_target(model: torch.nn.Module, what: str) -> InputError:
    head = getattr(model, "get_output_embeddings", lambda: None)()
    names = [n for n in _linear(model) if model.get_submodule(n) is not head]
    leaves = list(dict.fromkeys(map(_leaf, names)))
    return InputError(
        f"{what}; its linear layers are: {', '.join(leaves) or 'none'}",
        where=type(model).__name__,
        fix="name some with --lora-targets" if leaves else "choose a transformer",
    )


def add_lora(
    model: Any,
    *,
    r: int = 16,
    alpha: float = 32,
    seed: int = 0,
    targets: Sequence[str] = (),
) -> Any:
    """Put a fresh LoRA adapter on q, k, v and o (SPARK: r=16, alpha=32).

    Parameters
    ----------
    model
        A transformers causal LM; it is changed in place and frozen but for the
        adapter.
    seed
        Of the random half (``lora_A``); ``lora_B`` starts at 0, so that the model's
        output does not change yet.
    targets
        Last names of linear layers to put it on instead.

    Returns
    -------
    PeftModel
        ``save_pretrained(folder)`` writes a PEFT adapter folder.
    """
    if targets:
        names = named_projections(model, targets)
    else:
        names = attention_projections(model)
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,  # type: ignore[arg-type]  # any number does
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
    leaves = sorted(set(map(_leaf, names)))
    meant = {name for name, _ in model.named_modules() if _leaf(name) in leaves}
    if meant == set(names):
        return leaves
    parents = sorted({name.split(".")[-2] for name in names})
    return rf".*\.({'|'.join(parents)})\.({'|'.join(leaves)})"


# --- copies ---------------------------------------------------------------------------

ADAPTER = "default"
"""PEFT's name of the adapter in training: its folder has no name of its own."""


def copy_adapter(model: Any, source: str, name: str) -> None:
    """Give an adapter's weights to another of the same model, added where missing.

    Which adapter is switched on, and what is trained, is the caller's to say.
    """
    if name not in model.peft_config:
        config = replace(model.peft_config[source], inference_mode=False)
        model.add_adapter(name, config)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for key, weight in own.items():
            if f".{name}." in key:
                weight.copy_(own[key.replace(f".{name}.", f".{source}.")])


# --- earlier adapters -----------------------------------------------------------------

EARLIER = "earlier"
"""PEFT's name of the adapter that is switched on beside the one in training, frozen:
those of earlier tasks, as one of their ranks together (O-LoRA)."""


def switch(model: Any, name: str = ADAPTER) -> None:
    """Switch on an adapter, and beside it the earlier one where there is one."""
    if EARLIER not in model.peft_config:
        model.set_adapter(name)
        return
    model.base_model.set_adapter([EARLIER, name])
    for key, weight in model.named_parameters():
        if f".{EARLIER}." in key:
            weight.requires_grad_(False)


def set_aside(model: Any, *, seed: int) -> None:
    """Freeze what was trained so far, and go on with a fresh adapter beside it.

    The model's output stays the same; the weights in training are the same tensors with
    other values.

    Parameters
    ----------
    seed
        Of the fresh ``lora_A``, as in :func:`add_lora`.
    """
    _set_earlier(model, _whole(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in _layers(model):
            module.reset_lora_parameters(ADAPTER, True)


def old_and_new(model: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """``lora_A`` of earlier tasks ``(R, n)`` and in training ``(r, n)``, by layer."""
    return [
        (module.lora_A[EARLIER].weight, module.lora_A[ADAPTER].weight)
        for module in _layers(model)
        if EARLIER in module.lora_A
    ]


def _layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def _set_earlier(model: Any, state: dict[str, torch.Tensor]) -> None:
    """Make tensors of :func:`_whole` the earlier adapter."""
    with torch.random.fork_rng(devices=[]):
        if EARLIER in model.peft_config:
            model.set_adapter(ADAPTER)
            model.delete_adapter(EARLIER)
        own = model.peft_config[ADAPTER]
        rank = _rank(state)
        alpha = own.lora_alpha * (rank / own.r)
        config = replace(own, r=rank, lora_alpha=alpha, inference_mode=False)
        model.add_adapter(EARLIER, config)
    set_peft_model_state_dict(model, state, adapter_name=EARLIER)
    switch(model)


def _whole(model: Any) -> dict[str, torch.Tensor]:
    """The tensors of the adapter that acts as all that are switched on do.

    Low-rank parts stand one below the other: ``A = [A_1; A_2]``, ``B = [B_1 B_2]``, so
    that ``B A = B_1 A_1 + B_2 A_2``.
    """
    own, *rest = (
        get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        for name in (ADAPTER, EARLIER)
        if name in model.peft_config
    )
    if not rest:
        return dict(own)
    return {
        name: torch.cat([rest[0][name], weight], dim=_axis(name))
        for name, weight in own.items()
    }


def _axis(name: str) -> int:
    """Along which ranks are counted."""
    return 0 if ".lora_A." in name else 1


def _rank(state: dict[str, torch.Tensor]) -> int:
    return next(len(weight) for name, weight in state.items() if _axis(name) == 0)


# --- adapter folders ------------------------------------------------------------------

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TRAINED_ON = "trained_on.json"
"""Beside an adapter: the hash of the base whose weights it was trained on, of the
frozen noise that belongs to it, and of the adapter's own files."""


def save_adapter(
    model: Any,
    folder: Path,
    *,
    base: str,
    base_sha256: str | None = None,
    noise: Path | None = None,
    link_noise: bool = False,
) -> None:
    """Write the adapter in training as a PEFT folder, whole or not at all.

    The same weights give the same bytes. A folder that is there is replaced. With an
    earlier adapter beside it both are written as one: of their ranks together, with
    ``lora_alpha`` as much larger, so that the scale ``lora_alpha / r`` stays.

    Parameters
    ----------
    model
        A ``PeftModel``; of its adapters ``default`` is written, with ``earlier``.
    base
        What the folder names as its base model.
    base_sha256
        ``weights_sha256`` of that base as it was opened, for ``trained_on.json``, by
        which another model of the same name is told apart; ``None``: no such file.
    noise
        A file of frozen noise that belongs to the adapter: it is put beside it, and
        ``trained_on.json`` and the weights' header hold its hash.
    link_noise
        As another name of the same file, where the file system can do that.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    config = model.peft_config[ADAPTER].to_dict()
    config |= {"base_model_name_or_path": base, "inference_mode": True}
    # PEFT keeps sets, whose order is another one in each process.
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    state = _whole(model)
    if EARLIER in model.peft_config:
        earlier = model.peft_config[EARLIER]
        plain["r"] += earlier.r
        plain["lora_alpha"] += earlier.lora_alpha
    state = {name: w.detach().cpu().contiguous() for name, w in sorted(state.items())}
    place = folder.resolve()  # "." has no name of its own, a link another folder
    temporary = place.with_name(f".{place.name}.part")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        text = json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"
        write_text(temporary / CONFIG, text)
        known = {} if base_sha256 is None else {"base_sha256": base_sha256}
        about: dict[str, str] = {}
        if noise is not None:
            _put(noise, temporary / NOISE, link=link_noise)
            about["noise_sha256"] = sha256_file(noise)
        data = save(state, metadata={"format": "pt"})
        if about:
            # In the weights' own header, too: they are often copied without the rest.
            data = _saying(data, about)
        write_atomically(temporary / WEIGHTS, lambda file: file.write(data))
        if known | about:
            files = {CONFIG: fact(text.encode()), WEIGHTS: fact(data)}
            told = {**known, **about, "files": files, "seal": BLANK}
            said = sealed((json.dumps(told) + "\n").encode())
            write_atomically(temporary / TRAINED_ON, lambda file: file.write(said))
        shutil.rmtree(place, ignore_errors=True)
        os.replace(temporary, place)
    except OSError as error:
        raise OutputError(
            f"cannot be written ({error.strerror or error})", where=str(folder)
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _saying(data: bytes, more: dict[str, str]) -> bytes:
    """A safetensors file whose header says more, always in the same order.

    The library itself writes several entries in any order.
    """
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] |= more
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def _put(source: Path, target: Path, *, link: bool) -> None:
    """A copy of a file, or a second name: of large vocabularies it is a gigabyte."""
    if link:
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def load_adapter(model: Any, folder: Path) -> None:
    """Put the weights of :func:`save_adapter` into the adapter in training.

    Of an adapter of a larger rank the last part is the one in training, what comes
    before it the earlier one.

    Raises
    ------
    CheckpointError
        If the folder holds no adapter, or another model's.
    """
    try:
        check_regular(folder / WEIGHTS)
        state = load_file(folder / WEIGHTS)
        own = model.peft_config[ADAPTER].r
        earlier = _rank(state) - own
        if earlier > 0 and earlier % own == 0:
            parts = {
                name: torch.split(weight, [earlier, own], dim=_axis(name))
                for name, weight in state.items()
            }
            _set_earlier(model, {name: old for name, (old, _) in parts.items()})
            state = {name: new for name, (_, new) in parts.items()}
        result: Any = set_peft_model_state_dict(model, state, adapter_name=ADAPTER)
    except (OSError, RuntimeError, ValueError, StopIteration) as error:
        raise CheckpointError(
            "holds no adapter of this model", where=str(folder)
        ) from error
    missing = [name for name in result.missing_keys if f".{ADAPTER}." in name]
    if missing or result.unexpected_keys:
        raise CheckpointError("holds another model's adapter", where=str(folder))
