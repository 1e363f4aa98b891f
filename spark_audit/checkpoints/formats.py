"""What a path is, by its content, and how it is put together, by its headers.

A model's folder, PEFT's, a weights file, GGUF. Weights are read later.
"""

from __future__ import annotations

import contextlib
import io
import math
import mmap
import os
import re
import shlex
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import torch

from spark_audit.checkpoints.adapters import PREFIX
from spark_audit.checkpoints.checkpoint import Checkpoint, empty, read_architecture
from spark_audit.checkpoints.loaded import SIZES
from spark_audit.checkpoints.specs import (
    Loading,
    choose_stage,
    exists,
    is_series,
    read_run,
    split_stage,
)
from spark_audit.checkpoints.tokenizer import vocabulary_of
from spark_audit.checkpoints.untrusted import (
    CONFIGURATIONS,
    HUB,
    WEIGHT_SUFFIXES,
    WORDS_BYTES,
    check_inside,
    foreign,
    locate,
    printable,
    read_config,
    read_json,
    readable,
    refuse_code,
)
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
    written_down,
)
from spark_audit.errors import CheckpointError, at, shown
from spark_audit.files import check_regular
from spark_audit.terminal.suggestions import instead


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
            name = printable(text) + (f"@{number}" if number else "")
            notes += made.notes
            return replace(made, source=name, where=source, notes=notes)
        if number is not None:
            what = "is one checkpoint, not a series"
            raise CheckpointError(f"{what}: @{number} does not apply")
        if place != path:
            check_inside(place)
        made = read(place, loading)
        # The file of an adapter's folder is what the folder is.
        trained_on, noise_sha256 = written_down(made.folder, made.files)
    given: Any = {"loading": loading, "base": loading.base or made.base}
    given |= {"source": printable(source), "where": source, "format": name}
    given["host"] = made.host and replace(made.host, **given)
    return replace(made, **given, trained_on=trained_on, noise_sha256=noise_sha256)


def _no_checkpoint(path: Path, formats: list[str]) -> CheckpointError:
    if (run := read_run(path)) and not formats:
        (start, *_) = run.get("starts") or [None]
        words = start.get("command") if isinstance(start, dict) else None
        again = shlex.join(map(str, words)) if isinstance(words, list) else ""
        what = "is a run of spark-train that has not finished a stage"
        fix = f"the same command goes on with it: {shown(again, 1000)}"
        return CheckpointError(what, fix=fix)
    what = f"reads as {' and as '.join(formats)}" if formats else "is no checkpoint"
    children = sorted(path.iterdir()) if path.is_dir() else []
    inside = [one.name for one in children if one.is_dir() and formats_of(one)]
    if inside:
        what += f" (these folders in it are: {', '.join(inside[:5])})"
    otherwise = "give a folder with config.json or adapter_config.json, or weights"
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
        what = "holds full weights and an adapter: which of them is meant?"
        raise CheckpointError(what, fix="put the adapter into a folder of its own")
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
            what = f"'s base {shown(named)} is not here" if named else " names no base"
            fix = f"give --base MODEL (a folder, or {HUB}ORG/NAME)"
            raise CheckpointError(f"the adapter{what}", fix=fix)
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
                what = f"{name} holds weights of the language model ({shown(key)})"
                fix = "merge adapter and weights with the tool that trained them"
                raise CheckpointError(what, fix=fix)
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


def _read(file: Path) -> tuple[State, State, list[str]]:
    """Full weights by the names of the bare module, LoRA's by PEFT's, and notes.

    The names of wrappers and adapters are stripped.
    """
    content, notes = read_tensors(file), list[str]()
    # A pickle can hold itself: wrappers are a few deep, never more.
    for _ in range(_WRAPPERS):
        held = content if isinstance(content, dict) else {}
        inside = [key for key in _CONTAINERS if isinstance(held.get(key), dict)]
        if len(inside) > 1:
            what = f"holds several models: {', '.join(inside)}"
            raise CheckpointError(what, fix=_ALONE)
        for key in inside:
            notes.append(f"taken from {key!r} in the file")
            content = content[key]
    # An empty one is none.
    state = only_tensors(content or None, fix="save model.state_dict() alone")
    full, lora, adapters = State(), State(), set[str]()
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
        fix = "give --lora-alpha, or put adapter_config.json next to the file"
        raise CheckpointError("holds LoRA weights without their alpha", fix=fix)
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


# --- a GGUF file ----------------------------------------------------------------------

_EXACT = {"F32", "F16", "BF16", "F64"}
"""Types of tensors that round nothing that was saved so."""
_SAME = (*SIZES, "rope_theta", "rms_norm_eps", "layer_norm_epsilon")
KEYS, TENSORS, ELEMENTS = 4096, 1 << 15, 3 << 19
"""The most that a header may list; real ones have 60 keys, 2,000 tensors, and 1.3
million elements of arrays (tokens, their scores and types, merges)."""
_HEADER_BYTES = 1 << 26
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Number of a type in the file -> bytes of a value."""
_STRING, _ARRAY = 8, 9
_UNREADABLE = "is no GGUF file that can be read"
_BASE = "give the model that it was converted from by --base"


def gguf_file(file: Path, loading: Loading) -> Checkpoint:
    """Weights as the file's makers rounded them, read as plain numbers.

    Raises
    ------
    CheckpointError
        If the package gguf is missing, the file cannot be read, its numbers or tokens
        are not those of the base's configuration and tokenizer, or it is in parts.
    """
    check_regular(file, follow=True)
    config, folder, note = config_of(file, loading)
    install = "where spark-audit lies: pip install '.[gguf]'"
    with foreign("a GGUF file needs the package gguf", fix=install):
        import gguf
    with foreign(_UNREADABLE):
        with open(file, "rb") as opened:
            size = min(file.stat().st_size, _HEADER_BYTES)
            with mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as data:
                _check_header(data)
        reader: Any = gguf.GGUFReader(str(file))
        counts = [int(tensor.n_elements) for tensor in reader.tensors]
        if not all(counts):
            raise ValueError("a tensor is empty")
        content = _understood(file)
    if "split.count" in reader.fields:
        fix = "join its parts (llama-gguf-split --merge) and give the one file"
        raise CheckpointError("is one part of a GGUF file", fix=fix)
    for name in _SAME:
        ours: Any = config.get(name)
        theirs = content["config"].get(name)
        both = isinstance(ours, int | float) and isinstance(theirs, int | float)
        if both and not math.isclose(ours, theirs, rel_tol=1e-5):
            what = f"says {name} {theirs:g}, the configuration {ours:g}"
            raise CheckpointError(what, fix=_BASE)
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    notes = [note, f"GGUF tensors, dequantised as they are: {listed}"]
    if rounded := ", ".join(sorted({*kinds} - _EXACT)):
        notes.append(f"the conversion lost digits ({rounded}): it is audited as it is")
    words = folder if loading.tokenizer is None else locate(loading.tokenizer)
    words, tokens = words / "tokenizer.json", content["tokenizer"].get("tokens")
    if words.exists() and tokens:
        known = vocabulary_of(read_json(words, most=WORDS_BYTES))
        # Rows that pad the vocabulary are called otherwise by every converter.
        other = sum(known.get(token, i) != i for i, token in enumerate(tokens))
        if other or max(known.values(), default=0) >= len(tokens):
            what = f"the tokenizer ({len(known)} tokens) is not the file's: of its"
            what += f" {len(tokens)} tokens {other} have other ids"
            raise CheckpointError(what, fix=_BASE)
    else:
        notes.append("its tokens could not be compared with the tokenizer's")

    def read() -> State:
        model = empty(*read_architecture(folder, config, loading.trust_remote_code))
        # Rounded to 1.6 bits, a file holds 20 times its size; output may be tied.
        own = sum(one.numel() for one in model.parameters())
        if sum(counts) > 2 * own:
            what = f"holds {sum(counts):,} numbers, the base's model {own:,}"
            raise CheckpointError(what)
        with foreign(_UNREADABLE):
            made = _understood(file, return_tensors=True, model_to_load=model)
        state = {k: torch.as_tensor(one) for k, one in made["tensors"].items()}
        check_filled(state)
        return state

    return Checkpoint(
        config, (file,), read, folder, folder=file.parent, notes=tuple(notes)
    )


def _understood(file: Path, **options: Any) -> dict[str, Any]:
    """What transformers makes of a file whose header is sound."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    load: Any = theirs.load_gguf_checkpoint
    # Its progress bar asks nobody whether bars are wanted.
    with contextlib.redirect_stderr(io.StringIO()):
        return dict(load(str(file), **options))


def _check_header(data: mmap.mmap) -> None:
    """Walk the header of a GGUF file before a library reads it.

    The library counts on it: one array of 2 ** 60 elements never ends, and fills the
    memory. Layout: github.com/ggml-org/ggml, docs/gguf.md.

    Raises
    ------
    ValueError, OverflowError, struct.error
        With a count or length that the file cannot hold: there is nothing to read, or
        to seek.
    """
    left = ELEMENTS
    if data.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    order = "<" if struct.unpack_from("<I", data, 4)[0] & 0xFFFF else ">"

    def number(code: str, most: int = 1 << 64) -> int:
        (found,) = struct.unpack(order + code, data.read(struct.calcsize(code)))
        if found > most:
            what = "keys, tensors or elements: more than"
            raise ValueError(f"{found} {what} {most} are not read")
        return int(found)

    def value(kind: int, count: int, *, inner: bool) -> None:
        nonlocal left
        if kind == _STRING:
            for _ in range(count):
                data.seek(number("Q"), os.SEEK_CUR)
        elif kind in _SCALARS:
            data.seek(_SCALARS[kind] * count, os.SEEK_CUR)
        elif kind == _ARRAY and not inner:
            kind, count = number("I"), number("Q", left)
            left -= count
            value(kind, count, inner=True)
        else:
            raise ValueError(f"values of type {kind} are unknown, or nested")

    if number("I") not in (2, 3):
        raise ValueError("only versions 2 and 3 are known")
    number("Q", TENSORS)
    for _ in range(number("Q", KEYS)):
        data.seek(number("Q"), os.SEEK_CUR)
        value(number("I"), 1, inner=False)
