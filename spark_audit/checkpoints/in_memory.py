"""Take a model in memory as a checkpoint, as it stands, and leave it as it was.

Nothing of the model is written to disk, and it is scored where it lies, in its own
number format. :func:`undisturbed` lists what is restored after scoring.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spark_audit.checkpoints.checkpoint import (
    Checkpoint,
    end_token_ids,
    entry_device,
    module_facts,
)
from spark_audit.checkpoints.given import (
    IN_MEMORY,
    MEMORY_SOURCE,
    NOT_HASHED,
    check_open,
    default_model_name,
    is_model,
)
from spark_audit.checkpoints.tokenizer import read_tokenizer, tokenizer_sha256
from spark_audit.errors import CheckpointError, SparkError, at
from spark_audit.names import BASE
from spark_audit.provenance import sha256_json

if TYPE_CHECKING:
    from transformers import (
        PreTrainedModel,
        PreTrainedTokenizerBase,
        PreTrainedTokenizerFast,
    )

HASHED_BYTES = 1 << 26
"""Bytes of a tensor that are copied to the CPU at once, to be hashed."""

UNHASHED_SETTINGS = ("_name_or_path", "architectures", "transformers_version")
"""Fields of a configuration that say where a model was saved, and change no figure."""

Activate = Callable[[], AbstractContextManager[Any]]
"""Switches a model to the state that is scored, as ``model.disable_adapter`` does."""


def from_memory(
    given: object,
    *,
    name: str | None = None,
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
    tokenizer_sha256: str | None = None,
    argument: str = "checkpoint",
    with_base: bool = True,
) -> Checkpoint:
    """Return an open checkpoint as it is, or a model in memory as a checkpoint.

    Parameters
    ----------
    given
        An open checkpoint, or a model in memory. One that was opened before is hashed
        again, because its weights may have changed since.
    name
        Its name in reports; default: its own, or that of the folder it was loaded from.
    tokenizer
        Tokenizer of a model in memory, or its folder.
    tokenizer_sha256
        Hash of the tokenizer of a manifest's reference. A model in memory without a
        tokenizer is read with that of the folder it was loaded from, if it is this one.
    argument
        How errors name it.
    with_base
        Whether a model with an adapter brings its base along, whose weights are then
        hashed, too.

    Raises
    ------
    CheckpointError
        If it is no language model, or its tokenizer is not known.
    ArgumentError
        If it is neither.
    """
    if is_model(given):
        return _checkpoint_of_model(
            given,
            name=name,
            tokenizer=tokenizer,
            tokenizer_sha256=tokenizer_sha256,
            with_base=with_base,
        )
    check_open(given, argument)
    opened: Any = given
    checkpoint: Checkpoint = opened if name is None else replace(opened, name=name)
    # A loop may have changed the weights since the model was opened.
    is_hashed_model = (
        checkpoint.format == IN_MEMORY and checkpoint.weights_sha256 != NOT_HASHED
    )
    if not is_hashed_model:
        return checkpoint
    return _as_it_stands(checkpoint, with_base=with_base)


def _as_it_stands(checkpoint: Checkpoint, *, with_base: bool) -> Checkpoint:
    """Return an open model in memory with the hashes that its weights have now.

    Scores are stored by these hashes. With old ones, a model that has changed would get
    the scores of the weights that it had before.
    """
    model: Any = checkpoint.model
    on_base = checkpoint.on_base if with_base else None
    if on_base is not None:
        on_base = _as_it_stands(on_base, with_base=False)
    current = in_memory(
        model,
        checkpoint.tokenizer,
        name=checkpoint.name,
        activate=checkpoint.activate,
    )
    return replace(current, base=checkpoint.base, on_base=on_base)


def _checkpoint_of_model(
    model: Any,
    *,
    name: str | None,
    tokenizer: Any,
    tokenizer_sha256: str | None,
    with_base: bool,
) -> Checkpoint:
    """Return a model in memory as a checkpoint, with the tokenizer that reads for it.

    Raises
    ------
    CheckpointError
        If it is no language model of transformers, or no tokenizer is known for it.
    """
    model = unwrapped(model)
    name = name or default_model_name(model)
    where = f"checkpoint {name!r}"
    if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):
        raise CheckpointError(
            f"{type(model).__name__} is not a language model of transformers",
            where=where,
            fix="give a PreTrainedModel with a head, or a PeftModel",
        )

    if isinstance(tokenizer, str | Path):
        tokenizer = read_tokenizer(Path(os.path.expanduser(tokenizer))).tokenizer
    if tokenizer is None and tokenizer_sha256 is not None:
        tokenizer = beside_model(model, tokenizer_sha256)
    if tokenizer is None:
        raise CheckpointError(
            "is a model in memory, and its tokenizer is not known",
            where=where,
            fix="open it by sa.open_checkpoint(model, tokenizer=...), and give that",
        )

    checkpoint = in_memory(model, tokenizer, name=name)
    can_disable_adapter = hasattr(model, "disable_adapter")
    if not with_base or not can_disable_adapter or not _active_adapters(model):
        return checkpoint
    base = in_memory(model, tokenizer, name=BASE, activate=model.disable_adapter)
    return replace(checkpoint, on_base=base)


def in_memory(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    name: str,
    activate: Activate = nullcontext,
    is_hashed: bool = True,
) -> Checkpoint:
    """Return a causal language model in memory as a checkpoint.

    Its adapters stay switched as they are. When it is scored, it is in eval mode, and
    afterwards everything is as it was (:func:`undisturbed`).

    Parameters
    ----------
    model
        A model of transformers, perhaps wrapped by PEFT.
    activate
        Switches the model to the wanted state, such as ``model.disable_adapter``.
    is_hashed
        Whether its weights are hashed, which reads all of them. Scores of a model that
        is not hashed must not be stored.

    Raises
    ------
    CheckpointError
        If its parameters are shards or not in memory, or its tokenizer is a slow one.
    """
    with at(f"checkpoint {name!r}"):
        _check_parameters(model)
        if not getattr(tokenizer, "is_fast", False):
            raise CheckpointError("has no fast tokenizer", fix="give one as tokenizer=")

        base_model = model
        if hasattr(model, "get_base_model"):
            base_model = model.get_base_model()

        adapter = getattr(model, "active_peft_config", None)
        # A trainer may set padding and truncation on its own tokenizer.
        tokenizer = copy.deepcopy(tokenizer)
        facts = module_facts(base_model, tokenizer, adapter)
        device = str(entry_device(base_model))
        own_tokenizer_sha256 = tokenizer_sha256(tokenizer)

        # Without the hash of its weights, a model can only be told by its name.
        weights_sha256 = NOT_HASHED
        model_id = f"live {name}"
        notes: tuple[str, ...] = ()
        if is_hashed:
            with _switched(model, activate):
                weights_sha256 = weights_digest(model)
                model_id = _model_id(model, base_model, tokenizer, weights_sha256)
            notes = (
                f"weights in memory, scored as they stood: {facts.dtype} on {device}",
            )

        return Checkpoint(
            name=name,
            source=MEMORY_SOURCE,
            format=IN_MEMORY,
            model=model,
            tokenizer=tokenizer,
            architecture=facts.architecture,
            usable=facts.usable,
            max_positions=facts.max_positions,
            dtype=facts.dtype,
            device=device,
            weights_sha256=weights_sha256,
            tokenizer_sha256=own_tokenizer_sha256,
            model_id=model_id,
            notes=notes,
            activate=partial(_switched, model, activate),
        )


def _check_parameters(model: torch.nn.Module) -> None:
    """Refuse a model whose parameters this process does not hold whole."""
    for parameter in model.parameters():
        # FSDP and tensor parallelism use the first mark, and ZeRO-3 the other.
        if hasattr(parameter, "full_tensor") or hasattr(parameter, "ds_id"):
            problem = "its parameters are shards (FSDP, ZeRO-3, tensor parallel)"
            raise CheckpointError(problem, fix="audit the checkpoints that are saved")


@contextmanager
def _switched(model: torch.nn.Module, activate: Activate) -> Iterator[None]:
    """Switch a model to the state that is scored, and restore everything afterwards."""
    with undisturbed(model), activate():
        yield


def unwrapped(model: torch.nn.Module) -> PreTrainedModel:
    """Return a model without the wrappers of DDP, accelerate and ``torch.compile``."""
    from accelerate.utils import extract_model_from_parallel

    inner: PreTrainedModel = extract_model_from_parallel(
        model, keep_torch_compile=False
    )
    return inner


def beside_model(
    model: Any, sha256: str | None = None
) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer of the folder that a model was loaded from.

    Parameters
    ----------
    sha256
        Hash of the wanted tokenizer, that of a manifest's reference; ``None``: any.

    Returns
    -------
    PreTrainedTokenizerFast or None
        ``None``: the folder is not there, or its tokenizer is another one.
    """
    sources = [getattr(getattr(model, "config", None), "_name_or_path", "")]
    adapter = getattr(model, "active_peft_config", None)
    if adapter is not None:
        sources.append(adapter.base_model_name_or_path or "")

    for source in sources:
        if not source or not Path(source).is_dir():
            continue
        try:
            tokenizer_read = read_tokenizer(Path(source))
        # A folder without a tokenizer is no error: the user can give one.
        except SparkError:
            continue
        if sha256 is None or tokenizer_read.sha256 == sha256:
            return tokenizer_read.tokenizer
    return None


def weights_digest(model: torch.nn.Module) -> str:
    """Return the SHA-256 of a model's tensors and configuration.

    The same weights have the same digest, wherever they were loaded from. Tensors go
    through memory one by one. Adapters that are switched off are left out, so that the
    base of an adapter has the digest of the same model without it.

    Raises
    ------
    CheckpointError
        If some weights are not in memory, but loaded at each use.
    """
    digest = hashlib.sha256()
    config: Any = getattr(model, "config", None)
    settings = {} if config is None else config.to_dict()
    for name in UNHASHED_SETTINGS:
        settings.pop(name, None)
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())

    state = _tensors_in_effect(model)
    for name in sorted(state):
        tensor = state[name].detach()
        if tensor.is_meta:
            raise CheckpointError(
                f"tensor {name} is not in memory",
                fix="load the model without offloading, or give its folder",
            )
        header = [name, str(tensor.dtype), list(tensor.shape)]
        digest.update(json.dumps(header).encode())

        numbers = tensor.contiguous().view(-1).view(torch.uint8)  # (bytes,)
        for start in range(0, len(numbers), HASHED_BYTES):
            chunk = numbers[start : start + HASHED_BYTES]
            digest.update(chunk.cpu().numpy().data)
    return digest.hexdigest()


def _tensors_in_effect(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Map names to the tensors of a model, without adapters that are off.

    Names are those of the model without PEFT around it.
    """
    state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    adapters: dict[str, object] = getattr(model, "peft_config", {})
    if not adapters:
        return state

    active = {*_active_adapters(model)}
    in_effect: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        parts = name.split(".")
        # A tensor of an adapter has the adapter's name among the parts of its own.
        its_adapters = adapters.keys() & {*parts}
        if its_adapters and not its_adapters & active:
            continue
        # PEFT puts these parts into the names of the base's own weights.
        if not its_adapters:
            parts = [
                part for part in parts if part not in ("base_layer", "original_module")
            ]
        plain_name = ".".join(parts).removeprefix("base_model.model.")
        in_effect[plain_name] = tensor
    return in_effect


def _active_adapters(model: torch.nn.Module) -> list[str]:
    """Return the names of the adapters that are switched on."""
    if not getattr(model, "peft_config", {}):
        return []

    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            return [] if module.disable_adapters else [*module.active_adapters]

    # Adapters that are prompts have no layers.
    is_disabled = getattr(model, "_adapters_disabled", False)
    active = getattr(model, "active_adapters", [])
    return [] if is_disabled else [*active]


def _model_id(
    model: PreTrainedModel,
    base_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    weights_sha256: str,
) -> str:
    """Return a hash of everything that a score depends on besides token ids.

    A model with hooks gets a new one at each call: what hooks compute is not hashed.
    """
    adapters: list[object] = []
    has_hooks = False
    for name, module in model.named_modules():
        if hasattr(module, "scaling") and hasattr(module, "merged_adapters"):
            adapters.append([name, str(module.scaling), str(module.merged_adapters)])
        has_hooks = has_hooks or bool(
            module._forward_hooks
            or module._forward_pre_hooks
            or "forward" in module.__dict__
        )

    return sha256_json(
        {
            "weights": weights_sha256,
            "active": _active_adapters(model),
            "adapters": adapters,
            "attention": getattr(base_model.config, "_attn_implementation", ""),
            "eos": sorted(end_token_ids(base_model, tokenizer)),
            "nonce": secrets.token_hex(16) if has_hooks else "",
        }
    )


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Restore everything after the block that scoring could change.

    This is: train or eval mode of each module, ``requires_grad`` of each parameter,
    buffers, hooks and other attributes of modules, settings of configurations, adapters
    that are on, and the random numbers of Python, NumPy and PyTorch.

    In the block, the model computes in the precision of its weights: autocast is off,
    and accelerate's autocast around ``forward`` is removed.
    """
    python_state = random.getstate()
    # Data collators use NumPy's old interface.
    numpy_state = np.random.get_state()  # noqa: NPY002
    # A query of the devices would start CUDA in a process that does not use it.
    cuda: Any = torch.cuda
    devices = range(cuda.device_count()) if cuda.is_initialized() else ()
    requires_grad = [(weight, weight.requires_grad) for weight in model.parameters()]

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[*devices]))
        for device_type in ("cpu", "cuda") if devices else ("cpu",):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        stack.enter_context(_attributes_kept(model))
        try:
            # accelerate keeps the wrapped forward under this name.
            attributes = model.__dict__
            if "_original_forward" in attributes and "forward" in attributes:
                attributes["forward"] = attributes["_original_forward"]
            yield
        finally:
            for weight, was_required in requires_grad:
                if weight.requires_grad != was_required:
                    weight.requires_grad_(was_required)
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def _attributes_kept(model: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of all modules and of their configurations.

    Attributes that are dicts or lists (buffers, hooks, names of active adapters) are
    restored in place, because others may hold them.
    """
    from transformers import GenerationConfig, PreTrainedConfig

    holders: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        holders[id(module)] = module.__dict__
        for value in module.__dict__.values():
            if isinstance(value, PreTrainedConfig | GenerationConfig):
                holders[id(value)] = value.__dict__

    containers: dict[int, tuple[Any, Any]] = {}  # id -> the container, and a copy
    for attributes in holders.values():
        containers[id(attributes)] = attributes, dict(attributes)
        for value in attributes.values():
            if isinstance(value, dict | list):
                containers[id(value)] = value, copy.copy(value)

    try:
        yield
    finally:
        for container, before in containers.values():
            if isinstance(container, dict):
                if not _has_same_items(container, before):
                    container.clear()
                    container.update(before)
            elif [*map(id, container)] != [*map(id, before)]:
                container[:] = before


def _has_same_items(values: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Return whether two dicts hold the same objects under the same keys."""
    if [*values] != [*before]:
        return False
    return all(values[key] is before[key] for key in before)
