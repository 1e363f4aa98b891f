"""The files of a checkpoint: found, refused when unsafe, read, hashed.

Also those that spark-train writes beside weights: checksums, frozen noise.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import torch

from spark_audit.checkpoints import shards, untrusted
from spark_audit.checkpoints.specs import Loading
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

# Keys that differ between two savings of the same weights.
_VOLATILE = ("_name_or_path", "transformers_version")
PEFT_PREFIX = "base_model.model."
"""In front of the names of PEFT's tensors."""
FULL_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
COPY_AGAIN = "copy or download the checkpoint again"
State = dict[str, torch.Tensor]
_POINTER_BYTES = 1024
_FILE_NAME_BYTES = 255
"""The longest name of a file that file systems have."""
_SHARD = re.compile(r"\d{4,5}(?:-of-\d{5}|_\d+)\.")
_NOT_TRANSFORMERS = "tok_embeddings.weight"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WEIGHTS_OF_OTHER_FRAMEWORKS = (
    ("flax_model.msgpack", "Flax", "from_pretrained(FOLDER, from_flax=True)"),
    ("tf_model.h5", "TensorFlow", "from_pretrained(FOLDER, from_tf=True)"),
    ("model.onnx", "ONNX", ""),
    ("onnx/model.onnx", "ONNX", ""),
    ("openvino_model.xml", "OpenVINO", ""),
)
"""Files, the framework that reads them, and the call of transformers 4 that did."""
NOISE_FILE = "frozen_noise.safetensors"
"""Beside a checkpoint: what is added to its input embeddings, one row a token."""
_COPY = "copy the file of its run next to the adapter"
# The name that spark-train gives it.
_TRAINED_ON = "trained_on.json"
ITS_OWN = "give the config.json that was saved with these weights"


def weights_of(folder: Path, names: Sequence[str] = FULL_WEIGHT_FILES) -> Path | None:
    """The first of these files that is there, or its index."""
    paths = (folder / f"{name}{end}" for name in names for end in ("", ".index.json"))
    return next(filter(os.path.lexists, paths), None)


def files_of(
    folder: Path, names: Sequence[str] = FULL_WEIGHT_FILES
) -> tuple[Path, ...]:
    """The files that transformers or PEFT would read weights from, by these names.

    ``zero_to_fp32`` of DeepSpeed makes a folder of the name that it is given: then they
    are the files in it.

    Raises
    ------
    CheckpointError
        If there are none, a shard is missing or the index names a file outside the
        folder.
    """
    path = weights_of(folder, names)
    if path is None or any(folder.glob("shard-*-model-*.safetensors")):
        shards.refuse_shards(folder)
        _refuse_other_frameworks(folder)
        suffixes = (*untrusted.WEIGHT_SUFFIXES, ".gguf")
        own = sorted(file.name for file in untrusted.weights_in(folder, suffixes))
        fix = "copy the weights there, put shards of a distributed run together, or "
        fix += f"give a weights file itself ({own[0] if own else 'none is there'})"
        if len(own) > 1 and all(map(_SHARD.search, own)):
            fix = f"add the {names[0]}.index.json that says which of {len(own)} files "
            fix += f"belong together, or give one that is whole, such as {own[0]}"
        what = f"has a configuration, but no whole {' or '.join(names)}"
        raise CheckpointError(what, fix=fix)
    untrusted.check_inside(path, within=folder)
    if path.is_dir():
        untrusted.check_folder(path)
        return files_of(path, names)
    if not path.name.endswith(".index.json"):
        return (path,)
    return _shards(path)


def _refuse_other_frameworks(folder: Path) -> None:
    """Refuse weights that only another framework than PyTorch reads.

    Raises
    ------
    CheckpointError
        With the framework, and how its weights are converted.
    """
    for name, framework, call in WEIGHTS_OF_OTHER_FRAMEWORKS:
        # Flax and TensorFlow, too, divide a large model, with an index beside it.
        paths = [folder / name, folder / f"{name}.index.json"]
        if not any(path.exists() for path in paths):
            continue
        fix = "give the model that it was exported from"
        if call:
            fix = f"convert it with transformers 4: {call}.save_pretrained(OUT)"
        raise CheckpointError(f"holds weights of {framework} ({name})", fix=fix)


def _shards(index: Path) -> tuple[Path, ...]:
    """The files that an index names."""
    shards = untrusted.read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index.name} has no weight_map", fix=COPY_AGAIN)
    names = sorted({*map(str, shards.values())})
    for name in names:
        # No system has such a file, and libraries fail on it in other ways.
        if not name.isprintable() or len(name.encode()) > _FILE_NAME_BYTES:
            what = f"{index.name} names {shown(name, 60)!r}, which is no file's name"
            raise CheckpointError(what, fix=COPY_AGAIN)
    files = tuple(index.parent / name for name in names)
    for file in files:
        untrusted.check_inside(file, within=index.parent)
        if not os.path.lexists(file):
            what = f"{file.name}, which {index.name} names, is missing"
            raise CheckpointError(what, fix=COPY_AGAIN)
    return files


def config_of(file: Path, loading: Loading) -> tuple[dict[str, object], Path, str]:
    """The config.json that says what the weights belong to, its folder, a note.

    Parameters
    ----------
    file
        The weights, or the folder that they are in.
    """
    folder, note = file.parent, "architecture: config.json next to the file"
    if file.is_dir() and (file / "config.json").exists():
        folder = file
    if not (folder / "config.json").exists():
        if loading.base is None:
            what = "full weights need a config.json, and none is next to the file"
            fix = "give --base MODEL: only its architecture and tokenizer are used"
            raise CheckpointError(what, fix=fix)
        folder, base = loading.locate(loading.base), untrusted.printable(loading.base)
        note = f"architecture: {base} (none of its weights)"
    config = untrusted.read_config(folder, trusted=loading.trust_remote_code)
    return config, folder, note


def read_tensors(path: Path) -> object:
    """Read a weights file, never running code from it.

    Returns
    -------
    object
        What the file holds: a dictionary of tensors for safetensors, whatever was
        saved for a pickle. They are mapped: numbers are read where they are looked at.
    """
    if path.suffix == ".safetensors":
        return read_safetensors(path)[0]
    return _unpickled(path)


def _refuse_pointer(path: Path) -> None:
    """Refuse what Git leaves in the place of a large file.

    Raises
    ------
    CheckpointError
        With the command that fetches the file.
    """
    if path.stat().st_size <= _POINTER_BYTES and is_lfs_pointer(path.read_bytes()):
        what = f"{path.name} is a pointer of Git LFS, and not the file itself"
        raise CheckpointError(what, fix=LFS_PULL)


def refuse_other_names(
    state: Mapping[str, torch.Tensor], *, model_type: str = ""
) -> None:
    """Refuse weights by the names of Meta, Mistral or torchtune.

    Parameters
    ----------
    model_type
        That of a folder which transformers reads: a few classes are saved by such names
        (Mistral Large 4), and transformers knows the way back.

    Raises
    ------
    CheckpointError
        With what makes transformers' of them.
    """
    if _NOT_TRANSFORMERS in state and not _is_renamed(model_type):
        what = "its tensors have the names of Meta, Mistral or torchtune "
        what += f"({_NOT_TRANSFORMERS}), not those of transformers"
        fix = "give the folder in Hugging Face's format: convert Meta's by python -m "
        fix += (
            "transformers.models.llama.convert_llama_weights_to_hf --input_dir FOLDER "
        )
        fix += "--output_dir OUT, save torchtune's by FullModelHFCheckpointer"
        raise CheckpointError(what, fix=fix)


def _is_renamed(model_type: str) -> bool:
    """Return whether transformers renames such tensors of a class when it loads it.

    A release that keeps its renamings elsewhere, or in another form, renames none as
    far as is known here: the weights are then refused.
    """
    try:
        conversion_mapping = import_module("transformers.conversion_mapping")
    except ImportError:
        return False
    mapping_of = getattr(conversion_mapping, "get_checkpoint_conversion_mapping", None)
    if mapping_of is None:
        return False

    for conversion in mapping_of(model_type) or ():
        patterns = getattr(conversion, "source_patterns", ())
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            # A pattern that takes in any name is not about these.
            names_it = "tok_embeddings" in pattern
            if names_it and re.search(pattern, _NOT_TRANSFORMERS):
                return True
    return False


def _unpickled(path: Path) -> object:
    """What torch.save wrote, of tensors alone."""
    again = "save it again with torch.save(model.state_dict(), ...) or safetensors"
    with untrusted.foreign(f"{path.name} cannot be read as weights"):
        # What the user named may be a link; in folders links were looked at before.
        check_regular(path, follow=True)
        _refuse_pointer(path)
        if zipped := zipfile.is_zipfile(path):
            # Refuse a file that grows when it is read: torch.save stores, never packs.
            with zipfile.ZipFile(path) as archive:
                parts = archive.infolist()
            packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
            if packed or sum(part.file_size for part in parts) > path.stat().st_size:
                raise CheckpointError(f"{path.name} is a packed archive", fix=again)
        try:
            # Only the zip format can be mapped; older files are read whole.
            return torch.load(path, "cpu", weights_only=True, mmap=zipped or None)
        except pickle.UnpicklingError as error:
            asked = re.search(r"(?:GLOBAL|global:?) ([\w.]+\.[\w.]+)", str(error))
            what = f"asks for {asked[1]}" if asked else "is none of tensors alone"
            what = f"{path.name} is refused: the pickle {what}, which could run code"
            raise CheckpointError(what, fix=again) from error


def read_safetensors(path: Path) -> tuple[State, dict[str, str]]:
    """The tensors of a safetensors file, mapped, and what its header says besides."""
    from safetensors import safe_open

    with untrusted.foreign(
        f"{path.name} is damaged or no safetensors file", fix=COPY_AGAIN
    ):
        check_regular(path, follow=True)
        _refuse_pointer(path)
        with safe_open(path, framework="pt") as file:
            state = {key: file.get_tensor(key) for key in file.keys()}
            return state, file.metadata() or {}


def lone_file(
    path: Path, suffixes: Sequence[str] = untrusted.WEIGHT_SUFFIXES
) -> Path | None:
    """A file of these kinds, or the only one of a folder."""
    if not path.is_dir():
        return path if path.suffix in suffixes and path.is_file() else None
    files = untrusted.weights_in(path, suffixes)
    return files[0] if len(files) == 1 else None


def only_tensors(content: object, *, what: str = "", fix: str) -> State:
    """A state dictionary, each tensor dense; anything else is refused."""
    if not isinstance(content, dict):
        raise CheckpointError(f"{what}holds no state dictionary", fix=fix)
    for key, value in content.items():
        if not isinstance(value, torch.Tensor):
            what += f"holds something else than tensors ({shown(key)})"
            raise CheckpointError(what, fix=fix)
        dense = value.layout == torch.strided and not value.is_quantized
        # A pickle can name a tensor that is larger than what is stored for it.
        if not dense or value.nbytes > value.untyped_storage().nbytes():
            what = f"tensor {shown(key)} is not stored number by number"
            raise CheckpointError(what, fix="save contiguous, dense tensors")
    return {str(key): value for key, value in content.items()}


def merged(files: Iterable[Path]) -> State:
    """The tensors of all shards in one dictionary."""
    state: State = {}
    for path in files:
        fix = f"give the file itself: {path.name}"
        state |= only_tensors(read_tensors(path), what=f"{path.name} ", fix=fix)
    return state


def check_filled(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse empty tensors and files without any."""
    empty = [name for name, tensor in state.items() if tensor.numel() == 0]
    if empty or not state:
        what = f"tensor {shown(empty[0])} is empty" if empty else "holds no tensors"
        what += ": DeepSpeed ZeRO-3 saves that when it does not gather its shards"
        fix = "run zero_to_fp32.py on the training folder and give its result"
        raise CheckpointError(what, fix=fix)


def check_floats(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse other numbers where floating-point ones belong: a cast would hide them."""
    for name, tensor in state.items():
        if tensor.dtype not in FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            what = f"tensor {shown(name)} holds {kind}, not floating-point numbers of "
            what += "16 bits or more"
            raise CheckpointError(what, fix="save it as it was trained")


def check_finite(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse NaN and infinite numbers, by the tensor's name."""
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # Either end is NaN where any number is: 20 times as fast as to ask each.
        if not bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all()):
            kind = "NaN" if bool(torch.isnan(tensor).any()) else "infinite numbers"
            fix = "training diverged, or the dtype is too narrow: leave it out, give "
            fix += "an earlier checkpoint, or try --dtype float32"
            raise CheckpointError(f"tensor {shown(name)} holds {kind}", fix=fix)


def check_stored(files: Iterable[Path]) -> None:
    """Refuse NaN and infinite numbers in safetensors files.

    Of parameters only: a buffer that no model uses may hold infinity. Other files are
    not read: they take decoding, or are held whole.
    """
    # File by file: together they may be larger than the memory.
    for path in files:
        if path.suffix == ".safetensors":
            for name, tensor in read_safetensors(path)[0].items():
                if name.endswith((".weight", ".bias")):
                    check_finite({name: tensor})


def content_sha256(files: Iterable[Path], config: Mapping[str, object]) -> str:
    """SHA-256 over sorted (file name, SHA-256) of weights, and the configuration.

    What two savings of the same configuration differ in (the library's version, the
    path it was loaded from) is left out.
    """
    kept = {k: v for k, v in config.items() if k not in _VOLATILE}
    named = sorted([path.name, sha256_file(path)] for path in files)
    # Some configurations hold infinity, which canonical JSON has no word for.
    return sha256_json({"config": json.dumps(kept, sort_keys=True), "files": named})


def check_whole(folder: Path) -> dict[str, object]:
    """What spark-train put beside an adapter, its files held against their checksums.

    Raises
    ------
    CheckpointError
        With the name of a file that is not as it was written.
    """
    place = folder / _TRAINED_ON
    if not os.path.lexists(place):
        return {}  # of another maker: there is nothing to hold them against
    told = untrusted.read_json(place)
    seal, files = intact(read_regular(place)), told.get("files")
    if seal is None and files is None:
        return told
    faults: list[tuple[str, str | None]] = [(_TRAINED_ON, DAMAGED)]
    if seal and isinstance(files, dict) and all(Path(n).name == n for n in files):
        faults = [(name, fault(folder / name, fact)) for name, fact in files.items()]
    for name, what in faults:
        if what is not None:
            fix = "copy the adapter's folder again, or train again"
            raise CheckpointError(f"{name} {what}", fix=fix)
    return told


def frozen_noise(
    folder: Path, files: Iterable[Path], shape: Iterable[int]
) -> torch.Tensor | None:
    """The noise that belongs to a checkpoint; ``None`` where there is none.

    Parameters
    ----------
    folder, files
        The checkpoint's, and its weights: the header of an adapter's file says which
        noise belongs to it, also where the files beside it were left behind.
    shape
        Of the input embeddings, ``(V, H)``.

    Raises
    ------
    CheckpointError
        If it is missing, not as it was written, of another shape, or not finite.
    """
    sha256 = check_whole(folder).get("noise_sha256")
    for file in files:
        if sha256 is None and file.suffix == ".safetensors":
            sha256 = read_safetensors(file)[1].get("noise_sha256")
    if os.path.lexists(folder / NOISE_FILE):
        return _noise(folder / NOISE_FILE, sha256, shape)
    if sha256 is not None:
        what = "is missing: it was trained with noise on its input embeddings"
        raise CheckpointError(f"{NOISE_FILE} {what}", fix=_COPY)
    return None


def _noise(path: Path, sha256: object, shape: Iterable[int]) -> torch.Tensor:
    untrusted.check_inside(path)
    state = merged((path,))
    check_floats(state)
    given = {name: tensor.shape for name, tensor in state.items()}
    base = "give the base it was drawn for by --base"
    ours = {"noise": torch.Size(shape)}
    refuse_differences(given, ours, tensor=f"{NOISE_FILE}: tensor", fix=base)
    check_finite(state)
    if sha256 is not None and sha256_file(path) != sha256:
        what = "is not the file that it was trained with"
        raise CheckpointError(f"{NOISE_FILE} {what}", fix=_COPY)
    return state["noise"]


def refuse_differences(
    theirs: Mapping[str, Sequence[int]],
    ours: Mapping[str, Sequence[int]],
    *,
    tensor: str = "tensor",
    fix: str = f"{ITS_OWN}, or save the whole model again",
) -> None:
    """Raise, naming the first tensor that does not fit and how many more do not.

    Parameters
    ----------
    theirs, ours
        Shapes of tensors by name, in the file and in the model. One that the file lacks
        would be random.
    tensor, fix
        Words of the error.
    """
    missing, unexpected, reshaped = [], [], []
    for name in sorted(theirs.keys() | ours):
        there, here = theirs.get(name), ours.get(name)
        if there is None:
            missing.append(f"{shown(name)} is missing")
        elif here is None:
            unexpected.append(f"{shown(name)} is unexpected")
        elif tuple(there) != tuple(here):
            said = f"has shape {[*there]}, the model needs {[*here]}"
            reshaped.append(f"{shown(name)} {said}")
    if wrong := missing or unexpected or reshaped:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise CheckpointError(f"{tensor} {wrong[0]}{more}", fix=fix)
