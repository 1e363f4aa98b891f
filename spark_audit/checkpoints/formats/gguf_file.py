"""A GGUF file: dequantised by the gguf package, into the architecture of its base."""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.checkpoint import Checkpoint, Part
from spark_audit.checkpoints.formats.bare_weights import config_of
from spark_audit.checkpoints.loaded import SIZES
from spark_audit.checkpoints.locate import (
    WORDS_BYTES,
    check_inside,
    locate,
    read_json,
)
from spark_audit.checkpoints.models import read_architecture
from spark_audit.checkpoints.offline import foreign
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.tokenizer import vocabulary_of
from spark_audit.checkpoints.weight_files import State, check_filled, lone_file
from spark_audit.errors import CheckpointError
from spark_audit.files import check_regular

SUFFIX = ".gguf"
EXACT = ("F32", "F16", "BF16", "F64")
"""Types of tensors that round nothing that was saved so."""
_SAME = (*SIZES, "rope_theta", "rms_norm_eps", "layer_norm_epsilon")
KEYS, TENSORS, ELEMENTS, DIMENSIONS = 4096, 1 << 15, 3 << 19, 4
"""The most that a header may list; real ones have 60 keys, 2,000 tensors, and 1.3
million elements of arrays (tokens, their scores and types, merges)."""
_HEADER_BYTES = 1 << 26
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Number of a type in the file -> bytes of a value."""
_UINT32, _STRING, _ARRAY = 4, 8, 9


def detect(path: Path) -> bool:
    """A .gguf file, or a folder that holds one and no configuration."""
    return _file(path) is not None


def _file(path: Path) -> Path | None:
    return lone_file(path, (SUFFIX,), ("config.json",))


def gguf_file(path: Path, loading: Loading) -> Checkpoint:
    """Weights as the file's makers rounded them, read as plain numbers.

    Raises
    ------
    CheckpointError
        If the package gguf is missing, the file cannot be read, its numbers or tokens
        are not those of the base's configuration and tokenizer, or it is in parts.
    """
    file = _file(path)
    assert file is not None
    if path.is_dir():
        check_inside(file)
    check_regular(file, follow=True)
    config, folder, note = config_of(file, loading)
    header, said = _opened(file)
    if b"split.count" in header.keys:
        fix = "join its parts (llama-gguf-split --merge) and give the one file"
        raise CheckpointError("is one part of a GGUF file", fix=fix)
    _check_sizes(said["config"], config)
    kinds = header.types
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    notes = [note, f"GGUF tensors, dequantised as they are: {listed}"]
    if rounded := sorted(set(kinds) - {*EXACT}):
        kind = ", ".join(rounded)
        notes.append(f"the conversion lost digits ({kind}): it is audited as it is")
    words = folder if loading.tokenizer is None else locate(loading.tokenizer)
    notes += _check_tokens(header, said["tokenizer"], words)
    trusted = loading.trust_remote_code

    def read(meta: bool) -> State:
        architecture = read_architecture(folder, config, trusted)
        if architecture.cls is None:
            raise CheckpointError("a GGUF file does not go with own code")
        model = architecture.empty()
        # Rounded to 1.6 bits, a file holds 20 times its size; output may be tied.
        own = sum(one.numel() for one in model.parameters())
        if header.numbers > 2 * own:
            raise CheckpointError(
                f"holds {header.numbers:,} numbers, the base's model {own:,}"
            )
        tensors = _opened(file, return_tensors=True, model_to_load=model)[1]["tensors"]
        state: State = {name: torch.as_tensor(one) for name, one in tensors.items()}
        check_filled(state)
        return {k: t.to("meta") for k, t in state.items()} if meta else state

    weights = Part(config, (file,), read, folder)
    return Checkpoint(folder=file.parent, weights=weights, notes=tuple(notes))


def _opened(file: Path, **options: Any) -> tuple[_Header, dict[str, Any]]:
    """The file's header, and what transformers understands of it."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            "a GGUF file needs the package gguf",
            fix="where spark-audit lies: pip install '.[gguf]'",
        ) from error
    load: Any = theirs.load_gguf_checkpoint
    with foreign("is no GGUF file that can be read"):
        with open(file, "rb") as opened:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _Header(data, gguf.GGML_QUANT_SIZES)
        return header, load(str(file), **options)


class _Header:
    """The header of a GGUF file, walked before a library reads it.

    The library counts on it: one array of 2 ** 60 elements never ends, and fills the
    memory. Layout: github.com/ggml-org/ggml, docs/gguf.md.

    Attributes
    ----------
    keys, types, numbers
        Its keys, how many tensors are of each type, and numbers in all.

    Raises
    ------
    ValueError, struct.error
        With a count, length or offset that the file cannot hold.
    """

    def __init__(self, data: mmap.mmap, known: Mapping[Any, tuple[int, int]]) -> None:
        self._data, self._at, self._elements = data, 4, ELEMENTS
        self._end = min(len(data), _HEADER_BYTES)
        if data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._order = "<" if struct.unpack_from("<I", data, 4)[0] & 0xFFFF else ">"
        if self._next("I") not in (2, 3):
            raise ValueError("only versions 2 and 3 are known")
        tensors, alignment = self._count("Q", TENSORS, "tensors"), 32
        self.keys: set[bytes] = set()
        for _ in range(self._count("Q", KEYS, "keys")):
            key, kind, at = self._string(), self._next("I"), self._at
            self._value(kind)
            self.keys.add(key)
            if key == b"general.alignment" and kind == _UINT32:
                (alignment,) = struct.unpack_from(f"{self._order}I", data, at)
        self.types, self.numbers = Counter[str](), 0
        kinds = {int(kind): (kind.name, *size) for kind, size in known.items()}
        places: list[tuple[int, int]] = []
        for _ in range(tensors):
            self._string()
            axes = range(self._count("I", DIMENSIONS, "axes"))
            numbers = math.prod(self._next("Q") for _ in axes)
            kind, begin = self._next("I"), self._next("Q")
            if kind not in kinds:
                raise ValueError(f"tensors of type {kind} are unknown")
            name, block, size = kinds[kind]
            if not numbers:
                raise ValueError("a tensor is empty")
            if numbers % block:
                raise ValueError("a tensor has a shape that its type cannot have")
            self.types[name] += 1
            self.numbers += numbers
            places.append((begin, begin + numbers // block * size))
        start, last = self._at + -self._at % max(alignment, 1), 0
        for begin, end in sorted(places):
            if begin < last or start + end > len(data):
                raise ValueError("tensors overlap, or lie beyond the end of the file")
            last = end

    def _value(self, kind: int, count: int = 1, *, inner: bool = False) -> None:
        if kind == _STRING:
            for _ in range(count):
                self._string()
        elif kind in _SCALARS:
            self._skip(_SCALARS[kind] * count)
        elif kind == _ARRAY and not inner:
            kind, count = self._next("I"), self._count("Q", self._elements, "elements")
            self._elements -= count
            self._value(kind, count, inner=True)
        else:
            raise ValueError(f"values of type {kind} are unknown, or nested")

    def _string(self) -> bytes:
        length = self._next("Q")
        self._skip(length)
        return self._data[self._at - length : self._at]

    def _count(self, code: str, most: int, what: str) -> int:
        count = self._next(code)
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


def _check_tokens(header: _Header, said: Any, folder: Path) -> list[str]:
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
    if template and b"tokenizer.chat_template" not in header.keys:
        notes.append("the file has no chat template, its base has one")
    return notes
