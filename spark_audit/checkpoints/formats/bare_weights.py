"""Open a weights file alone, with any wrapper: full weights, LoRA, or both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from spark_audit.checkpoints import specs, tensor_checks, untrusted, weight_files
from spark_audit.checkpoints.formats.peft_names import (
    LORA,
    SAVED_MODULE,
    name_without_adapter,
)
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.tensor_checks import State
from spark_audit.checkpoints.weight_files import PEFT_PREFIX
from spark_audit.errors import CheckpointError, shown

_MAX_WRAPPERS = 4
"""Dictionaries in each other that are unwrapped; real ones are one or two."""
_CONTAINERS = ("state_dict", "model", "model_state_dict", "module")
# Wrappers add their name in front of everything (DDP, Opacus, TRL, Fabric, averages) or
# anywhere in a path (torch.compile, FSDP).
_FRONT = re.compile(
    r"^(?:(?:_?module|_forward_module|pretrained_model|ema_model|averaged_model)\.)+"
)
_ANYWHERE = re.compile(
    r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# Counters that averages of weights have, in torch and in ema-pytorch.
_COUNTERS_OF_AVERAGES = ("n_averaged", "initted", "step")
# LoRA's first part, by which the rank is known; group 2 marks O-LoRA's newest part.
_LORA_A_NAME = re.compile(r"(.+)\.lora(new)?_(?:embedding_)?A(?:\.weight)?")
# The part of a module's name that says in which layer it is: "model.layers.0.".
_LAYER = re.compile(r"^.*?\.\d+\.")
_ALONE = "save the one to audit alone"
_SAVE_STATE_DICT = "save model.state_dict() alone"
_MLX_NAME = re.compile(r".+\.lora_[ab]")
_TORCHTUNE_NAME = re.compile(r".+\.lora_[ab]\.weight")
_OTHER_PEFT = re.compile(r"\.(ia3_l|hada_w|lokr_w|oft_|vera_|boft_|fourierft_|prompt_)")


@dataclass
class _SortedTensors:
    """The tensors of weights files, sorted by kind.

    Attributes
    ----------
    full
        Full weights, with the names of the bare module.
    lora
        LoRA, with PEFT's names without the name of the adapter.
    adapters
        Names of the adapters; ``""`` for an adapter without a name.
    counters
        Keys of the counters of an average of weights.
    notes
        Notes for readers of the report.
    """

    full: State = field(default_factory=State)
    lora: State = field(default_factory=State)
    adapters: set[str] = field(default_factory=set)
    counters: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def bare_weights(path: Path, loading: specs.Loading) -> StoredCheckpoint:
    """Return full weights in the architecture of a config.json, or LoRA on the base.

    Parameters
    ----------
    path
        A weights file, or a folder of files with an index or one of the usual names.

    Raises
    ------
    CheckpointError
        If the configuration, the base or LoRA's alpha is unknown, or if the file holds
        anything that is not understood.
    """
    folder = path if path.is_dir() else path.parent
    files = _files_in(path) if path.is_dir() else (path,)
    content = _read(files)
    notes = list(content.notes)

    # The files are read again at loading, so that their memory is free until then.
    full_weights = None
    if content.full:
        tensor_checks.check_filled(content.full)
        tensor_checks.refuse_other_names(content.full)
        model_config = weight_files.config_of(path, loading)
        notes.append(model_config.note)
        full_weights = StoredCheckpoint(
            config=model_config.content,
            files=files,
            read=lambda: _read(files).full,
            config_folder=model_config.folder,
            folder=folder,
        )
    if not content.lora:
        # A file without any tensor was refused when it was read.
        assert full_weights is not None
        return replace(full_weights, notes=tuple(notes))

    config, note = _lora_config(folder, content.lora, loading)
    notes.append(note)
    if full_weights is not None:
        notes.append("holds the base's weights and LoRA: both are the file's own")
    elif loading.base is None:
        problem = "holds LoRA weights without their base"
        raise CheckpointError(problem, fix="give --base")
    return StoredCheckpoint(
        config=config,
        files=files,
        read=lambda: _read(files).lora,
        config_folder=folder,
        folder=folder,
        is_adapter=True,
        base_weights=full_weights,
        notes=tuple(notes),
    )


def _files_in(folder: Path) -> tuple[Path, ...]:
    """Return the files of the one model in a folder without configuration.

    Raises
    ------
    CheckpointError
        If files of another model lie beside them, as accelerate leaves them.
    """
    files = weight_files.files_of(folder)

    # A folder with the usual name of a file stands for its files.
    others = {*untrusted.weights_in(folder)}.difference(files, [files[0].parent])
    if others:
        names = sorted(shown(file.name) for file in {*files, *others})
        problem = f"holds weights of several models ({', '.join(names[:5])})"
        raise CheckpointError(problem, fix="give one of these files itself")
    return files


def _read(files: Sequence[Path]) -> _SortedTensors:
    """Read weights files, and sort their tensors by names without wrappers.

    Raises
    ------
    CheckpointError
        If they hold several models or adapters, or anything that is not understood.
    """
    if len(files) == 1:
        stored = weight_files.read_tensors(files[0])
    else:
        stored = weight_files.read_all(files)

    stored, notes = _unwrapped(stored)

    # An empty dictionary is not a state dictionary.
    if isinstance(stored, dict) and not stored:
        stored = None

    state = tensor_checks.only_tensors(stored, fix=_SAVE_STATE_DICT)
    content = _SortedTensors(notes=notes)
    for key, tensor in state.items():
        _add_tensor(content, key, tensor)

    if content.counters:
        listed = ", ".join(content.counters)
        content.notes.append(
            f"counters of an average of weights are left out: {listed}"
        )
        if not content.full and not content.lora:
            problem = "holds no tensors but counters"
            raise CheckpointError(problem, fix=_SAVE_STATE_DICT)

    # A name that changed has lost the prefix of a wrapper.
    known_names = {*content.full, *content.lora, *content.counters}
    known_names.update(key.removeprefix(PEFT_PREFIX) for key in content.lora)
    if not state.keys() <= known_names:
        content.notes.append("wrappers' names stripped from the tensors' names")
    return content


def _unwrapped(stored: object) -> tuple[object, list[str]]:
    """Return the state dictionary inside of wrapping dictionaries, with notes.

    Raises
    ------
    CheckpointError
        If there are several models.
    """
    notes: list[str] = []
    # A pickle can contain itself, but real wrappers are only a few deep.
    for _ in range(_MAX_WRAPPERS):
        container = stored if isinstance(stored, dict) else {}
        states = _states_in(container)
        inside = [key for key in _CONTAINERS if isinstance(container.get(key), dict)]
        # Without a usual name, the only dictionary of tensors is used.
        inside = inside or states
        if not inside:
            break

        if len(inside) > 1:
            listed = ", ".join(shown(key) for key in inside)
            raise CheckpointError(f"holds several models: {listed}", fix=_ALONE)

        (key,) = inside
        stored = container[key]
        notes.append(f"taken from '{shown(key)}' in the file")

        left_out = [shown(name) for name in states if name != key]
        if left_out:
            listed = ", ".join(left_out[:3])
            notes.append(f"other weights in the file are left out: {listed}")
    return stored, notes


def _states_in(container: Mapping[object, object]) -> list[str]:
    """Return the keys under which a file holds dictionaries of tensors.

    A file that also has tensors beside them is itself one set of weights.
    """
    if any(isinstance(value, torch.Tensor) for value in container.values()):
        return []

    keys: list[str] = []
    for key, value in container.items():
        if not isinstance(key, str) or not isinstance(value, dict) or not value:
            continue
        if all(isinstance(tensor, torch.Tensor) for tensor in value.values()):
            keys.append(key)
    return keys


def _add_tensor(content: _SortedTensors, key: str, tensor: torch.Tensor) -> None:
    """Add a tensor to its group, by its name without wrappers.

    Raises
    ------
    CheckpointError
        If it belongs to another adapter, or occurs twice.
    """
    # Either kind of wrapper may hide the other.
    name = _ANYWHERE.sub("", _FRONT.sub("", _ANYWHERE.sub("", key)))
    name = name.removeprefix(PEFT_PREFIX)
    if name in _COUNTERS_OF_AVERAGES and tensor.numel() == 1:
        content.counters.append(key)
        return

    other_peft = _OTHER_PEFT.search("." + name)
    if other_peft is not None:
        problem = (
            f"holds a PEFT adapter other than LoRA ({shown(key)}, {other_peft[1]})"
        )
        remedy = "give the adapter's folder with its adapter_config.json"
        raise CheckpointError(problem, fix=remedy)
    _refuse_lora_of_other_tools(name)

    match = LORA.fullmatch(name) or SAVED_MODULE.fullmatch(name)
    if match is None:
        # PEFT's layers hold the base's own layers under these names.
        name = name.replace(".base_layer.", ".").replace(".original_module.", ".")
        target = content.full
    else:
        content.adapters.add(match["name"] or "")
        name = PEFT_PREFIX + name_without_adapter(match)
        target = content.lora

    if len(content.adapters) > 1:
        listed = ", ".join(sorted(content.adapters))
        raise CheckpointError(f"holds several adapters ({listed})", fix=_ALONE)
    if name in target:
        raise CheckpointError(f"holds the tensor {shown(name)} twice", fix=_ALONE)
    target[name] = tensor


def _refuse_lora_of_other_tools(name: str) -> None:
    """Refuse a tensor of LoRA that another tool than PEFT named.

    Raises
    ------
    CheckpointError
        Names the tool, and what to give instead.
    """
    if _MLX_NAME.fullmatch(name):
        problem = f"holds LoRA of MLX ({shown(name)}) without its scale"
        remedy = (
            "name the file adapters.safetensors, in a folder with the "
            "adapter_config.json that MLX wrote, and give the folder"
        )
        raise CheckpointError(problem, fix=remedy)
    if _TORCHTUNE_NAME.fullmatch(name):
        problem = f"holds LoRA in torchtune's names ({shown(name)})"
        remedy = (
            "give the folder with adapter_model and adapter_config.json that torchtune "
            "writes for PEFT, or its merged weights"
        )
        raise CheckpointError(problem, fix=remedy)


def _lora_config(
    folder: Path, lora: State, loading: specs.Loading
) -> tuple[dict[str, object], str]:
    """Return LoRA's configuration, and a note on its source.

    The source is a file beside the weights. Otherwise shapes give the rank and the
    targets. If a module has an adapter in one layer, it must have one in all layers,
    because only a configuration could say otherwise: on a deeper base, some layers
    would have no adapter.

    Raises
    ------
    CheckpointError
        If the alpha is unknown.
    """
    config_file = folder / "adapter_config.json"
    if config_file.exists():
        note = "LoRA settings: adapter_config.json next to the file"
        return untrusted.read_json(config_file), note

    if loading.lora_alpha is None:
        remedy = "give --lora-alpha, or put adapter_config.json next to the file"
        raise CheckpointError("holds LoRA weights without their alpha", fix=remedy)

    rank_by_module: dict[str, int] = {}
    earlier_rank = 0
    # O-LoRA scales by the rank of its newest part, which comes last here.
    for key in sorted(lora, key=lambda key: ".loranew_" in key):
        match = _LORA_A_NAME.fullmatch(key)
        if match is None:
            continue
        rank = lora[key].shape[:1].numel()  # lora_A is (rank, in)
        rank_by_module[match[1].removeprefix(PEFT_PREFIX)] = rank
        # O-LoRA records the rank of the earlier parts as r_sum.
        is_newest_part = match[2] is not None
        if not is_newest_part:
            earlier_rank = rank

    if not rank_by_module:
        raise CheckpointError("holds LoRA tensors, but no lora_A")

    usual_rank = Counter(rank_by_module.values()).most_common(1)[0][0]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": usual_rank,
        "r_sum": earlier_rank,
        "lora_alpha": loading.lora_alpha,
        "target_modules": sorted({_LAYER.sub("", name) for name in rank_by_module}),
        "rank_pattern": {
            name: rank for name, rank in rank_by_module.items() if rank != usual_rank
        },
        "use_dora": any(key.endswith("magnitude_vector") for key in lora),
    }
    note = f"LoRA: rank {usual_rank} from shapes, alpha {loading.lora_alpha:g} as given"
    return config, note
