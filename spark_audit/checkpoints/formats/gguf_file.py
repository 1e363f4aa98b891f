"""A GGUF file: dequantised by the gguf package, into the architecture of its base."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.formats import FORMATS
from spark_audit.checkpoints.formats.bare_weights import config_folder
from spark_audit.checkpoints.locate import (
    WORDS_BYTES,
    check_inside,
    locate,
    printable,
    read_json,
)
from spark_audit.checkpoints.models import read_architecture
from spark_audit.checkpoints.recipe import SIZES, Given, Recipe, State, Weights
from spark_audit.checkpoints.tokenizer import vocabulary_of
from spark_audit.checkpoints.weight_files import check_filled
from spark_audit.errors import CheckpointError, first_line
from spark_audit.files import check_regular

SUFFIX = ".gguf"
EXACT = ("F32", "F16", "BF16", "F64")
"""Types of tensors that round nothing that was saved so."""
_SAME = (*SIZES, "rope_theta", "rms_norm_eps", "layer_norm_epsilon")


def detect(path: Path) -> bool:
    """A .gguf file, or a folder that holds one and no configuration."""
    if path.is_file():
        return path.suffix == SUFFIX
    return not (path / "config.json").exists() and len(_files(path)) == 1


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []


@FORMATS.register(detect=detect)
def gguf_file(path: Path, given: Given) -> Recipe:
    """Weights as the file's makers rounded them, read as plain numbers.

    Raises
    ------
    CheckpointError
        If the package gguf is missing, the file cannot be read, its numbers or tokens
        are not those of the base's configuration and tokenizer, or it is in parts.
    """
    file, where = path, given.where
    if path.is_dir():
        file = _files(path)[0]
        check_inside(file, where=where)
    check_regular(file, follow=True)
    folder, note = config_folder(file, given)
    reader, said = _opened(file, where)
    if "split.count" in reader.fields:
        fix = "join its parts (llama-gguf-split --merge) and give the one file"
        raise CheckpointError("is one part of a GGUF file", where=where, fix=fix)
    config = read_json(folder / "config.json", where=where)
    _check_sizes(said["config"], config, where=where)
    kinds = Counter(one.tensor_type.name for one in reader.tensors)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    notes = [note, f"GGUF tensors, dequantised as they are: {listed}"]
    if rounded := sorted(set(kinds) - {*EXACT}):
        kind = ", ".join(rounded)
        notes.append(f"the conversion lost digits ({kind}): it is audited as it is")
    words = locate(given.tokenizer) if given.tokenizer is not None else folder
    notes += _check_tokens(reader, said["tokenizer"], words, where=where)
    return Recipe(
        format="gguf-file",
        source=printable(where),
        given=given,
        folder=file.parent,
        weights=Weights(folder, (file,), partial(_read, file, folder, given)),
        base=given.base,
        notes=tuple(notes),
    )


def _opened(file: Path, where: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The file's reader, and what transformers understands of it."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            "a GGUF file needs the package gguf",
            where=where,
            fix="pip install 'spark-audit[gguf]'",
        ) from error
    load: Any = theirs.load_gguf_checkpoint
    try:
        return gguf.GGUFReader(file), load(str(file), **options)
    except Exception as error:  # of a damaged file, whatever comes of its numbers
        raise CheckpointError(
            f"is no GGUF file that can be read ({first_line(error)})", where=where
        ) from error


def _read(file: Path, folder: Path, given: Given, meta: bool) -> State:
    where = given.where
    config = read_json(folder / "config.json", where=where)
    architecture = read_architecture(folder, config, given)
    if architecture.cls is None:
        raise CheckpointError("a GGUF file does not go with own code", where=where)
    with torch.device("meta"):
        model = architecture.cls(architecture.config)
    found = _opened(file, where, return_tensors=True, model_to_load=model)[1]
    state: State = {k: torch.as_tensor(v) for k, v in found["tensors"].items()}
    check_filled(state, where=where)
    return {k: t.to("meta") for k, t in state.items()} if meta else state


def _check_sizes(said: Any, config: dict[str, Any], *, where: str) -> None:
    for name in _SAME:
        ours, theirs = config.get(name), said.get(name)
        if isinstance(ours, int | float) and isinstance(theirs, int | float):
            if not math.isclose(ours, theirs, rel_tol=1e-5):
                raise CheckpointError(
                    f"says {name} {theirs:g}, the configuration {ours:g}",
                    where=where,
                    fix="give the model that it was converted from by --base",
                )


def _check_tokens(reader: Any, said: Any, folder: Path, *, where: str) -> list[str]:
    """Refuse another tokenizer than the file's; notes on what it does not hold."""
    notes = []
    file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    tokens = said.get("tokens") or []
    if file.exists() and tokens:
        known = vocabulary_of(read_json(file, most=WORDS_BYTES, where=where))
        # Rows that pad the vocabulary are called otherwise by every converter.
        other = sum(known.get(token, i) != i for i, token in enumerate(tokens))
        if other or max(known.values(), default=0) >= len(tokens):
            raise CheckpointError(
                f"the tokenizer is not the file's: of its {len(tokens)} tokens {other} "
                f"have other ids, the tokenizer has {len(known)}",
                where=where,
                fix="give the model that it was converted from by --base",
            )
    else:
        notes.append("its tokens could not be compared with the tokenizer's")
    told = {}
    if settings.exists():
        told = read_json(settings, most=WORDS_BYTES, where=where)
    template = "chat_template" in told or (folder / "chat_template.jinja").exists()
    if template and "tokenizer.chat_template" not in reader.fields:
        notes.append("the file has no chat template, its base has one")
    return notes
