"""What a path is, by its content, and how it is put together, by its headers.

A model's folder, PEFT's, a weights file. Weights are read later.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from spark_audit.checkpoints.adapters import PREFIX
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.gguf_file import gguf_file
from spark_audit.checkpoints.locate import (
    CONFIGURATIONS,
    HUB,
    WEIGHT_SUFFIXES,
    check_inside,
    printable,
    read_config,
    read_json,
    readable,
    refuse_code,
)
from spark_audit.checkpoints.series import choose_stage, is_series
from spark_audit.checkpoints.sidecar import written_down
from spark_audit.checkpoints.specs import Loading, exists, split_stage
from spark_audit.checkpoints.weight_files import (
    ADAPTER,
    State,
    check_filled,
    config_of,
    lone_file,
    merged,
    only_tensors,
    read_tensors,
    weight_files,
    weights_of,
)
from spark_audit.errors import CheckpointError, at, shown
from spark_audit.files import instead


def read_headers(source: str, loading: Loading) -> Checkpoint:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, number = split_stage(source)
    path = loading.locate(text)
    with at(source), readable():
        places = formats_of(path)
        if len(places) != 1:
            raise _no_checkpoint(path, [*places])
        ((name, (place, read)),) = places.items()
        if read is None:
            stage, notes = choose_stage(path, number)
            made = read_headers(str(stage), loading)
            shown_as = printable(text) + (f"@{number}" if number else "")
            notes += made.notes
            return replace(made, source=shown_as, where=source, notes=notes)
        if number is not None:
            what = f"is one checkpoint, not a series: @{number} does not apply"
            raise CheckpointError(what)
        if place != path:
            check_inside(place)
        made = read(place, loading)
        # The file of an adapter's folder is what the folder is.
        trained_on, noise_sha256 = written_down(made.folder, made.files)
    given: Any = {"loading": loading, "base": loading.base or made.base}
    given |= {"source": printable(source), "where": source, "format": name}
    return replace(
        made,
        **given,
        host=made.host and replace(made.host, **given),
        trained_on=trained_on,
        noise_sha256=noise_sha256,
    )


def _no_checkpoint(path: Path, formats: list[str]) -> CheckpointError:
    what = f"reads as {' and as '.join(formats)}" if formats else "is no checkpoint"
    children = sorted(path.iterdir()) if path.is_dir() else []
    inside = [one.name for one in children if one.is_dir() and formats_of(one)]
    if inside:
        what += f" (these folders in it are: {', '.join(inside[:5])})"
    otherwise = (
        "give a folder with config.json or adapter_config.json, or a weights file"
    )
    return CheckpointError(what, fix=instead(path, otherwise))


Reader = Callable[[Path, Loading], Checkpoint]


def formats_of(path: Path) -> dict[str, tuple[Path, Reader | None]]:
    """The formats that a path is of, by its content.

    Each with what is read for it, and how that is put together; a series is not.
    """
    model, adapter = ((path / name).exists() for name in CONFIGURATIONS)
    full, file = weights_of(path) is not None, partial(lone_file, path)
    table: tuple[tuple[str, Path | None, Reader | None], ...] = (
        ("bare-weights", file(WEIGHT_SUFFIXES, CONFIGURATIONS), bare_weights),
        ("gguf-file", file((".gguf",), CONFIGURATIONS[:1]), gguf_file),
        ("hf-folder", path if model and (full or not adapter) else None, hf_folder),
        ("peft-adapter", path if adapter and not full else None, peft_adapter),
        ("task-series", path if is_series(path) else None, None),
    )
    return {name: (place, read) for name, place, read in table if place is not None}


# --- folders --------------------------------------------------------------------------

_WRAPPED = ("module.", "_orig_mod.", "_module.", "base_model.model.")
# What LLaVA and its descendants (MCITlib) train beside an adapter, and the modules
# that text alone does not pass through.
_TRAINED = ("non_lora_trainables.bin", "non_lora_state_dict.bin")
_IMAGES = re.compile(r"(^|\.)(mm_|vision_|visual\b|image_newline)")


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
    return Checkpoint(config, files, read, path, folder=path, whole=True)


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
    if loading.base is None:
        # A path only: whoever made the adapter asks no host.
        if named is None or named.startswith(HUB) or not exists(named):
            what = "the adapter names no base"
            if named is not None:
                what = f"the adapter's base {shown(named)} is not here"
            fix = f"give --base MODEL (a folder, or {HUB}ORG/NAME)"
            raise CheckpointError(what, fix=fix)
        notes.append(f"base: {shown(theirs)}, as the adapter names it")
    elif named is not None and theirs != PurePath(str(loading.base)).name:
        ours = printable(str(loading.base))
        notes.append(f"base: {ours} as given; the adapter names {shown(theirs)}")
    read, told = partial(merged, files), tuple(notes)
    return Checkpoint(
        config, files, read, path, folder=path, adapter=True, base=named, notes=told
    )


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


# --- a weights file alone, with whatever wrapped it -----------------------------------

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
_LAYER = re.compile(r"^.*?\.\d+\.")
_ALONE = "save the one to audit alone"
_OTHER_PEFT = re.compile(r"\.(ia3_l|hada_w|lokr_w|oft_|vera_|boft_|fourierft_|prompt_)")


def bare_weights(file: Path, loading: Loading) -> Checkpoint:
    """Full weights into the architecture of a config.json, or LoRA onto the base.

    Raises
    ------
    CheckpointError
        If the configuration, the base or LoRA's alpha is not known, or the file holds
        anything that is not understood.
    """
    full, lora, notes = _read(file)
    folder, made = file.parent, None
    if full:
        check_filled(full)
        config, place, note = config_of(file, loading)
        notes.append(note)
        made = Checkpoint(config, (file,), lambda: _read(file)[0], place, folder=folder)
    if lora:
        config, note = _lora_config(file, lora, loading)
        notes.append(note)
        if made is not None:
            notes.append("holds the base's weights and LoRA: both are the file's own")
        elif loading.base is None:
            what = "holds LoRA weights without their base"
            raise CheckpointError(what, fix="give --base")
        known: Any = {"folder": folder, "adapter": True, "host": made}
        made = Checkpoint(config, (file,), lambda: _read(file)[1], folder, **known)
    assert made is not None  # no tensors at all are refused as they are read
    return replace(made, notes=tuple(notes))


def _unwrapped(file: Path) -> tuple[State, list[str]]:
    """The state dictionary inside whatever training saved."""
    content, notes = read_tensors(file), []
    # A pickle can hold itself: wrappers are a few deep, never more.
    for _ in range(_WRAPPERS):
        held = content if isinstance(content, dict) else {}
        inside = [key for key in _CONTAINERS if isinstance(held.get(key), dict)]
        if len(inside) > 1:
            raise CheckpointError(
                f"holds several models: {', '.join(inside)}", fix=_ALONE
            )
        for key in inside:
            notes.append(f"taken from {key!r} in the file")
            content = content[key]
    # An empty one is none.
    return only_tensors(content or None, fix="save model.state_dict() alone"), notes


def _read(file: Path) -> tuple[State, State, list[str]]:
    """Full weights by the names of the bare module, LoRA's by PEFT's, and notes.

    The names of wrappers and adapters are stripped.
    """
    state, notes = _unwrapped(file)
    full: State = {}
    lora: State = {}
    adapters: set[str] = set()
    for key, tensor in state.items():
        name = _ANYWHERE.sub("", _FRONT.sub("", _ANYWHERE.sub("", key)))
        name = name.removeprefix(PREFIX)
        if other := _OTHER_PEFT.search("." + name):
            what = f"holds a PEFT adapter other than LoRA ({shown(key)}, {other[1]})"
            fix = "give the adapter's folder with its adapter_config.json"
            raise CheckpointError(what, fix=fix)
        target, part = full, _LORA.fullmatch(name)
        name = name.replace(".base_layer.", ".")
        if part:
            adapters.add(part["name"] or "")
            # PEFT saves DoRA's vector without the name of its parameter.
            rest = "" if part["part"].endswith("_vector") else part["rest"] or ""
            target, name = lora, PREFIX + part["part"] + rest
        if name in target or len(adapters) > 1:
            listed = ", ".join(sorted(adapters)) if len(adapters) > 1 else ""
            what = f"several adapters ({listed})" if listed else f"{name} twice"
            raise CheckpointError(f"holds {what}", fix=_ALONE)
        target[name] = tensor
    if not state.keys() <= {*full, *lora, *(k.removeprefix(PREFIX) for k in lora)}:
        notes.append("wrappers' names stripped from the tensors' names")
    return full, lora, notes


def _lora_config(
    file: Path, lora: State, loading: Loading
) -> tuple[dict[str, Any], str]:
    """LoRA's configuration: from beside the file, else rank and targets from shapes.

    A module that is adapted in one layer is expected in all, as only a configuration
    could say otherwise: of a deeper base, some layers would be without adapter.
    """
    beside = file.parent / "adapter_config.json"
    if beside.exists():
        return read_json(beside), "LoRA settings: adapter_config.json next to the file"
    if loading.lora_alpha is None:
        raise CheckpointError(
            "holds LoRA weights, whose alpha is not in the file",
            fix="give --lora-alpha, or put adapter_config.json next to the file",
        )
    matches = [(_RANK.fullmatch(key), lora[key].shape) for key in lora]
    parts = [(match, int(shape[0])) for match, shape in matches if match]
    # O-LoRA scales by the rank of its newest part.
    parts.sort(key=lambda part: part[0]["new"] is not None)
    ranks = {match["module"].removeprefix(PREFIX): rank for match, rank in parts}
    if not ranks:
        raise CheckpointError("has LoRA tensors, but no lora_A")
    usual = Counter(ranks.values()).most_common(1)[0][0]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": usual,
        "r_sum": ([0] + [rank for match, rank in parts if not match["new"]])[-1],
        "lora_alpha": loading.lora_alpha,
        "target_modules": sorted({_LAYER.sub("", name) for name in ranks}),
        "rank_pattern": {name: ranks[name] for name in ranks if ranks[name] != usual},
        "use_dora": any(key.endswith("magnitude_vector") for key in lora),
    }
    note = f"LoRA: rank {usual} from shapes, alpha {loading.lora_alpha:g} as given"
    return config, note
