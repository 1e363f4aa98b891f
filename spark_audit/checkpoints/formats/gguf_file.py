"""A GGUF file, dequantised as it is."""

from __future__ import annotations

import contextlib
import io
import math
import mmap
import os
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints import specs, untrusted, weight_files
from spark_audit.checkpoints.architecture import empty, read_architecture
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.formats.gguf_lora import gguf_lora, is_gguf_lora
from spark_audit.checkpoints.loaded import SIZE_FIELDS
from spark_audit.checkpoints.tokenizer import vocabulary_of
from spark_audit.checkpoints.weight_files import State
from spark_audit.errors import CheckpointError
from spark_audit.files import check_regular

_EXACT = {"F32", "F16", "BF16", "F64"}
"""Types of tensors that round nothing that was saved so."""
_FIELDS_OF_BASE = (*SIZE_FIELDS, "rope_theta", "rms_norm_eps", "layer_norm_epsilon")
_ROWS_BY_HEADS = ("llama", "mistral", "mixtral")
"""Kinds whose converter changes the order of the rows of query and key."""
KEYS, TENSORS, ELEMENTS = 4096, 1 << 15, 3 << 19
"""The most that a header may list; real ones have 60 keys, 2,000 tensors, and 1.3
million elements of arrays (tokens, their scores and types, merges)."""
_HEADER_BYTES = 1 << 26
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Number of a type in the file -> bytes of a value."""
_STRING, _ARRAY = 8, 9
_UNREADABLE = "is no GGUF file that can be read"
_GIVE_BASE = "give the model that it was converted from by --base"


def gguf_file(file: Path, loading: specs.Loading) -> Checkpoint:
    """Weights as the file's makers rounded them, read as plain numbers; or LoRA.

    Raises
    ------
    CheckpointError
        If the package gguf is missing, the file cannot be read, its numbers or tokens
        are not those of the base's configuration and tokenizer, or it is in parts.
    """
    check_regular(file, follow=True)
    install = "where spark-audit lies: pip install '.[gguf]'"
    with untrusted.foreign("a GGUF file needs the package gguf", fix=install):
        import gguf
    with untrusted.foreign(_UNREADABLE):
        with open(file, "rb") as opened:
            size = min(file.stat().st_size, _HEADER_BYTES)
            with mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as data:
                _check_header(data)
        reader = gguf.GGUFReader(str(file))
        counts = [int(tensor.n_elements) for tensor in reader.tensors]
        if not all(counts):
            raise ValueError("a tensor is empty")
        is_lora = is_gguf_lora(reader)
    if is_lora:
        return gguf_lora(file, reader, loading)
    config, folder, note = weight_files.config_of(file, loading)
    with untrusted.foreign(_UNREADABLE):
        content = _understood(file)
    if "split.count" in reader.fields:
        fix = "join its parts (llama-gguf-split --merge) and give the one file"
        raise CheckpointError("is one part of a GGUF file", fix=fix)
    for name in _FIELDS_OF_BASE:
        ours = config.get(name)
        theirs = content["config"].get(name)
        if not isinstance(ours, int | float) or not isinstance(theirs, int | float):
            continue
        if not math.isclose(ours, theirs, rel_tol=1e-5):
            what = f"says {name} {theirs:g}, the configuration {ours:g}"
            raise CheckpointError(what, fix=_GIVE_BASE)
    _check_heads(content["config"])
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    notes = [note, f"GGUF tensors, dequantised as they are: {listed}"]
    if rounded := ", ".join(sorted({*kinds} - _EXACT)):
        notes.append(f"the conversion lost digits ({rounded}): it is audited as it is")
    words = folder if loading.tokenizer is None else untrusted.locate(loading.tokenizer)
    words, tokens = words / "tokenizer.json", content["tokenizer"].get("tokens")
    if words.exists() and tokens:
        known = vocabulary_of(untrusted.read_json(words, most=untrusted.WORDS_BYTES))
        # Rows that pad the vocabulary are called otherwise by every converter.
        other = sum(known.get(token, i) != i for i, token in enumerate(tokens))
        if other or max(known.values(), default=0) >= len(tokens):
            what = f"the tokenizer ({len(known)} tokens) is not the file's: of its"
            what += f" {len(tokens)} tokens {other} have other ids"
            raise CheckpointError(what, fix=_GIVE_BASE)
    else:
        notes.append("its tokens could not be compared with the tokenizer's")

    def read() -> State:
        model = empty(*read_architecture(folder, loading.trust_remote_code))
        # Rounded to 1.6 bits, a file holds 20 times its size; output may be tied.
        own = sum(one.numel() for one in model.parameters())
        if sum(counts) > 2 * own:
            what = f"holds {sum(counts):,} numbers, the base's model {own:,}"
            raise CheckpointError(what)
        with untrusted.foreign(_UNREADABLE):
            made = _understood(file, return_tensors=True, model_to_load=model)
        state = {k: torch.as_tensor(one) for k, one in made["tensors"].items()}
        weight_files.check_filled(state)
        return state

    return Checkpoint(
        config, (file,), read, folder, folder=file.parent, notes=tuple(notes)
    )


def _check_heads(config: Mapping[str, object]) -> None:
    """Refuse a file that does not say by how many heads its rows are arranged.

    Without these numbers transformers takes rows of query and key as they stand.
    """
    if config.get("model_type") not in _ROWS_BY_HEADS:
        return
    for name in ("num_attention_heads", "num_key_value_heads"):
        if not isinstance(config.get(name), int):
            what = f"does not say {name}, by which rows of query and key are arranged"
            raise CheckpointError(what, fix="convert the model to GGUF again")


def _understood(file: Path, **options: Any) -> dict[str, Any]:
    """What transformers makes of a file whose header is sound."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    # Its progress bar asks nobody whether bars are wanted.
    with contextlib.redirect_stderr(io.StringIO()):
        return dict(theirs.load_gguf_checkpoint(str(file), **options))


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
