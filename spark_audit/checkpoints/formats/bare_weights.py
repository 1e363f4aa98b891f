"""A weights file alone: .bin, .pt, .pth or .safetensors, with whatever wrapped it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.adapters import PREFIX
from spark_audit.checkpoints.locate import (
    WEIGHT_SUFFIXES,
    check_inside,
    locate,
    printable,
    read_json,
    refuse_code,
    refuse_redirects,
)
from spark_audit.checkpoints.recipe import Adapter, Given, Recipe, Weights
from spark_audit.checkpoints.sidecar import written_down
from spark_audit.checkpoints.weight_files import (
    NO_WEIGHTS,
    check_dense,
    check_filled,
    read_tensors,
)
from spark_audit.errors import CheckpointError, shown

State = dict[str, torch.Tensor]

_WRAPPERS = 4
_CONTAINERS = ("state_dict", "model", "model_state_dict", "module")
# Wrappers put their name in front of everything (DDP, Opacus), or anywhere in a path
# (torch.compile, FSDP).
_FRONT = re.compile(r"^(?:_?module\.)+")
_ANYWHERE = re.compile(
    r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# PEFT's tensors; the adapter's name stands behind the part.
_LORA = re.compile(
    r"(?P<part>.+\.lora(?:new)?_(?:embedding_)?[AB]|.+\.lora_magnitude_vector)"
    r"(?:\.(?P<name>(?!weight$)[^.]+))?(?P<rest>\.weight)?"
)
_RANK = re.compile(r"(?P<module>.+)\.lora(?P<new>new)?_(?:embedding_)?A(?:\.weight)?")
_OTHER_PEFT = re.compile(r"\.(ia3_l|hada_w|lokr_w|oft_|vera_|boft_|fourierft_|prompt_)")


def detect(path: Path) -> bool:
    """A weights file, or a folder that holds one and no configuration."""
    if path.is_file():
        return path.suffix in WEIGHT_SUFFIXES
    if (path / "config.json").exists() or (path / "adapter_config.json").exists():
        return False
    return path.is_dir() and len(_files(path)) == 1


def _files(folder: Path) -> list[Path]:
    return [
        file
        for file in sorted(folder.iterdir())
        if file.suffix in WEIGHT_SUFFIXES and not file.name.startswith(NO_WEIGHTS)
    ]


def bare_weights(path: Path, given: Given) -> Recipe:
    """Full weights into the architecture of a config.json, or LoRA onto the base.

    Raises
    ------
    CheckpointError
        If the configuration, the base or LoRA's alpha is not known, or the file holds
        anything that is not understood.
    """
    file, where = path, given.where
    if path.is_dir():
        file = _files(path)[0]
        check_inside(file, where=where)
    sorted_ = _sort(_unwrapped(file, meta=True, where=where), where=where)
    notes = [*sorted_.notes]
    weights = adapter = None
    if sorted_.full:
        check_filled(sorted_.full, where=where)
        folder, note = config_folder(file, given)
        notes.append(note)
        weights = Weights(folder, (file,), partial(_read, file, where, "full"))
    if sorted_.lora:
        config, note = _lora_config(file, sorted_.lora, given)
        notes.append(note)
        adapter = Adapter(config, (file,), partial(_read, file, where, "lora"))
        if weights is not None:
            notes.append("holds the base's weights and LoRA: both are the file's own")
        elif given.base is None:
            raise CheckpointError(
                "holds LoRA weights without their base", where=where, fix="give --base"
            )
    # The file of an adapter's folder is what the folder is.
    trained_on, noise_sha256 = written_down(file.parent, [file], where=where)
    return Recipe(
        format="bare-weights",
        source=printable(where),
        given=given,
        folder=file.parent,
        weights=weights,
        adapter=adapter,
        base=given.base,
        notes=tuple(notes),
        trained_on=trained_on,
        noise_sha256=noise_sha256,
    )


def _read(file: Path, where: str, part: str, meta: bool) -> State:
    found = _sort(_unwrapped(file, meta=meta, where=where), where=where)
    return found.full if part == "full" else found.lora


@dataclass(frozen=True)
class _Sorted:
    """Tensors by the names of the bare module, and LoRA's by PEFT's."""

    full: State
    lora: State
    notes: tuple[str, ...]


def _unwrapped(file: Path, *, meta: bool, where: str) -> tuple[State, list[str]]:
    """The state dictionary inside whatever training saved."""
    content, notes = read_tensors(file, meta=meta, where=where), []
    # A pickle can hold itself: wrappers are a few deep, never more.
    for _ in range(_WRAPPERS):
        if not isinstance(content, dict):
            break
        inside = [key for key in _CONTAINERS if isinstance(content.get(key), dict)]
        if len(inside) > 1:
            raise CheckpointError(
                f"holds several models: {', '.join(inside)}",
                where=where,
                fix="save the one to audit alone",
            )
        if not inside:
            break
        notes.append(f"taken from {inside[0]!r} in the file")
        content = content[inside[0]]
    if not isinstance(content, dict) or not content:
        raise CheckpointError(
            "holds no state dictionary",
            where=where,
            fix="save model.state_dict()",
        )
    tensor = torch.Tensor
    strange = [key for key, one in content.items() if not isinstance(one, tensor)]
    if strange:
        raise CheckpointError(
            f"holds something else than tensors ({shown(strange[0])})",
            where=where,
            fix="save model.state_dict() alone",
        )
    check_dense(content, where=where)
    return {str(key): value for key, value in content.items()}, notes


def _sort(found: tuple[State, list[str]], *, where: str) -> _Sorted:
    """Strip the names of wrappers and adapters; part full weights from LoRA."""
    state, notes = found
    full: State = {}
    lora: State = {}
    stripped = False
    adapters: set[str] = set()
    for key, tensor in state.items():
        name = _ANYWHERE.sub("", _FRONT.sub("", _ANYWHERE.sub("", key)))
        name = name.removeprefix(PREFIX)
        if other := _OTHER_PEFT.search("." + name):
            raise CheckpointError(
                f"holds a PEFT adapter other than LoRA (tensor {shown(key)}, "
                f"{other[1]})",
                where=where,
                fix="give the adapter's folder with its adapter_config.json",
            )
        if part := _LORA.fullmatch(name):
            adapters.add(part["name"] or "")
            if len(adapters) > 1:
                raise CheckpointError(
                    f"holds several adapters ({', '.join(sorted(adapters))})",
                    where=where,
                    fix="save the one to audit alone",
                )
            # PEFT saves DoRA's vector without the name of its parameter.
            vector = part["part"].endswith("_vector")
            rest = "" if vector else part["rest"] or ""
            target, name = lora, PREFIX + part["part"] + rest
        else:
            target, name = full, name.replace(".base_layer.", ".")
        if name in target:
            raise CheckpointError(
                f"two tensors have the name {name} without their wrappers' names",
                where=where,
                fix="save one model, or one adapter, alone",
            )
        target[name] = tensor
        stripped |= key not in (name, name.removeprefix(PREFIX))
    if stripped:
        notes = [*notes, "wrappers' names stripped from the tensors' names"]
    return _Sorted(full, lora, tuple(notes))


def config_folder(file: Path, given: Given) -> tuple[Path, str]:
    """The folder whose config.json says what the weights belong to."""
    folder, note = file.parent, "architecture: config.json next to the file"
    if not (folder / "config.json").exists():
        if given.base is None:
            raise CheckpointError(
                "full weights need a configuration, and there is no config.json next "
                "to the file",
                where=given.where,
                fix="give --base MODEL: only its architecture and tokenizer are used",
            )
        folder = locate(
            given.base, revision=given.revision, code=given.trust_remote_code
        )
        note = f"architecture: {printable(given.base)} (none of its weights)"
    config = read_json(folder / "config.json", where=given.where)
    if not given.trust_remote_code:
        refuse_code(config, folder, where=given.where)
    refuse_redirects(config, where=given.where)
    return folder, note


def _lora_config(file: Path, lora: State, given: Given) -> tuple[dict[str, Any], str]:
    """LoRA's configuration: from beside the file, else rank and targets from shapes."""
    beside = file.parent / "adapter_config.json"
    if beside.exists():
        return (
            read_json(beside, where=given.where),
            "LoRA settings: adapter_config.json next to the file",
        )
    if given.lora_alpha is None:
        raise CheckpointError(
            "holds LoRA weights, whose alpha is not in the file",
            where=given.where,
            fix="give --lora-alpha, or put adapter_config.json next to the file",
        )
    ranks: dict[str, int] = {}
    joined = 0
    for key, tensor in lora.items():
        if match := _RANK.fullmatch(key):
            name = match["module"].removeprefix(PREFIX)
            # O-LoRA scales by the rank of its newest part.
            if match["new"] or name not in ranks:
                ranks[name] = int(tensor.shape[0])
            if not match["new"]:
                joined = int(tensor.shape[0])
    if not ranks:
        raise CheckpointError("has LoRA tensors, but no lora_A", where=given.where)
    usual = max(set(ranks.values()), key=list(ranks.values()).count)
    other = {name: rank for name, rank in sorted(ranks.items()) if rank != usual}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": usual,
        "r_sum": joined,
        "lora_alpha": given.lora_alpha,
        "target_modules": sorted(ranks),
        "rank_pattern": other,
        "use_dora": any(key.endswith("magnitude_vector") for key in lora),
    }
    note = f"LoRA: rank {usual} from shapes, alpha {given.lora_alpha:g} as given"
    return config, note
