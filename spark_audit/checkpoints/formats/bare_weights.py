"""A weights file alone, with whatever wrapped it: full weights, LoRA, or both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from spark_audit.checkpoints import specs, untrusted, weight_files
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.formats.peft_names import LORA, SAVED_MODULE
from spark_audit.checkpoints.weight_files import PEFT_PREFIX, State
from spark_audit.errors import CheckpointError, shown

_MAX_WRAPPERS = 4
_CONTAINERS = ("state_dict", "model", "model_state_dict", "module")
# Wrappers put their name in front of everything (DDP, Opacus, TRL, Fabric, averages),
# or anywhere in a path (torch.compile, FSDP).
_FRONT = re.compile(
    r"^(?:(?:_?module|_forward_module|pretrained_model|ema_model|averaged_model)\.)+"
)
# What averages of weights count beside them, in torch and in ema-pytorch.
_COUNTERS_OF_AVERAGES = ("n_averaged", "initted", "step")
_ANYWHERE = re.compile(
    r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
_LORA_A_NAME = re.compile(r"(.+)\.lora(new)?_(?:embedding_)?A(?:\.weight)?")
_LAYER = re.compile(r"^.*?\.\d+\.")
_ALONE = "save the one to audit alone"
_MLX_NAME = re.compile(r".+\.lora_[ab]")
_TORCHTUNE_NAME = re.compile(r".+\.lora_[ab]\.weight")
_OTHER_PEFT = re.compile(r"\.(ia3_l|hada_w|lokr_w|oft_|vera_|boft_|fourierft_|prompt_)")


def bare_weights(place: Path, loading: specs.Loading) -> Checkpoint:
    """Full weights into the architecture of a config.json, or LoRA onto the base.

    Parameters
    ----------
    place
        A weights file, or a folder of files with an index, or with one of the usual
        names.

    Raises
    ------
    CheckpointError
        If the configuration, the base or LoRA's alpha is not known, or the file holds
        anything that is not understood.
    """
    files = _files_in(place) if place.is_dir() else (place,)
    full, lora, notes = _read(files)
    folder = place if place.is_dir() else place.parent
    made = None
    if full:
        weight_files.check_filled(full)
        weight_files.refuse_other_names(full)
        config, described, note = weight_files.config_of(place, loading)
        notes.append(note)
        made = Checkpoint(
            config, files, lambda: _read(files)[0], described, folder=folder
        )
    if lora:
        config, note = _lora_config(folder, lora, loading)
        notes.append(note)
        if made is not None:
            notes.append("holds the base's weights and LoRA: both are the file's own")
        elif loading.base is None:
            what = "holds LoRA weights without their base"
            raise CheckpointError(what, fix="give --base")
        made = Checkpoint(
            config,
            files,
            lambda: _read(files)[1],
            folder,
            folder=folder,
            adapter=True,
            host=made,
        )
    assert made is not None  # no tensors at all are refused as they are read
    return replace(made, notes=tuple(notes))


def _files_in(folder: Path) -> tuple[Path, ...]:
    """The files of the one model in a folder without configuration.

    Raises
    ------
    CheckpointError
        If files of another one lie beside them, as accelerate leaves them.
    """
    files = weight_files.files_of(folder)
    others = {*untrusted.weights_in(folder)}.difference(files, [files[0].parent])
    if others:
        names = ", ".join(sorted(shown(file.name) for file in {*files, *others})[:5])
        what = f"holds weights of several models ({names})"
        raise CheckpointError(what, fix="give one of these files itself")
    return files


def _read(files: Sequence[Path]) -> tuple[State, State, list[str]]:
    """Full weights by the names of the bare module, LoRA's by PEFT's, and notes.

    The names of wrappers and adapters are stripped.
    """
    notes = list[str]()
    if len(files) == 1:
        content = weight_files.read_tensors(files[0])
    else:
        content = weight_files.merged(files)
    # A pickle can hold itself: wrappers are a few deep, never more.
    for _ in range(_MAX_WRAPPERS):
        held = content if isinstance(content, dict) else {}
        states = _states_in(held)
        inside = [key for key in _CONTAINERS if isinstance(held.get(key), dict)]
        inside = inside or states
        if len(inside) > 1:
            what = f"holds several models: {', '.join(map(shown, inside))}"
            raise CheckpointError(what, fix=_ALONE)
        for key in inside:
            notes.append(f"taken from '{shown(key)}' in the file")
            content = held[key]
            beside = [shown(name) for name in states if name != key]
            if beside:
                listed = ", ".join(beside[:3])
                notes.append(f"other weights in the file are left out: {listed}")
    # An empty one is none.
    fix = "save model.state_dict() alone"
    state = weight_files.only_tensors(content or None, fix=fix)
    full, lora, adapters = State(), State(), set[str]()
    counters = list[str]()
    for key, tensor in state.items():
        name = _ANYWHERE.sub("", _FRONT.sub("", _ANYWHERE.sub("", key)))
        name = name.removeprefix(PEFT_PREFIX)
        if name in _COUNTERS_OF_AVERAGES and tensor.numel() == 1:
            counters.append(key)
            continue
        if other := _OTHER_PEFT.search("." + name):
            what = f"holds a PEFT adapter other than LoRA ({shown(key)}, {other[1]})"
            fix = "give the adapter's folder with its adapter_config.json"
            raise CheckpointError(what, fix=fix)
        _refuse_lora_of_other_tools(name)
        target, part = full, LORA.fullmatch(name)
        module = SAVED_MODULE.fullmatch(name)
        name = name.replace(".base_layer.", ".").replace(".original_module.", ".")
        if module:
            adapters.add(module["name"])
            target, name = lora, PEFT_PREFIX + module["module"] + module["rest"]
        if part:
            adapters.add(part["name"] or "")
            # PEFT saves DoRA's vector without the name of its parameter.
            rest = "" if part["part"].endswith("_vector") else part["rest"] or ""
            target, name = lora, PEFT_PREFIX + part["part"] + rest
        if name in target or len(adapters) > 1:
            listed = ", ".join(sorted(adapters)) if len(adapters) > 1 else ""
            what = f"several adapters ({listed})" if listed else f"{name} twice"
            raise CheckpointError(f"holds {what}", fix=_ALONE)
        target[name] = tensor
    if counters:
        listed = ", ".join(counters)
        notes.append(f"counters of an average of weights are left out: {listed}")
        if not full and not lora:
            raise CheckpointError("holds no tensors but counters", fix=fix)
    known_names = {*full, *lora, *counters}
    known_names.update(key.removeprefix(PEFT_PREFIX) for key in lora)
    if not state.keys() <= known_names:
        notes.append("wrappers' names stripped from the tensors' names")
    return full, lora, notes


def _refuse_lora_of_other_tools(name: str) -> None:
    """Refuse a tensor of LoRA that PEFT did not name.

    Raises
    ------
    CheckpointError
        With the tool that wrote it, and what to give instead.
    """
    if _MLX_NAME.fullmatch(name):
        what = f"holds LoRA of MLX ({shown(name)}) without its scale"
        fix = (
            "name the file adapters.safetensors, in a folder with the "
            "adapter_config.json that MLX wrote, and give the folder"
        )
        raise CheckpointError(what, fix=fix)
    if _TORCHTUNE_NAME.fullmatch(name):
        what = f"holds LoRA in torchtune's names ({shown(name)})"
        fix = (
            "give the folder with adapter_model and adapter_config.json that torchtune "
            "writes for PEFT, or its merged weights"
        )
        raise CheckpointError(what, fix=fix)


def _states_in(held: Mapping[object, object]) -> list[str]:
    """Return the keys under which a file holds tensors by name, and nothing else.

    A file that has tensors beside them is one set of weights itself.
    """
    if any(isinstance(value, torch.Tensor) for value in held.values()):
        return []
    found = []
    for key, value in held.items():
        if not isinstance(key, str) or not isinstance(value, dict) or not value:
            continue
        if all(isinstance(tensor, torch.Tensor) for tensor in value.values()):
            found.append(key)
    return found


def _lora_config(
    folder: Path, lora: State, loading: specs.Loading
) -> tuple[dict[str, object], str]:
    """LoRA's configuration: from beside the file, else rank and targets from shapes.

    A module that is adapted in one layer is expected in all, as only a configuration
    could say otherwise: of a deeper base, some layers would be without adapter.
    """
    beside = folder / "adapter_config.json"
    if beside.exists():
        note = "LoRA settings: adapter_config.json next to the file"
        return untrusted.read_json(beside), note
    if loading.lora_alpha is None:
        fix = "give --lora-alpha, or put adapter_config.json next to the file"
        raise CheckpointError("holds LoRA weights without their alpha", fix=fix)
    ranks, earlier = dict[str, int](), 0
    # O-LoRA scales by the rank of its newest part.
    for key in sorted(lora, key=lambda key: ".loranew_" in key):
        if match := _LORA_A_NAME.fullmatch(key):
            rank = lora[key].shape[:1].numel()
            ranks[match[1].removeprefix(PEFT_PREFIX)] = rank
            earlier = earlier if match[2] else rank
    if not ranks:
        raise CheckpointError("has LoRA tensors, but no lora_A")
    usual = Counter(ranks.values()).most_common(1)[0][0]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": usual,
        "r_sum": earlier,
        "lora_alpha": loading.lora_alpha,
        "target_modules": sorted({_LAYER.sub("", name) for name in ranks}),
        "rank_pattern": {name: ranks[name] for name in ranks if ranks[name] != usual},
        "use_dora": any(key.endswith("magnitude_vector") for key in lora),
    }
    note = f"LoRA: rank {usual} from shapes, alpha {loading.lora_alpha:g} as given"
    return config, note
