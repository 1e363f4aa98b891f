"""A GGUF file: dequantised by the gguf package, into the architecture of its base."""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.checkpoint import Checkpoint, Part
from spark_audit.checkpoints.formats.bare_weights import config_of
from spark_audit.checkpoints.loaded import SIZES
from spark_audit.checkpoints.locate import (
    WORDS_BYTES,
    locate,
    read_json,
)
from spark_audit.checkpoints.models import read_architecture
from spark_audit.checkpoints.offline import foreign
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.tokenizer import vocabulary_of
from spark_audit.checkpoints.weight_files import State, check_filled
from spark_audit.errors import CheckpointError
from spark_audit.files import check_regular

SUFFIX = ".gguf"
EXACT = ("F32", "F16", "BF16", "F64")
"""Types of tensors that round nothing that was saved so."""
_SAME = (*SIZES, "rope_theta", "rms_norm_eps", "layer_norm_epsilon")
KEYS, TENSORS, ELEMENTS = 4096, 1 << 15, 3 << 19
"""The most that a header may list; real ones have 60 keys, 2,000 tensors, and 1.3
million elements of arrays (tokens, their scores and types, merges)."""
_HEADER_BYTES = 1 << 26
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Number of a type in the file -> bytes of a value."""
_STRING, _ARRAY = 8, 9


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
    keys, kinds, numbers = _tensors(file)
    content = _understood(file)
    if "split.count" in keys:
        fix = "join its parts (llama-gguf-split --merge) and give the one file"
        raise CheckpointError("is one part of a GGUF file", fix=fix)
    _check_sizes(content["config"], config)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    notes = [note, f"GGUF tensors, dequantised as they are: {listed}"]
    if rounded := sorted(set(kinds) - {*EXACT}):
        kind = ", ".join(rounded)
        notes.append(f"the conversion lost digits ({kind}): it is audited as it is")
    words = folder if loading.tokenizer is None else locate(loading.tokenizer)
    notes += _check_tokens(keys, content["tokenizer"], words)
    trusted = loading.trust_remote_code

    def read() -> State:
        architecture = read_architecture(folder, config, trusted)
        if architecture.cls is None:
            raise CheckpointError("a GGUF file does not go with own code")
        model = architecture.empty()
        # Rounded to 1.6 bits, a file holds 20 times its size; output may be tied.
        own = sum(one.numel() for one in model.parameters())
        if numbers > 2 * own:
            raise CheckpointError(
                f"holds {numbers:,} numbers, the base's model {own:,}"
            )
        tensors = _understood(file, return_tensors=True, model_to_load=model)["tensors"]
        state: State = {name: torch.as_tensor(one) for name, one in tensors.items()}
        check_filled(state)
        return state

    weights = Part(config, (file,), read, folder)
    return Checkpoint(folder=file.parent, weights=weights, notes=tuple(notes))


def _understood(file: Path, **options: Any) -> dict[str, Any]:
    """What transformers makes of a file whose header is sound."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    load: Any = theirs.load_gguf_checkpoint
    with foreign("is no GGUF file that can be read"):
        content: dict[str, Any] = load(str(file), **options)
    return content


def _tensors(file: Path) -> tuple[set[str], Counter[str], int]:
    """Keys of the file, how many tensors are of each type, and numbers in all."""
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            "a GGUF file needs the package gguf",
            fix="where spark-audit lies: pip install '.[gguf]'",
        ) from error
    with foreign("is no GGUF file that can be read"):
        with open(file, "rb") as opened:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _Header(data)
        reader: Any = gguf.GGUFReader(str(file))
        counts = [int(tensor.n_elements) for tensor in reader.tensors]
        if not all(counts):
            raise ValueError("a tensor is empty")
        kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return set(reader.fields), kinds, sum(counts)


class _Header:
    """The header of a GGUF file, walked before a library reads it.

    The library counts on it: one array of 2 ** 60 elements never ends, and fills the
    memory. Layout: github.com/ggml-org/ggml, docs/gguf.md.

    Raises
    ------
    ValueError, struct.error
        With a count or length that the file cannot hold.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at, self._elements = data, 4, ELEMENTS
        self._end = min(len(data), _HEADER_BYTES)
        if data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._order = "<" if struct.unpack_from("<I", data, 4)[0] & 0xFFFF else ">"
        if self._next("I") not in (2, 3):
            raise ValueError("only versions 2 and 3 are known")
        self._count(TENSORS, "tensors")
        for _ in range(self._count(KEYS, "keys")):
            self._skip(self._next("Q"))
            self._value(self._next("I"))

    def _value(self, kind: int, count: int = 1, *, inner: bool = False) -> None:
        if kind == _STRING:
            for _ in range(count):
                self._skip(self._next("Q"))
        elif kind in _SCALARS:
            self._skip(_SCALARS[kind] * count)
        elif kind == _ARRAY and not inner:
            kind, count = self._next("I"), self._count(self._elements, "elements")
            self._elements -= count
            self._value(kind, count, inner=True)
        else:
            raise ValueError(f"values of type {kind} are unknown, or nested")

    def _count(self, most: int, what: str) -> int:
        count = self._next("Q")
        if count > most:
            raise ValueError(f"{count} {what}: more than {most} are not read")
        return count

    def _next(self, code: str) -> int:
        self._skip(size := struct.calcsize(code))
        at = self._at - size
        return int(struct.unpack_from(self._order + code, self._data, at)[0])

    def _skip(self, size: int) -> None:
        self._at += size
        if self._at > self._end:
            raise ValueError("a length or count in its header is beyond the file's end")


def _check_sizes(said: Any, config: dict[str, Any]) -> None:
    for name in _SAME:
        ours, theirs = config.get(name), said.get(name)
        if isinstance(ours, int | float) and isinstance(theirs, int | float):
            if not math.isclose(ours, theirs, rel_tol=1e-5):
                raise CheckpointError(
                    f"says {name} {theirs:g}, the configuration {ours:g}",
                    fix="give the model that it was converted from by --base",
                )


def _check_tokens(keys: set[str], said: Any, folder: Path) -> list[str]:
    """Refuse another tokenizer than the file's; notes on what it does not hold."""
    notes = []
    file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    tokens = said.get("tokens") or []
    if file.exists() and tokens:
        known = vocabulary_of(read_json(file, most=WORDS_BYTES))
        # Rows that pad the vocabulary are called otherwise by every converter.
        other = sum(known.get(token, i) != i for i, token in enumerate(tokens))
        if other or max(known.values(), default=0) >= len(tokens):
            raise CheckpointError(
                f"the tokenizer is not the file's: of its {len(tokens)} tokens {other} "
                f"have other ids, the tokenizer has {len(known)}",
                fix="give the model that it was converted from by --base",
            )
    else:
        notes.append("its tokens could not be compared with the tokenizer's")
    told = {}
    if settings.exists():
        told = read_json(settings, most=WORDS_BYTES)
    template = "chat_template" in told or (folder / "chat_template.jinja").exists()
    if template and "tokenizer.chat_template" not in keys:
        notes.append("the file has no chat template, its base has one")
    return notes
