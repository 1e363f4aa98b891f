"""Find, check, read and hash the weight files of a checkpoint.

No code of a file runs: pickles are read only as tensors.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from spark_audit.checkpoints import shards, untrusted
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.tensor_checks import State, check_finite, only_tensors
from spark_audit.errors import CheckpointError, shown
from spark_audit.files import (
    DAMAGED,
    LFS_PULL,
    check_regular,
    fault,
    intact,
    is_lfs_pointer,
    read_regular,
    sha256_file,
)
from spark_audit.provenance import sha256_json

_VOLATILE_FIELDS = ("_name_or_path", "transformers_version")
"""Fields of config.json that differ when the same weights are saved twice."""
PEFT_PREFIX = "base_model.model."
"""Prefix of the names of PEFT's tensors."""
FULL_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Files of a model's weights, in the order in which transformers looks for them."""
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
"""Files of an adapter's weights, in the order in which PEFT looks for them."""
COPY_AGAIN = "copy or download the checkpoint again"
_SAVE_AGAIN = "save it again with torch.save(model.state_dict(), ...) or safetensors"
_POINTER_BYTES = 1024
"""Bytes up to which a file may be a pointer of Git LFS."""
_FILE_NAME_BYTES = 255
"""Bytes of the longest file name on common file systems."""
# Names of shards by transformers and by torchtune.
_SHARD = re.compile(r"\d{4,5}(?:-of-\d{5}|_\d+)\.")
# The name of the code that a pickle would run, in torch's error.
_ASKED_GLOBAL = re.compile(r"(?:GLOBAL|global:?) ([\w.]+\.[\w.]+)")
WEIGHTS_OF_OTHER_FRAMEWORKS = (
    ("flax_model.msgpack", "Flax", "from_pretrained(FOLDER, from_flax=True)"),
    ("tf_model.h5", "TensorFlow", "from_pretrained(FOLDER, from_tf=True)"),
    ("model.onnx", "ONNX", ""),
    ("onnx/model.onnx", "ONNX", ""),
    ("openvino_model.xml", "OpenVINO", ""),
)
"""Files, their framework, and the call of transformers 4 that could read them."""
NOISE_FILE = "frozen_noise.safetensors"
"""A file beside a checkpoint with noise for its input embeddings, one row per token."""
_TRAINED_ON = "trained_on.json"
"""spark-train's record beside an adapter: its base, its noise, and checksums."""


def weights_of(folder: Path, names: Sequence[str] = FULL_WEIGHT_FILES) -> Path | None:
    """Return the first of these files that exists, or its index; ``None``: neither."""
    for name in names:
        for end in ("", ".index.json"):
            path = folder / f"{name}{end}"
            # A broken link also counts, and is refused by name later.
            if os.path.lexists(path):
                return path
    return None


def files_of(
    folder: Path, names: Sequence[str] = FULL_WEIGHT_FILES
) -> tuple[Path, ...]:
    """Return the files from which transformers or PEFT would read weights.

    If ``zero_to_fp32`` of DeepSpeed made a folder with the name of such a file, the
    result is the files in that folder.

    Parameters
    ----------
    names
        Names of files in order of preference.

    Raises
    ------
    CheckpointError
        If there are none, a shard is missing, or the index names a file outside of the
        folder.
    """
    path = weights_of(folder, names)
    # Such shards have no index, so it is unknown which belong together.
    if path is None or any(folder.glob("shard-*-model-*.safetensors")):
        shards.refuse_shards(folder)
        _refuse_other_frameworks(folder)
        raise _no_weights(folder, names)

    untrusted.check_inside(path, within=folder)
    if path.is_dir():
        untrusted.check_folder(path)
        return files_of(path, names)
    if path.name.endswith(".index.json"):
        return _files_of_index(path)
    return (path,)


def _no_weights(folder: Path, names: Sequence[str]) -> CheckpointError:
    """Return the error about a folder without weights of these names."""
    problem = f"has a configuration, but no whole {' or '.join(names)}"
    suffixes = (*untrusted.WEIGHT_SUFFIXES, ".gguf")
    other_files = sorted(file.name for file in untrusted.weights_in(folder, suffixes))
    if len(other_files) > 1 and all(_SHARD.search(name) for name in other_files):
        remedy = (
            f"add the {names[0]}.index.json that says which of {len(other_files)} "
            "files belong together, or give one that is whole, such as "
            f"{other_files[0]}"
        )
        return CheckpointError(problem, fix=remedy)

    example = other_files[0] if other_files else "none is there"
    remedy = (
        "copy the weights there, put shards of a distributed run together, or "
        f"give a weights file itself ({example})"
    )
    return CheckpointError(problem, fix=remedy)


def _refuse_other_frameworks(folder: Path) -> None:
    """Refuse weights that only another framework can read.

    Raises
    ------
    CheckpointError
        Names the framework, and how to convert its weights.
    """
    for name, framework, call in WEIGHTS_OF_OTHER_FRAMEWORKS:
        # Flax and TensorFlow also divide a large model, with an index beside it.
        paths = [folder / name, folder / f"{name}.index.json"]
        if not any(path.exists() for path in paths):
            continue

        remedy = "give the model that it was exported from"
        if call:
            remedy = f"convert it with transformers 4: {call}.save_pretrained(OUT)"
        raise CheckpointError(f"holds weights of {framework} ({name})", fix=remedy)


def _files_of_index(index: Path) -> tuple[Path, ...]:
    """Return the files that an index names.

    Raises
    ------
    CheckpointError
        If it names no file, or one that is missing or outside of its folder.
    """
    file_of_tensor = untrusted.read_json(index).get("weight_map")
    if not isinstance(file_of_tensor, dict) or not file_of_tensor:
        raise CheckpointError(f"{index.name} has no weight_map", fix=COPY_AGAIN)

    names = sorted({str(name) for name in file_of_tensor.values()})
    for name in names:
        # No system has such a file, and libraries fail on it in various ways.
        if not name.isprintable() or len(name.encode()) > _FILE_NAME_BYTES:
            problem = f"{index.name} names {shown(name, 60)!r}, which is no file's name"
            raise CheckpointError(problem, fix=COPY_AGAIN)

    files = tuple(index.parent / name for name in names)
    for file in files:
        untrusted.check_inside(file, within=index.parent)
        if not os.path.lexists(file):
            problem = f"{file.name}, which {index.name} names, is missing"
            raise CheckpointError(problem, fix=COPY_AGAIN)
    return files


@dataclass(frozen=True)
class FoundConfig:
    """The configuration that belongs to weights.

    Attributes
    ----------
    content
        Content of config.json.
    folder
        Its folder, with the tokenizer that belongs to it.
    note
        A note on where it was found, for readers of a report.
    """

    content: dict[str, object]
    folder: Path
    note: str


def config_of(file: Path, loading: Loading) -> FoundConfig:
    """Return the config.json beside weights, or else the base's.

    Parameters
    ----------
    file
        The weights, or their folder.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    folder = file.parent
    note = "architecture: config.json next to the file"
    if file.is_dir() and (file / "config.json").exists():
        folder = file

    if not (folder / "config.json").exists():
        if loading.base is None:
            problem = "full weights need a config.json, and none is next to the file"
            remedy = "give --base MODEL: only its architecture and tokenizer are used"
            raise CheckpointError(problem, fix=remedy)

        folder = loading.locate(loading.base)
        base = untrusted.printable(loading.base)
        note = f"architecture: {base} (none of its weights)"

    config = untrusted.read_config(folder, trusted=loading.trust_remote_code)
    return FoundConfig(config, folder, note)


def lone_file(
    path: Path, suffixes: Sequence[str] = untrusted.WEIGHT_SUFFIXES
) -> Path | None:
    """Return a path that is such a file, or the only such file in a folder."""
    if path.is_dir():
        files = untrusted.weights_in(path, suffixes)
        return files[0] if len(files) == 1 else None
    return path if path.suffix in suffixes and path.is_file() else None


def read_tensors(path: Path) -> object:
    """Read a weights file without running code from it.

    Returns
    -------
    object
        The content of the file: a dictionary of tensors for safetensors, or any saved
        value for a pickle. Tensors are mapped, so their numbers are read on use.
    """
    if path.suffix == ".safetensors":
        return read_safetensors(path)[0]
    return _read_pickle(path)


def read_all(files: Iterable[Path]) -> State:
    """Return the tensors of all files in one dictionary; they may be shards."""
    state: State = {}
    for path in files:
        remedy = f"give the file itself: {path.name}"
        state |= only_tensors(read_tensors(path), prefix=f"{path.name} ", fix=remedy)
    return state


def _refuse_pointer(path: Path) -> None:
    """Refuse a pointer that Git leaves in place of a large file.

    Raises
    ------
    CheckpointError
        Names the command that fetches the file.
    """
    if path.stat().st_size <= _POINTER_BYTES and is_lfs_pointer(path.read_bytes()):
        problem = f"{path.name} is a pointer of Git LFS, and not the file itself"
        raise CheckpointError(problem, fix=LFS_PULL)


def _read_pickle(path: Path) -> object:
    """Return the value of a torch.save file, if it consists only of tensors.

    Raises
    ------
    CheckpointError
        If it could run code, or expands when it is read.
    """
    with untrusted.foreign(f"{path.name} cannot be read as weights"):
        # The user may name a link; links in folders were checked before.
        check_regular(path, follow=True)
        _refuse_pointer(path)
        is_zip = zipfile.is_zipfile(path)
        if is_zip:
            _refuse_packed(path)

        try:
            # Only the zip format can be mapped, and older files are read whole.
            return torch.load(path, "cpu", weights_only=True, mmap=is_zip or None)
        except pickle.UnpicklingError as error:
            # The error shows the name of the code, but never its arguments.
            named_code = _ASKED_GLOBAL.search(str(error))
            reason = "is none of tensors alone"
            if named_code is not None:
                reason = f"asks for {named_code[1]}"
            problem = (
                f"{path.name} is refused: the pickle {reason}, which could run code"
            )
            raise CheckpointError(problem, fix=_SAVE_AGAIN) from error


def _refuse_packed(path: Path) -> None:
    """Refuse an archive that expands when it is read: torch.save never compresses.

    Raises
    ------
    CheckpointError
        If a part is compressed, or if the parts are larger than their file.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()

    # Parts may overlap in the file, and then are larger together.
    is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    n_bytes = sum(member.file_size for member in members)
    if is_packed or n_bytes > path.stat().st_size:
        raise CheckpointError(f"{path.name} is a packed archive", fix=_SAVE_AGAIN)


def read_safetensors(path: Path) -> tuple[State, dict[str, str]]:
    """Return the tensors of a safetensors file, mapped, and its header's metadata."""
    from safetensors import safe_open

    problem = f"{path.name} is damaged or no safetensors file"
    with untrusted.foreign(problem, fix=COPY_AGAIN):
        check_regular(path, follow=True)
        _refuse_pointer(path)
        with safe_open(path, framework="pt") as file:
            state = {key: file.get_tensor(key) for key in file.keys()}
            return state, file.metadata() or {}


def check_stored(files: Iterable[Path]) -> None:
    """Refuse NaN and infinite numbers in safetensors files.

    Only parameters are checked, because a buffer that no model uses may hold infinity.
    Other formats are not read: they need decoding, or are held in memory as a whole.
    """
    # File by file, because together they may be larger than the memory.
    for path in files:
        if path.suffix != ".safetensors":
            continue
        for name, tensor in read_safetensors(path)[0].items():
            if name.endswith((".weight", ".bias")):
                check_finite({name: tensor})


def content_sha256(files: Iterable[Path], config: Mapping[str, object]) -> str:
    """Return a hash of weight files, by name and SHA-256, and of the configuration.

    Fields that differ between two savings of one configuration (the library's version,
    the path it was loaded from) are left out.
    """
    stable = {
        key: value for key, value in config.items() if key not in _VOLATILE_FIELDS
    }
    hash_by_file = sorted([path.name, sha256_file(path)] for path in files)
    # Some configurations hold infinity, which canonical JSON cannot express.
    content = {"config": json.dumps(stable, sort_keys=True), "files": hash_by_file}
    return sha256_json(content)


def check_whole(folder: Path) -> dict[str, object]:
    """Check spark-train's files beside an adapter against their checksums.

    Returns
    -------
    dict
        The record of the base and the noise; empty if another tool saved the folder.

    Raises
    ------
    CheckpointError
        Names a file that was changed.
    """
    path = folder / _TRAINED_ON
    if not os.path.lexists(path):
        return {}

    trained_on = untrusted.read_json(path)
    is_intact = intact(read_regular(path))
    files = trained_on.get("files")
    if is_intact is None and files is None:
        # Without a seal there is nothing to check it against.
        return trained_on

    if not is_intact or not _are_names_in_folder(files):
        raise _not_as_written(_TRAINED_ON, DAMAGED)

    # The seal covers the checksums, and these cover the files.
    assert isinstance(files, dict)  # for the type checker: checked just above
    for name, facts in files.items():
        damage = fault(folder / name, facts)
        if damage is not None:
            raise _not_as_written(name, damage)
    return trained_on


def _are_names_in_folder(files: object) -> bool:
    """Return whether checksums are given, and only for files in their own folder."""
    if not isinstance(files, dict):
        return False
    return all(Path(name).name == name for name in files)


def _not_as_written(name: str, damage: str) -> CheckpointError:
    """Return the error about a file that was changed after spark-train wrote it."""
    remedy = "copy the adapter's folder again, or train again"
    return CheckpointError(f"{name} {damage}", fix=remedy)
