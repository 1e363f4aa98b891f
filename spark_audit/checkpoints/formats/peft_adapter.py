"""A folder that PEFT wrote."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath, PureWindowsPath

from spark_audit.checkpoints import specs, untrusted, weight_files
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.formats.bare_weights import bare_weights
from spark_audit.checkpoints.formats.peft_names import (
    is_whole_model,
    without_adapter_name,
)
from spark_audit.errors import CheckpointError, shown

# What LLaVA and its descendants (MCITlib) train beside an adapter, and the modules
# that text alone does not pass through.
_TRAINED = ("non_lora_trainables.bin", "non_lora_state_dict.bin")
_IMAGES = re.compile(r"(^|\.)(mm_|vision_|visual\b|image_newline)")
# How copies of a model that are stored quantised are named (unsloth, GPTQ, AWQ).
_QUANTISED_COPY = re.compile(
    r"-(?:(?:unsloth-)?bnb-[48]bit|[48]bit|awq|gptq(?:-int[48])?)$", re.IGNORECASE
)


def peft_adapter(path: Path, loading: specs.Loading) -> Checkpoint:
    """An adapter on the base that is given, else on the one it names.

    Raises
    ------
    CheckpointError
        If it has no weights, brings code, or no base is known.
    """
    config = untrusted.read_json(path / "adapter_config.json")
    if not loading.trust_remote_code:
        untrusted.refuse_code({}, path)
    files = weight_files.files_of(path, weight_files.ADAPTER_FILES)
    named = config.get("base_model_name_or_path") or None
    if not isinstance(named, str | None):
        raise CheckpointError("base_model_name_or_path is no text")
    notes = [*untrusted.notes_on_code(path), *_beside(path)]
    theirs = PurePath(named or "").name
    whole_name = _QUANTISED_COPY.sub("", named or "")
    is_quantised_copy = bool(named) and whole_name != named
    if loading.base is None:
        # A path only: whoever made the adapter asks no host.
        if named is None or named.startswith(untrusted.HUB) or not specs.exists(named):
            what = f"'s base {shown(named)} is not here" if named else " names no base"
            fix = f"give --base MODEL (a folder, or {untrusted.HUB}ORG/NAME)"
            sibling = _sibling_of_its_name(path, named or "")
            if sibling is not None and not is_quantised_copy:
                fix += f", such as {shown(str(sibling))} if that is the base"
            if is_quantised_copy:
                what += ", a quantised copy of a model"
                fix += f": the model in full precision, by its name {shown(whole_name)}"
            raise CheckpointError(f"the adapter{what}", fix=fix)
        notes.append(f"base: {shown(theirs)}, as the adapter names it")
    elif named is not None and theirs != PurePath(str(loading.base)).name:
        ours = untrusted.printable(str(loading.base))
        note = f"base: {ours} as given; the adapter names {shown(theirs)}"
        if is_quantised_copy:
            note += ", a quantised copy, on which it was trained"
        notes.append(note)
    if len(files) == 1 and is_whole_model(weight_files.merged(files)):
        return _whole_model(files[0], loading, named, notes)
    read, told = partial(_adapter_tensors, files), tuple(notes)
    return Checkpoint(
        config, files, read, path, folder=path, adapter=True, base=named, notes=told
    )


def _sibling_of_its_name(path: Path, named: str) -> Path | None:
    """Return the folder of a model beside an adapter that bears its base's name.

    ``None`` where there is none. The name may be that of another machine, with either
    kind of slash; only its last part is looked for.
    """
    name = PureWindowsPath(named).name
    if not name or name.startswith("."):
        return None
    sibling = path.parent / name
    is_model = sibling != path and specs.exists(str(sibling / "config.json"))
    return sibling if is_model else None


def _adapter_tensors(files: tuple[Path, ...]) -> weight_files.State:
    return without_adapter_name(weight_files.merged(files))


def _whole_model(
    file: Path, loading: specs.Loading, named: str | None, notes: list[str]
) -> Checkpoint:
    """Base and adapter of a file that holds the whole model's state dictionary."""
    base = loading.base or named
    made = bare_weights(file, replace(loading, base=base))
    return replace(made, base=named, notes=(*notes, *made.notes))


def _beside(folder: Path) -> list[str]:
    """What is said of trained weights beside an adapter that PEFT does not read.

    Raises
    ------
    CheckpointError
        If some are of the language model: without them it is another one.
    """
    there = [name for name in _TRAINED if os.path.lexists(folder / name)]
    for name in there:
        untrusted.check_inside(folder / name)
        for key in sorted(weight_files.merged((folder / name,))):
            if not _IMAGES.search(key):
                what = f"{name} holds weights of the language model ({shown(key)})"
                fix = "merge adapter and weights with the tool that trained them"
                raise CheckpointError(what, fix=fix)
    return [f"{name} is of images, which are not audited: left out" for name in there]
