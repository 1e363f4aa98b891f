"""Find, fetch and read foreign checkpoints without harm.

Local input is opened without a network and without questions. Libraries would ask the
hub for things that a local file names (a base, an adapter's second model, a tokenizer's
parent), and transformers would ask on stdin whether to run code. Input that would run
code, lead out of its folder, block, or fill the memory is refused.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from spark_audit import errors, files, wrong_paths
from spark_audit.errors import CheckpointError, InputError, out_of_memory, shown

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""Ends of the names of weights files; GGUF is asked for by itself."""
CONFIGURATIONS = ("config.json", "adapter_config.json")
"""The configuration of a model, and that of an adapter."""
NO_WEIGHT_FILES = (
    "optimizer",
    "scheduler",
    "training_args",
    "rng_state",
    "frozen_noise",
    "state.safetensors",
    "sampler",
    "scaler",
    "random_states",
    "dl_state_dict",
    "custom_checkpoint",
    "value_head",
)
"""Beginnings of names of files that trainers save beside weights and are none."""

HUB = "hf:"
"""Prefix of a model or data set on the hub; anything else is a path."""
# ORG/NAME, and @REVISION.
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(\w[\w./-]*))?")
# A server's address without http://: HOST:PORT, or HOST.DOMAIN/.../v1.
_SERVER = re.compile(r"[\w.-]+:\d{1,5}(/[\w./-]*)?|([\w-]+\.)+[\w-]+(/[\w.-]+)*/v1/?")
WORDS_BYTES = 1 << 26
"""Bytes of the largest tokenizer file that is read; real ones have at most 34 MB."""
# Files that transformers and PEFT read whole, besides those that are read here.
_READ_WHOLE = re.compile(
    r"(adapter_|generation_)?config\.json|(tokenizer|vocab|merges|spiece|chat_template"
    r"|sentencepiece|added_tokens|special_tokens).*|.*\.(index\.json|jinja)"
)
# Folders in which transformers looks for further files.
_INNER_FOLDERS = ("additional_chat_templates", "custom_generate")
# Files that are fetched from the hub: those that would be read of a local folder.
_FETCHED_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")
_FETCHED_PICKLES = ("pytorch_model*.bin", "adapter_model.bin")
_MAX_LISTED = 3
"""Most names of scripts in a note."""

# Whether the hub was already off before :func:`quiet`, for each open block.
_was_offline: list[bool] = []


def locate(source: str, *, revision: str | None = None, code: bool = False) -> Path:
    """Return the local path of a checkpoint; ``hf:ORG/NAME`` is fetched first.

    Parameters
    ----------
    revision
        Branch, tag or commit of a model on the hub, unless ``hf:ORG/NAME@REVISION`` has
        its own.
    code
        Whether to fetch scripts, too.

    Raises
    ------
    InputError
        If the path does not exist.
    CheckpointError
        If it contains a FIFO, a device or a link out of it, or if the hub cannot be
        reached.
    """
    if not source.strip():
        raise InputError("no path was given", where="checkpoint", fix="give one")
    if source.startswith(HUB):
        with errors.at(source):
            return _fetched(source, revision=revision, code=code)

    path = expanded(source)
    with errors.at(source), readable():
        if path.exists():
            check_folder(path)
            return path
    raise missing(source)


def expanded(source: str) -> Path:
    """Return a path with ``~`` expanded as in a shell."""
    return Path(os.path.expanduser(source))


def missing(source: str) -> InputError:
    """Return the error about a checkpoint whose path does not exist."""
    several = _several_models(source)
    if several:
        problem = f"is {several}, and one model is asked for here"
        return InputError(problem, where=source, fix="give the path of one model")

    name, _, named_path = source.partition("=")
    if named_path and expanded(named_path).exists():
        problem = f"has the name {name!r} in front, and a path alone is asked for here"
        return InputError(problem, where=source, fix=f"give {named_path}")

    # Not every program accepts addresses, so the advice names one that does.
    remedy = wrong_paths.instead(source, "check the path")
    if "://" in source:
        remedy = (
            f"a model on the hub is written {HUB}ORG/NAME; audits read a server: "
            "--ckpt http://HOST:PORT/v1 --model NAME"
        )
    elif _SERVER.fullmatch(source):
        # Hosted ones seldom name a port.
        scheme = "http" if ":" in source else "https"
        remedy = f"write {scheme}://{source} if it is a server's address"
    elif _HUB_ID.fullmatch(source) and not source.endswith(WEIGHT_SUFFIXES):
        remedy += f" (a model on the hub is written {HUB}{source})"
    return InputError("there is no such file or folder", where=source, fix=remedy)


def _several_models(source: str) -> str:
    """Return how a text that is not a path names several models; else empty."""
    if source.endswith("]") and "[" in source and "://" not in source:
        return "a list"

    # Without brackets it is a list if each of its parts exists.
    paths = [path.strip() for path in source.split(",")]
    if len(paths) > 1 and all(path and expanded(path).exists() for path in paths):
        return "a list"
    if glob.has_magic(source) and glob.glob(os.path.expanduser(source)):
        return "a pattern"
    return ""


def check_folder(path: Path) -> None:
    """Refuse entries that would block a reader, lead elsewhere, or fill the memory.

    Other libraries open files of a checkpoint under names that only they know.

    Parameters
    ----------
    path
        The checkpoint's folder, or its only file, which may be a link.

    Raises
    ------
    CheckpointError
        Names the entry.
    """
    entries = [path]
    for folder in (path, *(path / name for name in _INNER_FOLDERS)):
        if folder.is_dir():
            entries += folder.iterdir()

    for entry in entries:
        # Folders may be links, because nothing in them is opened, except in the inner
        # ones.
        is_opened = entry.name in _INNER_FOLDERS or not entry.is_dir()
        if entry != path and is_opened and os.path.lexists(entry):
            check_inside(entry, within=path)
        if not entry.exists():
            continue

        subject = "is" if entry == path else f"holds {shown(entry.name)}, which is"
        if not (entry.is_file() or entry.is_dir()):
            raise CheckpointError(f"{subject} neither file nor folder")

        is_large = entry.stat().st_size > WORDS_BYTES
        if is_large and _READ_WHOLE.fullmatch(entry.name):
            problem = f"{subject} larger than {WORDS_BYTES / 1e6:.0f} MB"
            raise CheckpointError(problem)


def _fetched(source: str, *, revision: str | None, code: bool) -> Path:
    """Return the folder in the hub's cache with a fetched model.

    Raises
    ------
    CheckpointError
        If the name is not that of a model, or if it cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    named = _HUB_ID.fullmatch(source.removeprefix(HUB))
    if named is None:
        remedy = f"write {HUB}ORG/NAME[@REVISION]"
        raise CheckpointError("is no model on the hub", fix=remedy)

    name = named[1]
    # A revision in the name applies to this model, and the option to all models.
    own_revision = named[2] or revision

    patterns = [*_FETCHED_FILES]
    if code:
        patterns.append("*.py")

    remedy = "check the name and the network, or give a local folder"
    with foreign("cannot be fetched from the hub", fix=remedy), online():
        folder = Path(
            snapshot_download(name, revision=own_revision, allow_patterns=patterns)
        )
        # Pickles are fetched only if there is nothing else, because they are equally
        # large.
        if not any(folder.glob("*.safetensors")):
            snapshot_download(
                name, revision=own_revision, allow_patterns=[*_FETCHED_PICKLES]
            )
    return folder


def weights_in(folder: Path, suffixes: Sequence[str] = WEIGHT_SUFFIXES) -> list[Path]:
    """Return weight files, without other files that trainers save beside them."""
    return [
        file
        for file in folder.iterdir()
        if file.suffix in suffixes and not file.name.startswith(NO_WEIGHT_FILES)
    ]


def printable(source: str) -> str:
    """Return a path without parent folders; names on the hub stay whole."""
    path = Path(os.path.expanduser(source))
    if not path.exists():
        return source

    # "." and ".." have no name of their own.
    return path.name if path.name not in ("", "..") else path.resolve().name


@contextmanager
def readable(prefix: str = "") -> Iterator[None]:
    """Raise a ``CheckpointError`` if a file or a folder cannot be read.

    Parameters
    ----------
    prefix
        Text in front of the error.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or errors.one_line(error)
        raise CheckpointError(f"{prefix}cannot be read ({reason})") from error


def read_json(path: Path, *, most: int = files.SETTINGS_BYTES) -> dict[str, object]:
    """Read a JSON object up to a size, from a file inside its folder.

    Raises
    ------
    CheckpointError
        If it cannot be read, or is not an object.
    """
    check_inside(path)
    try:
        with readable(f"{path.name} "):
            raw = files.read_regular(path, most=most)
        content = files.parse_json(raw, place=path.name, finite=False)
    except errors.InputError as error:
        problem = f"{path.name} cannot be read: it {error.what}"
        raise CheckpointError(problem, fix=error.fix) from error

    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name} is not a JSON object")
    return content


def check_inside(path: Path, *, within: Path | None = None) -> None:
    """Refuse a path that leads out of a folder, by default its own."""
    if not files.lies_inside(path, within=within):
        remedy = "copy the file into the folder, or give its folder"
        raise CheckpointError(f"{shown(path.name)} leads out of the folder", fix=remedy)


def refuse_code(config: Mapping[str, object], folder: Path) -> None:
    """Refuse a configuration or folder that would run code of the checkpoint."""
    remedy = "read the code, then add --trust-remote-code"
    for settings in objects_in(config):
        if settings.get("auto_map"):
            raise CheckpointError("brings its own code (auto_map)", fix=remedy)

    # The name of this folder alone makes transformers import it.
    scripts = sorted(folder.glob("custom_generate/*.py"))
    if scripts:
        raise CheckpointError(f"brings its own code ({scripts[0].name})", fix=remedy)


def notes_on_code(folder: Path) -> list[str]:
    """Return notes on scripts beside weights, which are never imported."""
    names = sorted(shown(script.name) for script in folder.glob("*.py"))
    if not names:
        return []

    listed = ", ".join(names[:_MAX_LISTED])
    if len(names) > _MAX_LISTED:
        listed += " ..."
    return [
        f"code beside the weights, which no configuration names: not run ({listed})"
    ]


def read_config(folder: Path, *, trusted: bool) -> dict[str, object]:
    """Read a model's config.json; refuse one that leads to code or to other files.

    Parameters
    ----------
    trusted
        Whether code of the checkpoint may run.

    Raises
    ------
    CheckpointError
        Names the code or the file.
    """
    config = read_json(folder / "config.json")
    if not trusted:
        refuse_code(config, folder)

    for key, value in keys_and_values(config):
        remedy = f"remove {key} from config.json"
        # An implementation "ORG/NAME" would be fetched from the hub and run.
        names_code = key.endswith("attn_implementation")
        names_code = names_code or key == "experts_implementation"
        if names_code and "/" in json.dumps(value):
            problem = f"config.json takes its attention code from the hub ({key})"
            raise CheckpointError(problem, fix=remedy)
        if key == "transformers_weights" and value:
            raise CheckpointError(f"config.json names a file ({key})", fix=remedy)
    return config


def objects_in(value: object) -> Iterator[dict[str, object]]:
    """Yield every object in nested JSON, without recursion."""
    # A list of remaining values replaces recursion.
    waiting: list[object] = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, dict):
            yield inner
            waiting += inner.values()
        elif isinstance(inner, list):
            waiting += inner


def keys_and_values(value: object) -> Iterator[tuple[str, object]]:
    """Yield every key in nested JSON, with its value."""
    for inner in objects_in(value):
        for key, inner_value in inner.items():
            yield str(key), inner_value


@contextmanager
def online() -> Iterator[None]:
    """Allow libraries the network inside the block, as outside of :func:`quiet`.

    It is used for what the user requested from the hub.
    """
    import huggingface_hub.constants

    hub = huggingface_hub.constants
    is_offline = hub.HF_HUB_OFFLINE
    # The outermost `quiet` recorded the user's setting.
    if _was_offline:
        hub.HF_HUB_OFFLINE = _was_offline[0]

    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = is_offline


@contextmanager
def quiet() -> Iterator[None]:
    """Silence other libraries, and keep them off the network, inside the block.

    No request goes to the hub, and untrusted code raises an error instead of a
    question. Problems about which libraries only warn (missing, unexpected or
    mismatched tensors) are checked here and raised as errors.
    """
    import transformers.dynamic_module_utils
    import transformers.utils.logging
    from huggingface_hub import constants as hub

    dynamic = transformers.dynamic_module_utils
    hf_logging = transformers.utils.logging
    has_bars = hf_logging.is_progress_bar_enabled()
    is_offline = hub.HF_HUB_OFFLINE
    question_seconds = dynamic.TIME_OUT_REMOTE_CODE
    disabled_level = logging.root.manager.disable

    _was_offline.append(is_offline)
    # PEFT imports installed packages, which may log about missing kernels.
    logging.disable(logging.ERROR)
    # Also the progress bars of the hub.
    hf_logging.disable_progress_bar()
    hub.HF_HUB_OFFLINE = True
    # With no time to answer, the question about code becomes an error.
    dynamic.TIME_OUT_REMOTE_CODE = 0

    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        _was_offline.pop()
        hub.HF_HUB_OFFLINE = is_offline
        dynamic.TIME_OUT_REMOTE_CODE = question_seconds
        logging.disable(disabled_level)
        if has_bars:
            hf_logging.enable_progress_bar()


def refuse_end_of_memory(error: BaseException) -> None:
    """Raise an error about memory if another library's error means that it ran out.

    Raises
    ------
    IncompleteError
        If memory ran out.
    """
    if out_of_memory(error):
        remedy = "try --dtype bfloat16, --device-map auto or a larger device"
        raise errors.IncompleteError("does not fit into memory", fix=remedy) from error


@contextmanager
def foreign(problem: str, *, fix: str | None = None) -> Iterator[None]:
    """Turn errors of other libraries, which share no class, into a ``CheckpointError``.

    Parameters
    ----------
    problem
        Text in front of the library's own message.
    fix
        Advice to the user.

    Raises
    ------
    IncompleteError
        If memory ran out.
    """
    try:
        yield
    except errors.SparkError:
        raise
    except Exception as error:
        refuse_end_of_memory(error)
        if fix is None and isinstance(error, ImportError):
            fix = "install the package that it names"
        problem = f"{problem} ({errors.one_line(error)})"
        raise CheckpointError(problem, fix=fix) from error
