"""A Hugging Face folder: config.json with full weights, or a PEFT adapter."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path, PurePath

from spark_audit.checkpoints.checkpoint import Checkpoint, Part
from spark_audit.checkpoints.locate import (
    check_inside,
    printable,
    read_config,
    read_json,
    refuse_code,
)
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.weight_files import (
    ADAPTER,
    check_filled,
    has_weights,
    merged,
    weight_files,
)
from spark_audit.errors import CheckpointError, shown

_WRAPPED = ("module.", "_orig_mod.", "_module.", "base_model.model.")
# What LLaVA and its descendants (MCITlib) train beside an adapter, and the modules
# that text alone does not pass through.
_TRAINED = ("non_lora_trainables.bin", "non_lora_state_dict.bin")
_IMAGES = re.compile(r"(^|\.)(mm_|vision_|visual\b|image_newline)")


def is_model(path: Path) -> bool:
    """config.json, and no adapter unless full weights lie beside it."""
    return (path / "config.json").exists() and (
        has_weights(path) or not (path / "adapter_config.json").exists()
    )


def is_adapter(path: Path) -> bool:
    """adapter_config.json without full weights beside it."""
    return (path / "adapter_config.json").exists() and not has_weights(path)


def hf_folder(path: Path, loading: Loading) -> Checkpoint:
    """Full weights that transformers reads from their folder.

    Raises
    ------
    CheckpointError
        If the folder holds an adapter too, code, no weights, or the weights of a
        wrapped model.
    """
    if (path / "adapter_config.json").exists():
        raise CheckpointError(
            "holds full weights and an adapter: which of them is meant?",
            fix="give the adapter in a separate folder, with --base for the weights",
        )
    config = read_config(path, trusted=loading.trust_remote_code)
    files = weight_files(path)
    read = partial(merged, files)
    state = read()
    check_filled(state)
    for name in state:
        if name.startswith(_WRAPPED) or ".lora_" in name:
            what = f"the weights are those of a wrapped model (tensor {name})"
            raise CheckpointError(what, fix=f"give the file itself: {files[0].name}")
    return Checkpoint(folder=path, weights=Part(config, files, read, path, whole=True))


def peft_adapter(path: Path, loading: Loading) -> Checkpoint:
    """An adapter on the base that is given, else on the one it names.

    Raises
    ------
    CheckpointError
        If it has no weights, brings code, or no base is known.
    """
    config = read_json(path / "adapter_config.json")
    if not loading.trust_remote_code:
        refuse_code({}, path)
    files = weight_files(path, ADAPTER)
    named = config.get("base_model_name_or_path") or None
    if not isinstance(named, str | None):
        raise CheckpointError("base_model_name_or_path is no text")
    notes, theirs = _beside(path), PurePath(named or "").name
    if named is not None and loading.base is None:
        notes.append(f"base: {shown(theirs)}, as the adapter names it")
    elif named is not None and theirs != PurePath(str(loading.base)).name:
        ours = printable(str(loading.base))
        notes.append(f"base: {ours} as given; the adapter names {shown(theirs)}")
    part = Part(config, files, partial(merged, files), path)
    return Checkpoint(folder=path, adapter=part, base=named, notes=tuple(notes))


def _beside(folder: Path) -> list[str]:
    """What is said of trained weights beside an adapter that PEFT does not read.

    Raises
    ------
    CheckpointError
        If some are of the language model: without them it is another one.
    """
    there = [name for name in _TRAINED if os.path.lexists(folder / name)]
    for name in there:
        check_inside(folder / name)
        for key in sorted(merged((folder / name,))):
            if not _IMAGES.search(key):
                raise CheckpointError(
                    f"{name} holds trained weights of the language model "
                    f"({shown(key)}), which an adapter leaves out",
                    fix="merge adapter and weights with the tool that trained them",
                )
    return [f"{name} is of images, which are not audited: left out" for name in there]
