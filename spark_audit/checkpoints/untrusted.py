"""What somebody else saved: found or fetched, and read without harm.

Local input is opened without a network and without a question: libraries ask the hub
for what a local file names (a base, an adapter's second model, a tokenizer's parent),
and transformers asks on stdin whether to run code that it finds. What would run code,
lead out of its folder, block or fill the memory is refused.
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
CONFIGURATIONS = ("config.json", "adapter_config.json")
# What trainers save beside weights and what is none.
NO_WEIGHTS = (
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

HUB = "hf:"
"""What a model or data set on the hub is written with; anything else is a path."""
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(\w[\w./-]*))?")
WORDS_BYTES = 1 << 26
"""The largest file of a tokenizer that is read; the largest real ones are 34 MB."""
# What transformers and PEFT read whole, besides what is read here.
_READ_WHOLE = re.compile(
    r"(adapter_|generation_)?config\.json|(tokenizer|vocab|merges|spiece|chat_template"
    r"|sentencepiece|added_tokens|special_tokens).*|.*\.(index\.json|jinja)"
)
# Where transformers looks for more files than those of the folder itself.
_INNER_FOLDERS = ("additional_chat_templates", "custom_generate")
# What a folder on the hub is fetched for: the files that one on disk would be read for.
_FETCHED_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")
_FETCHED_PICKLES = ("pytorch_model*.bin", "adapter_model.bin")
_MAX_LISTED = 3

# Whether the hub was switched off before :func:`quiet` did it, for each that is open.
_was_offline: list[bool] = []


def locate(source: str, *, revision: str | None = None, code: bool = False) -> Path:
    """Return the local path of what was given; ``hf:ORG/NAME`` is fetched first.

    Parameters
    ----------
    revision
        Branch, tag or commit of a model on the hub, where ``hf:ORG/NAME@REVISION``
        does not say its own.
    code
        Whether scripts are fetched, too.

    Raises
    ------
    InputError
        If nothing is there.
    CheckpointError
        If it holds a FIFO, a device or a file that is a link out of
        it, or the hub cannot be reached.
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
    """Return the path of what was given, with ``~`` as a shell reads it."""
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

    # Not every program takes addresses: it is said where they belong.
    remedy = wrong_paths.instead(source, "check the path")
    if "://" in source:
        remedy = (
            f"a model on the hub is written {HUB}ORG/NAME; audits read a server: "
            "--ckpt http://HOST:PORT/v1 --model NAME"
        )
    if _HUB_ID.fullmatch(source) and not source.endswith(WEIGHT_SUFFIXES):
        remedy += f" (a model on the hub is written {HUB}{source})"
    return InputError("there is no such file or folder", where=source, fix=remedy)


def _several_models(source: str) -> str:
    """Return in which way a text that is no path names several models; empty: none."""
    if source.endswith("]") and "[" in source and "://" not in source:
        return "a list"

    # Without brackets it is a list if each of its parts is there.
    paths = [path.strip() for path in source.split(",")]
    if len(paths) > 1 and all(path and expanded(path).exists() for path in paths):
        return "a list"
    if glob.has_magic(source) and glob.glob(os.path.expanduser(source)):
        return "a pattern"
    return ""


def check_folder(path: Path) -> None:
    """Refuse what would block whoever opens it, lead elsewhere or fill the memory.

    Other libraries open files of a checkpoint by names that only they know.

    Parameters
    ----------
    path
        The checkpoint's folder, or its only file, which may be a link.

    Raises
    ------
    CheckpointError
        With the file that would do so.
    """
    entries = [path]
    for folder in (path, *(path / name for name in _INNER_FOLDERS)):
        if folder.is_dir():
            entries += folder.iterdir()

    for entry in entries:
        # Folders may be links: nothing in them is opened, but for the inner ones.
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
    """Return the folder in the hub's cache that a model was fetched into.

    Raises
    ------
    CheckpointError
        If it is no name of a model, or cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    named = _HUB_ID.fullmatch(source.removeprefix(HUB))
    if named is None:
        remedy = f"write {HUB}ORG/NAME[@REVISION]"
        raise CheckpointError("is no model on the hub", fix=remedy)

    name = named[1]
    # A revision in the name is of this model; the option is of all.
    own_revision = named[2] or revision

    patterns = [*_FETCHED_FILES]
    if code:
        patterns.append("*.py")

    remedy = "check the name and the network, or give a local folder"
    with foreign("cannot be fetched from the hub", fix=remedy), online():
        folder = Path(
            snapshot_download(name, revision=own_revision, allow_patterns=patterns)
        )
        # Pickles only where there is nothing else: they are as large again.
        if not any(folder.glob("*.safetensors")):
            snapshot_download(
                name, revision=own_revision, allow_patterns=[*_FETCHED_PICKLES]
            )
    return folder


def weights_in(folder: Path, suffixes: Sequence[str] = WEIGHT_SUFFIXES) -> list[Path]:
    """Return files of weights, without what trainers save beside them."""
    return [
        file
        for file in folder.iterdir()
        if file.suffix in suffixes and not file.name.startswith(NO_WEIGHTS)
    ]


def printable(source: str) -> str:
    """Return what was given, without folders above it; the hub's names stay whole."""
    path = Path(source).expanduser()
    if not path.exists():
        return source

    # "." and ".." have no name of their own.
    return path.name if path.name not in ("", "..") else path.resolve().name


@contextmanager
def readable(prefix: str = "") -> Iterator[None]:
    """Raise what keeps a file or folder from being read as a ``CheckpointError``.

    Parameters
    ----------
    prefix
        In front of the error's words.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or errors.one_line(error)
        raise CheckpointError(f"{prefix}cannot be read ({reason})") from error


def read_json(path: Path, *, most: int = files.SETTINGS_BYTES) -> dict[str, object]:
    """Read a JSON object of at most so many bytes that lies inside its folder.

    Raises
    ------
    CheckpointError
        If it cannot be read, or is none.
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
    """Refuse what leads out of a folder, by default its own (the hub's cache apart)."""
    if not files.lies_inside(path, within=within):
        remedy = "copy the file into the folder, or give its folder"
        raise CheckpointError(f"{shown(path.name)} leads out of the folder", fix=remedy)


def refuse_code(config: Mapping[str, object], folder: Path) -> None:
    """Refuse what would run code of the checkpoint (no ``--trust-remote-code``)."""
    remedy = "read the code, then add --trust-remote-code"
    for settings in objects(config):
        if settings.get("auto_map"):
            raise CheckpointError("brings its own code (auto_map)", fix=remedy)

    # The folder's name alone makes transformers import it.
    scripts = sorted(folder.glob("custom_generate/*.py"))
    if scripts:
        raise CheckpointError(f"brings its own code ({scripts[0].name})", fix=remedy)


def notes_on_code(folder: Path) -> list[str]:
    """Say which scripts lie beside weights: nothing imports them, nobody ran them."""
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
    """Read a model's config.json, which sends the loader to no code and no other file.

    Parameters
    ----------
    trusted
        Whether code that comes with it may run.

    Raises
    ------
    CheckpointError
        With what it would send the loader to.
    """
    config = read_json(folder / "config.json")
    if not trusted:
        refuse_code(config, folder)

    for key, value in walk(config):
        remedy = f"remove {key} from config.json"
        # An implementation "ORG/NAME" is fetched from the hub, and runs.
        names_code = key.endswith("attn_implementation")
        names_code = names_code or key == "experts_implementation"
        if names_code and "/" in json.dumps(value):
            problem = f"config.json takes its attention code from the hub ({key})"
            raise CheckpointError(problem, fix=remedy)
        if key == "transformers_weights" and value:
            raise CheckpointError(f"config.json names a file ({key})", fix=remedy)
    return config


def objects(value: object) -> Iterator[dict[str, object]]:
    """Yield every object of nested JSON; depth costs no recursion."""
    # A list of what is still to be looked at, in the place of recursion.
    waiting: list[object] = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, dict):
            yield inner
            waiting += inner.values()
        elif isinstance(inner, list):
            waiting += inner


def walk(value: object) -> Iterator[tuple[str, object]]:
    """Yield every key of nested JSON with its value."""
    for inner in objects(value):
        for key, inner_value in inner.items():
            yield str(key), inner_value


@contextmanager
def online() -> Iterator[None]:
    """Let libraries use the network as they did outside of :func:`quiet`.

    It is for what the user asked from the hub.
    """
    import huggingface_hub.constants

    hub = huggingface_hub.constants
    is_offline = hub.HF_HUB_OFFLINE
    # The outermost `quiet` has met the hub as the user set it.
    if _was_offline:
        hub.HF_HUB_OFFLINE = _was_offline[0]

    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = is_offline


@contextmanager
def quiet() -> Iterator[None]:
    """Keep other libraries' progress bars and warnings off our stderr, and off the net.

    No request goes to the hub, and code that nobody trusted is an error, no question.
    What libraries warn of while loading (missing, unexpected, mismatched tensors) is
    checked here and raised as an error.
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
    # PEFT imports what it finds installed, and that may log of kernels it lacks.
    logging.disable(logging.ERROR)
    # The hub's bars, too.
    hf_logging.disable_progress_bar()
    hub.HF_HUB_OFFLINE = True
    # With no seconds to answer, the question whether code may run is an error.
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
    """Say that memory has ended, where that is what another library's error means.

    Raises
    ------
    IncompleteError
        If memory has ended.
    """
    if out_of_memory(error):
        remedy = "try --dtype bfloat16, --device-map auto or a larger device"
        raise errors.IncompleteError("does not fit into memory", fix=remedy) from error


@contextmanager
def foreign(problem: str, *, fix: str | None = None) -> Iterator[None]:
    """Raise errors of other libraries, which share no class, as a ``CheckpointError``.

    Parameters
    ----------
    problem
        In front of the library's own words.
    fix
        What the user can do.

    Raises
    ------
    IncompleteError
        If memory has ended.
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
