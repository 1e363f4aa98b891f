"""The files of a checkpoint: found, refused when unsafe, read, hashed."""

from __future__ import annotations

import json
import os
import pickle
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.offline import online
from spark_audit.checksums import DAMAGED, fault, intact
from spark_audit.errors import CheckpointError, InputError, visible
from spark_audit.files import (
    SETTINGS_BYTES,
    check_regular,
    lies_inside,
    parse_json,
    read_regular,
)
from spark_audit.provenance import sha256_file, sha256_json

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
# What trainers save beside weights and what is none.
NO_WEIGHTS = (
    "optimizer",
    "scheduler",
    "training_args",
    "rng_state",
    "frozen_noise",
    "state.safetensors",
)
NOISE = "frozen_noise.safetensors"
"""Beside a checkpoint: what is added to its input embeddings, one row a token."""
NOISE_ADDED = "the frozen noise beside it is added to input embeddings"
_TOLD = "trained_on.json"  # as spark-train calls it
HUB = "hf:"
"""What a model or data set on the hub is written with; anything else is a path."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
WORDS_BYTES = 1 << 26
"""The largest file of a tokenizer that is read; the largest real ones are 34 MB."""
# What transformers and PEFT read whole, besides what is read here.
_READ_WHOLE = re.compile(
    r"(adapter_|generation_)?config\.json|(tokenizer|vocab|merges|spiece|chat_template"
    r"|sentencepiece|added_tokens|special_tokens).*|.*\.(index\.json|jinja)"
)
# Where transformers looks for more files than those of the folder itself.
_INNER = ("additional_chat_templates", "custom_generate")
# Keys that differ between two savings of the same weights.
_VOLATILE = ("_name_or_path", "transformers_version")
# What safetensors writes; a dtype that is not named here holds no usual numbers.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def one_line(error: BaseException) -> str:
    """The first line of somebody else's error, short."""
    text = " ".join(str(error).split("\n", 1)[0].split())
    text = text if len(text) <= 160 else text[:157] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(name: object) -> str:
    """A name that stands in somebody else's file, short and in one line."""
    return visible(str(name)[:200])


def locate(
    source: str, *, revision: str | None = None, code: bool = False, hub: bool = True
) -> Path:
    """The local path of what was given; ``hf:ORG/NAME`` is fetched into the cache.

    Parameters
    ----------
    hub
        Whether the user wrote it: what a file names is never fetched.

    Raises
    ------
    CheckpointError
        If nothing is there, it holds a FIFO, a device or a file that is a link out of
        it, or the hub cannot be reached.
    """
    if not source.strip():
        raise CheckpointError("no path was given", where="checkpoint", fix="give one")
    if hub and source.startswith(HUB):
        return _fetched(source, revision=revision, code=code)
    try:
        path = Path(source).expanduser()
        if path.exists():
            check_folder(path, where=source)
            return path
    except (OSError, RuntimeError) as error:
        what = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot be read ({what})", where=source) from error
    fix = "check the path"
    if _HUB_ID.fullmatch(source) and not source.endswith(WEIGHT_SUFFIXES):
        fix += f" (a model on the hub is written {HUB}{source})"
    raise CheckpointError("there is no such file or folder", where=source, fix=fix)


def check_folder(path: Path, *, where: str) -> None:
    """Refuse what would block whoever opens it, lead elsewhere or fill the memory.

    Other libraries open files of a checkpoint by names that only they know.

    Parameters
    ----------
    path
        The checkpoint's folder, or its only file, which may be a link.
    """
    found = [path]
    for folder in (path, *(path / name for name in _INNER)):
        if folder.is_dir():
            found += folder.iterdir()
    for entry in found:
        linked = entry != path and (entry.name in _INNER or not entry.is_dir())
        if linked and os.path.lexists(entry):
            check_inside(entry, within=path, where=where)
        if os.path.exists(entry):
            state = entry.stat()
            what = "is" if entry == path else f"holds {shown(entry.name)}, which is"
            if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
                raise CheckpointError(f"{what} neither file nor folder", where=where)
            if state.st_size > WORDS_BYTES and _READ_WHOLE.fullmatch(entry.name):
                raise CheckpointError(
                    f"{what} larger than {WORDS_BYTES / 1e6:.0f} MB", where=where
                )


def _fetched(source: str, *, revision: str | None, code: bool) -> Path:
    from huggingface_hub import snapshot_download

    repo = source.removeprefix(HUB)
    if not _HUB_ID.fullmatch(repo):
        raise CheckpointError(
            "is no model on the hub", where=source, fix=f"write {HUB}ORG/NAME"
        )
    wanted = ["*.json", "*.txt", "*.model", "*.safetensors", *(["*.py"] * code)]
    try:
        with online():
            folder = Path(
                snapshot_download(repo, revision=revision, allow_patterns=wanted)
            )
            if not any(folder.glob("*.safetensors")):
                snapshot_download(
                    repo,
                    revision=revision,
                    allow_patterns=["pytorch_model*.bin", "adapter_model.bin"],
                )
    except Exception as error:  # network, cache and hub errors share no base class
        raise CheckpointError(
            f"cannot be fetched from the hub ({one_line(error)})",
            where=source,
            fix="check the name and the network, or give a local folder",
        ) from error
    return folder


def printable(source: str) -> str:
    """What was given, without the folders above it; a model on the hub stays whole."""
    path = Path(source).expanduser()
    if not path.exists():
        return source
    return path.name if path.name not in ("", "..") else path.resolve().name


def read_json(path: Path, *, most: int = SETTINGS_BYTES, where: str) -> dict[str, Any]:
    """Read a JSON object of at most so many bytes that lies inside its folder."""
    check_inside(path, where=where)
    try:
        raw = read_regular(path, most=most)
        content = parse_json(raw, place=path.name, finite=False)
    except OSError as error:
        raise CheckpointError(
            f"{path.name} cannot be read ({error.strerror or one_line(error)})",
            where=where,
        ) from error
    except InputError as error:
        raise CheckpointError(
            f"{path.name} cannot be read: it {error.what}", where=where, fix=error.fix
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name} is no JSON object", where=where)
    return content


def check_inside(path: Path, *, within: Path | None = None, where: str) -> None:
    """Refuse a link out of a folder, by default its own (the hub's cache apart)."""
    if not lies_inside(path, within=within):
        raise CheckpointError(
            f"{shown(path.name)} is a link out of the folder",
            where=where,
            fix="copy the file into the folder, or give the folder it lies in",
        )


def weight_files(folder: Path, *, adapter: bool = False, where: str) -> list[Path]:
    """The files transformers or PEFT would read weights from, none if there are none.

    Raises
    ------
    CheckpointError
        If a shard is missing or the index names a file outside the folder.
    """
    stem = "adapter_model" if adapter else "model"
    pickled = "adapter_model.bin" if adapter else "pytorch_model.bin"
    if any(folder.glob("shard-*-model-*.safetensors")):
        raise CheckpointError(
            "holds the shards of a distributed run",
            where=where,
            fix="consolidate them with the tool that saved them",
        )
    for name in (f"{stem}.safetensors", pickled):
        if os.path.lexists(folder / name):
            check_inside(folder / name, where=where)
            return [folder / name]
        if (index := folder / f"{name}.index.json").exists():
            return _shards(index, where=where)
    return []


def _shards(index: Path, *, where: str) -> list[Path]:
    names = read_json(index, where=where).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index.name} has no weight_map", where=where)
    shards = []
    for name in sorted({str(value) for value in names.values()}):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(
                f"{index.name} names a file outside the folder ({name})",
                where=where,
                fix="do not load it: an index names the files beside it",
            )
        shard = index.parent / name
        if not os.path.lexists(shard):
            raise CheckpointError(
                f"{name}, which {index.name} names, is missing",
                where=where,
                fix="copy or download the checkpoint again",
            )
        check_inside(shard, within=index.parent, where=where)
        shards.append(shard)
    return shards


def refuse_code(config: Mapping[str, Any], folder: Path, *, where: str) -> None:
    """Refuse what would run code of the checkpoint (no ``--trust-remote-code``)."""
    fix = "read the code, then add --trust-remote-code"
    if any(key == "auto_map" and value for key, value in walk(config)):
        raise CheckpointError("brings its own code (auto_map)", where=where, fix=fix)
    scripts = sorted([*folder.glob("*.py"), *folder.glob("custom_generate/*.py")])
    if scripts:
        raise CheckpointError(
            f"brings its own code ({scripts[0].name})", where=where, fix=fix
        )


def refuse_redirects(config: Mapping[str, Any], *, where: str) -> None:
    """Refuse a configuration that sends the loader to a hub repo or another file."""
    for key, value in walk(config):
        if key.endswith("attn_implementation") or key == "experts_implementation":
            if "/" in json.dumps(value):
                raise CheckpointError(
                    f"config.json takes its attention code from the hub ({key})",
                    where=where,
                    fix=f"remove {key} from config.json",
                )
        elif key == "transformers_weights" and value:
            raise CheckpointError(
                f"config.json names its own weights file ({value})",
                where=where,
                fix="remove transformers_weights from config.json",
            )


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of nested JSON with its value; depth costs no recursion."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, dict):
            yield from ((str(key), each) for key, each in inner.items())
            waiting += inner.values()
        elif isinstance(inner, list):
            waiting += inner


def read_tensors(path: Path, *, meta: bool = False, where: str) -> Any:
    """Read a weights file, never running code from it.

    Parameters
    ----------
    meta
        Read names and shapes only; the tensors are on the meta device.

    Returns
    -------
    object
        What the file holds: a dictionary of tensors for safetensors, whatever was
        saved for a pickle.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path, meta=meta, where=where)
    try:
        # What the user named may be a link; in folders links were looked at before.
        check_regular(path, follow=True)
        zipped = zipfile.is_zipfile(path)
        if zipped:
            _check_stored(path, where=where)
        # Only the zip format can be mapped; older files are read whole.
        return torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipped or None
        )
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        asked = re.search(r"(?:GLOBAL|global:?) ([\w.]+\.[\w.]+)", str(error))
        what = f"asks for {asked[1]}" if asked else "is none of tensors alone"
        raise CheckpointError(
            f"{path.name} is refused: the pickle {what}, which could run code",
            where=where,
            fix="save it again with torch.save(model.state_dict(), ...) or safetensors",
        ) from error
    except Exception as error:  # damaged files raise almost anything
        raise CheckpointError(
            f"{path.name} cannot be read as weights ({one_line(error)})", where=where
        ) from error


def _check_stored(path: Path, *, where: str) -> None:
    """Refuse a file that grows when it is read: torch.save stores, never packs."""
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
    if packed or sum(part.file_size for part in parts) > path.stat().st_size:
        raise CheckpointError(
            f"{path.name} is a packed archive, which torch.save does not write",
            where=where,
            fix="save it again with torch.save(model.state_dict(), ...) or safetensors",
        )


def _metadata(path: Path, *, where: str) -> dict[str, str]:
    """What a safetensors file's header says beside its tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path, follow=True)
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error, where) from error


def _damaged(path: Path, error: Exception, where: str) -> CheckpointError:
    return CheckpointError(
        f"{path.name} is damaged or no safetensors file ({one_line(error)})",
        where=where,
        fix="copy or download the file again",
    )


def _read_safetensors(path: Path, *, meta: bool, where: str) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path, follow=True)
        with safe_open(path, framework="pt") as file:
            if not meta:
                return {key: file.get_tensor(key) for key in file.keys()}
            slices = {key: file.get_slice(key) for key in file.keys()}
            return {
                key: torch.empty(
                    part.get_shape(),
                    dtype=_DTYPES.get(part.get_dtype(), torch.bits8),
                    device="meta",
                )
                for key, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error, where) from error


def merged(files: Iterable[Path], *, meta: bool, where: str) -> dict[str, torch.Tensor]:
    """The tensors of all shards in one dictionary."""
    state: dict[str, torch.Tensor] = {}
    for path in files:
        part = read_tensors(path, meta=meta, where=where)
        if not isinstance(part, dict) or not all(
            isinstance(value, torch.Tensor) for value in part.values()
        ):
            raise CheckpointError(
                f"{path.name} holds something else than tensors",
                where=where,
                fix=f"give the file itself: {path.name}",
            )
        check_dense(part, where=where)
        state.update({k: t.to("meta") for k, t in part.items()} if meta else part)
    return state


def check_filled(state: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Refuse empty tensors and files without any."""
    if not state:
        raise CheckpointError("holds no tensors", where=where)
    for name, tensor in state.items():
        if tensor.numel() == 0:
            raise CheckpointError(
                f"tensor {shown(name)} is empty: DeepSpeed ZeRO-3 saves that when it "
                f"does not gather its shards",
                where=where,
                fix="run zero_to_fp32.py on the training folder and give its result",
            )


def check_dense(state: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Refuse tensors of a pickle that are larger than what is stored for them."""
    for name, tensor in state.items():
        plain = tensor.layout == torch.strided and not tensor.is_quantized
        if plain and not tensor.is_meta:
            size = tensor.numel() * tensor.element_size()
            plain = size <= tensor.untyped_storage().nbytes()
        if not plain:
            raise CheckpointError(
                f"tensor {shown(name)} is not stored number by number",
                where=where,
                fix="save contiguous, dense tensors",
            )


def check_floats(
    state: Mapping[str, torch.Tensor],
    *,
    floating: Callable[[str], bool] = lambda _: True,
    where: str,
) -> None:
    """Refuse other numbers where floating-point ones belong: a cast would hide them.

    Parameters
    ----------
    floating
        Whether numbers of 16 bits or more belong into the tensor of this name.

    Raises
    ------
    CheckpointError
        With the tensor's name and dtype.
    """
    for name, tensor in state.items():
        if tensor.dtype not in FLOATS and floating(name):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"tensor {shown(name)} holds {kind}, not floating-point numbers of 16 "
                "bits or more",
                where=where,
                fix="save it as it was trained",
            )


def check_finite(state: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Refuse NaN and infinite numbers, by the tensor's name."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            kind = "NaN" if bool(torch.isnan(tensor).any()) else "infinite numbers"
            raise CheckpointError(
                f"tensor {shown(name)} holds {kind}",
                where=where,
                fix="training diverged or the dtype is too narrow: try --dtype float32",
            )


def check_whole(folder: Path, *, where: str) -> bool:
    """Hold an adapter's files against the checksums that spark-train put beside them.

    Returns
    -------
    bool
        ``False`` for files of an earlier version, which left none.

    Raises
    ------
    CheckpointError
        With the name of a file that is not as it was written.
    """
    place = folder / _TOLD
    if not os.path.lexists(place):
        return True  # of another maker: there is nothing to hold them against
    told = read_json(place, where=where)
    seal, files = intact(read_regular(place)), told.get("files")
    if seal is None and files is None:
        return False
    found: dict[str, str | None]
    if seal and isinstance(files, dict) and all(Path(n).name == n for n in files):
        found = {name: fault(folder / name, fact) for name, fact in files.items()}
    else:
        found = {_TOLD: DAMAGED}
    for name, what in found.items():
        if what is not None:
            raise CheckpointError(
                f"{name} {what}",
                where=where,
                fix="copy the adapter's folder again, or train again",
            )
    return True


def written_down(
    folder: Path, files: Iterable[Path], *, where: str
) -> tuple[str | None, str | None, list[str]]:
    """What spark-train writes down with a checkpoint, ``None`` where it did not.

    Parameters
    ----------
    files
        The checkpoint's weights: the header of an adapter's file says which noise
        belongs to it, also where the files beside it were left behind.

    Returns
    -------
    tuple
        ``weights_sha256`` of the base that an adapter was trained on, the SHA-256 of
        the ``frozen_noise.safetensors`` that belongs to the checkpoint, and a note
        where its files carry no checksums.

    Raises
    ------
    CheckpointError
        If a file is not as it was written.
    """
    noise: Any = None
    checked = check_whole(folder, where=where)
    if (folder / _TOLD).exists():
        noise = read_json(folder / _TOLD, where=where).get("noise_sha256")
        if noise is not None and not isinstance(noise, str):
            raise CheckpointError(
                "trained_on.json holds a noise_sha256 that is no hash", where=where
            )
    for path in files:
        if noise is None and path.suffix == ".safetensors":
            noise = _metadata(path, where=where).get("noise_sha256")
    notes = [] if checked else ["not checked: its files carry no checksums"]
    return _trained_on(folder, where=where), noise, notes


def _trained_on(folder: Path, *, where: str) -> str | None:
    """The hash of the base."""
    for name, keys in (
        (_TOLD, ("base_sha256",)),
        ("relearn.json", ("checkpoint", "base_sha256")),
    ):
        if (folder / name).exists():
            found: Any = read_json(folder / name, where=where)
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            if isinstance(found, str):
                return found
    return None


def frozen_noise(
    folder: Path,
    shape: Iterable[int],
    *,
    sha256: str | None = None,
    meta: bool = False,
    where: str,
) -> torch.Tensor | None:
    """The noise that belongs to a checkpoint; ``None`` where there is none.

    Parameters
    ----------
    shape
        Of the input embeddings, ``(V, H)``.
    sha256
        Of the file, where the checkpoint's maker wrote it down: it must be there.
    meta
        Check the header only.

    Raises
    ------
    CheckpointError
        If it is missing, another file, of another shape, or not finite.
    """
    path = folder / NOISE
    if not os.path.lexists(path):
        if sha256 is None:
            return None
        raise CheckpointError(
            f"{NOISE} is missing: it was trained with noise on its input embeddings",
            where=where,
            fix="copy the file beside the adapter",
        )
    check_inside(path, where=where)
    state = read_tensors(path, meta=meta, where=where)
    if set(state) != {"noise"}:
        raise CheckpointError(f"{NOISE} holds more than 'noise'", where=where)
    noise: torch.Tensor = state["noise"]
    check_floats(state, where=where)
    if list(noise.shape) != list(shape):
        raise CheckpointError(
            f"{NOISE} has shape {list(noise.shape)}, the embeddings {list(shape)}",
            where=where,
            fix="give the base it was drawn for by --base",
        )
    if not meta:
        if not bool(torch.isfinite(noise).all()):
            raise CheckpointError(
                f"{NOISE} holds NaN or infinite numbers",
                where=where,
                fix="copy the file again",
            )
        if sha256 is not None and sha256_file(path) != sha256:
            raise CheckpointError(
                f"{NOISE} is not the file that it was trained with",
                where=where,
                fix="copy the one from its run",
            )
    return noise


def content_sha256(files: Iterable[Path], config: Mapping[str, Any]) -> str:
    """SHA-256 over sorted (file name, SHA-256) of weights, and the configuration.

    What two savings of the same configuration differ in (the library's version, the
    path it was loaded from) is left out.
    """
    kept = {k: v for k, v in config.items() if k not in _VOLATILE}
    named = sorted([path.name, sha256_file(path)] for path in files)
    # Some configurations hold infinity, which canonical JSON has no word for.
    return sha256_json({"config": json.dumps(kept, sort_keys=True), "files": named})
