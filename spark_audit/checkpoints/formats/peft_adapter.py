"""Open a folder by PEFT."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath, PureWindowsPath

from spark_audit.checkpoints import specs, tensor_checks, untrusted, weight_files
from spark_audit.checkpoints.formats.bare_weights import bare_weights
from spark_audit.checkpoints.formats.peft_names import (
    is_whole_model,
    without_adapter_name,
)
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.errors import CheckpointError, shown

# Files of weights that LLaVA and its descendants (MCITlib) train beside an adapter, and
# the modules that text does not pass through.
_TRAINED_BESIDE = ("non_lora_trainables.bin", "non_lora_state_dict.bin")
_OF_IMAGES = re.compile(r"(^|\.)(mm_|vision_|visual\b|image_newline)")
# Names of quantised copies of a model (unsloth, GPTQ, AWQ).
_QUANTISED_COPY = re.compile(
    r"-(?:(?:unsloth-)?bnb-[48]bit|[48]bit|awq|gptq(?:-int[48])?)$", re.IGNORECASE
)


@dataclass(frozen=True)
class _NamedBase:
    """The base that an adapter's configuration names; ``""`` if it names none."""

    name: str

    @property
    def last_part(self) -> str:
        """The name without folders."""
        return PurePath(self.name).name

    @property
    def full_precision_name(self) -> str:
        """The name of the original of a quantised copy, or else the name itself."""
        return _QUANTISED_COPY.sub("", self.name)

    @property
    def is_quantised_copy(self) -> bool:
        """Return whether the name is that of a quantised copy of a model."""
        return self.full_precision_name != self.name


def peft_adapter(path: Path, loading: specs.Loading) -> StoredCheckpoint:
    """Return an adapter on the given base, or else on the base that it names.

    Raises
    ------
    CheckpointError
        If it has no weights, brings code, or has no known base.
    """
    config = untrusted.read_json(path / "adapter_config.json")
    if not loading.trust_remote_code:
        untrusted.refuse_code({}, path)
    files = weight_files.files_of(path, weight_files.ADAPTER_FILES)

    # Some tools write an empty name.
    base_name = config.get("base_model_name_or_path") or None
    if not isinstance(base_name, str | None):
        raise CheckpointError("base_model_name_or_path is not a text")
    notes = [*untrusted.notes_on_code(path), *_notes_on_trained_beside(path)]
    notes += _notes_on_base(path, _NamedBase(base_name or ""), loading)

    if len(files) == 1 and is_whole_model(weight_files.read_all(files)):
        # The file holds the state dictionary of the whole model: base and adapter.
        base = loading.base or base_name
        checkpoint = bare_weights(files[0], replace(loading, base=base))
        all_notes = (*notes, *checkpoint.notes)
        return replace(checkpoint, base=base_name, notes=all_notes)
    return StoredCheckpoint(
        config=config,
        files=files,
        read=partial(_adapter_tensors, files),
        config_folder=path,
        folder=path,
        is_adapter=True,
        base=base_name,
        notes=tuple(notes),
    )


def _notes_on_base(path: Path, named: _NamedBase, loading: specs.Loading) -> list[str]:
    """Return notes on the base of an adapter.

    Raises
    ------
    CheckpointError
        If none is given, and the one that it names is not on this machine.
    """
    if loading.base is None:
        # Only a local path: the author of an adapter must not cause requests to a host.
        if named.name.startswith(untrusted.HUB) or not specs.exists(named.name):
            raise _no_base(path, named)
        return [f"base: {shown(named.last_part)}, as the adapter names it"]

    # Only the last parts are compared, because a model may be in another folder here.
    if not named.name or named.last_part == PurePath(loading.base).name:
        return []
    printed = untrusted.printable(loading.base)
    note = f"base: {printed} as given; the adapter names {shown(named.last_part)}"
    if named.is_quantised_copy:
        note += ", a quantised copy, on which it was trained"
    return [note]


def _no_base(path: Path, named: _NamedBase) -> CheckpointError:
    """Return the error about an adapter whose base is unknown or missing."""
    problem = "the adapter names no base"
    if named.name:
        problem = f"the adapter's base {shown(named.name)} is not here"
    remedy = f"give --base MODEL (a folder, or {untrusted.HUB}ORG/NAME)"

    # Rounded weights are another model, so their original is meant.
    if named.is_quantised_copy:
        problem += ", a quantised copy of a model"
        remedy += ": the model in full precision, by its name "
        remedy += shown(named.full_precision_name)
        return CheckpointError(problem, fix=remedy)

    sibling = _sibling_of_its_name(path, named.name)
    if sibling is not None:
        remedy += f", such as {shown(str(sibling))} if that is the base"
    return CheckpointError(problem, fix=remedy)


def _sibling_of_its_name(path: Path, base_name: str) -> Path | None:
    """Return a folder beside an adapter with the name of its base.

    ``None`` without such a folder. The name may come from another machine, with either
    kind of slash, so only its last part is used.
    """
    name = PureWindowsPath(base_name).name
    if not name or name.startswith("."):
        return None
    sibling = path.parent / name
    is_model = sibling != path and specs.exists(str(sibling / "config.json"))
    return sibling if is_model else None


def _adapter_tensors(files: tuple[Path, ...]) -> tensor_checks.State:
    """Return an adapter's tensors, without the adapter's name in their names."""
    return without_adapter_name(weight_files.read_all(files))


def _notes_on_trained_beside(folder: Path) -> list[str]:
    """Return notes on trained weights beside an adapter that PEFT does not read.

    Raises
    ------
    CheckpointError
        If some belong to the language model, which would be another one without them.
    """
    notes: list[str] = []
    for name in _TRAINED_BESIDE:
        if not os.path.lexists(folder / name):
            continue
        untrusted.check_inside(folder / name)
        for key in sorted(weight_files.read_all((folder / name,))):
            if not _OF_IMAGES.search(key):
                problem = f"{name} holds weights of the language model ({shown(key)})"
                remedy = "merge adapter and weights with the tool that trained them"
                raise CheckpointError(problem, fix=remedy)
        notes.append(f"{name} is of images, which are not audited: left out")
    return notes
