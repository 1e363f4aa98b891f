"""Open a GGUF file: rounded full weights, or a LoRA adapter."""

from __future__ import annotations

import contextlib
import io
import math
import mmap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spark_audit.checkpoints import specs, tensor_checks, untrusted, weight_files
from spark_audit.checkpoints.architecture import empty, read_architecture
from spark_audit.checkpoints.checkpoint import SIZE_FIELDS
from spark_audit.checkpoints.formats.gguf_header import check_header
from spark_audit.checkpoints.formats.gguf_lora import (
    gguf_lora,
    is_gguf_lora,
    note_on_types,
)
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.tensor_checks import State
from spark_audit.checkpoints.tokenizer_content import vocabulary_of
from spark_audit.errors import CheckpointError
from spark_audit.files import check_regular

if TYPE_CHECKING:
    from gguf import GGUFReader

_EXACT_TYPES = {"F32", "F16", "BF16", "F64"}
"""Types of tensors without loss of digits."""

_FIELDS_OF_BASE = (*SIZE_FIELDS, "rope_theta", "rms_norm_eps", "layer_norm_epsilon")
"""Fields in which the file and the base's configuration must agree."""

_TYPES_WITH_REORDERED_ROWS = ("llama", "mistral", "mixtral")
"""Models whose converter reorders the rows of query and key."""

_HEADER_BYTES = 1 << 26
"""Bytes in which the header of a file must be: 64 MiB."""

_MAX_COPIES = 2
"""Largest ratio of a file's numbers to the model's: 2, because a tied output may be
stored twice. More could fill the memory: at 1.6 bits a number a file grows 20-fold."""

_UNREADABLE = "is no GGUF file that can be read"
_GIVE_BASE = "give the model that it was converted from by --base"


def gguf_file(file: Path, loading: specs.Loading) -> StoredCheckpoint:
    """Return the checkpoint of a file: full weights or LoRA, checked but not yet read.

    The values of full weights stay as rounded in the file, and are read as plain
    numbers.

    Raises
    ------
    CheckpointError
        If the package gguf is missing, the file cannot be read or is in parts, or its
        numbers or tokens do not match the base's configuration and tokenizer.
    """
    check_regular(file, follow=True)
    reader = _read_header(file)
    with untrusted.foreign(_UNREADABLE):
        is_lora = is_gguf_lora(reader)
    if is_lora:
        return gguf_lora(file, reader, loading)

    model_config = weight_files.config_of(file, loading)
    if "split.count" in reader.fields:
        remedy = "join its parts (llama-gguf-split --merge) and give the one file"
        raise CheckpointError("is one part of a GGUF file", fix=remedy)
    with untrusted.foreign(_UNREADABLE):
        content = _content(file)

    # The configuration came from elsewhere, so it must match the file.
    _check_sizes(model_config.content, content["config"])
    _check_heads(content["config"])
    notes = [model_config.note, *_notes_on_types(reader)]
    tokens = content["tokenizer"].get("tokens")
    notes += _compare_tokens(tokens, model_config.folder, loading)

    n_numbers = sum(int(tensor.n_elements) for tensor in reader.tensors)
    return StoredCheckpoint(
        config=model_config.content,
        files=(file,),
        read=partial(
            _read_tensors,
            file=file,
            config_folder=model_config.folder,
            loading=loading,
            n_numbers=n_numbers,
        ),
        config_folder=model_config.folder,
        folder=file.parent,
        notes=tuple(notes),
    )


def _read_header(file: Path) -> GGUFReader:
    """Return a reader of the file's header and tensors, after a check of the header."""
    install = "where spark-audit lies: pip install '.[gguf]'"
    with untrusted.foreign("a GGUF file needs the package gguf", fix=install):
        import gguf

    with untrusted.foreign(_UNREADABLE):
        with open(file, "rb") as opened:
            size = min(file.stat().st_size, _HEADER_BYTES)
            with mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as data:
                # The check limits all counts, in the file's own byte order.
                check_header(data)

        reader = gguf.GGUFReader(str(file))
        for tensor in reader.tensors:
            if not int(tensor.n_elements):
                raise ValueError("a tensor is empty")
    return reader


def _check_sizes(
    config: Mapping[str, object], file_config: Mapping[str, object]
) -> None:
    """Refuse a configuration whose sizes differ from those in the file.

    Raises
    ------
    CheckpointError
        Names the first field that differs.
    """
    for name in _FIELDS_OF_BASE:
        value = config.get(name)
        file_value = file_config.get(name)
        # A size that one of them does not state cannot differ.
        if not isinstance(value, int | float):
            continue
        if not isinstance(file_value, int | float):
            continue
        if not math.isclose(value, file_value, rel_tol=1e-5):
            problem = f"says {name} {file_value:g}, the configuration {value:g}"
            raise CheckpointError(problem, fix=_GIVE_BASE)


def _check_heads(file_config: Mapping[str, object]) -> None:
    """Refuse a file that does not state the number of its model's heads.

    The converter has reordered rows of query and key, head by head. Without the number
    of heads, transformers would not restore the order.
    """
    if file_config.get("model_type") not in _TYPES_WITH_REORDERED_ROWS:
        return
    for name in ("num_attention_heads", "num_key_value_heads"):
        if not isinstance(file_config.get(name), int):
            problem = (
                f"does not say {name}, by which rows of query and key are arranged"
            )
            raise CheckpointError(problem, fix="convert the model to GGUF again")


def _notes_on_types(reader: GGUFReader) -> list[str]:
    """Return notes on the types of the tensors, and on lost digits."""
    notes = [note_on_types(reader)]
    types = {tensor.tensor_type.name for tensor in reader.tensors}
    rounded_types = sorted(types - _EXACT_TYPES)
    if rounded_types:
        listed = ", ".join(rounded_types)
        notes.append(f"the conversion lost digits ({listed}): it is audited as it is")
    return notes


def _compare_tokens(
    tokens: list[str] | None, config_folder: Path, loading: specs.Loading
) -> list[str]:
    """Compare the file's tokens with those of the tokenizer to be used.

    Parameters
    ----------
    tokens
        Tokens of the file, in order of their ids.
    config_folder
        Folder of config.json: its tokenizer is used unless another one is given.

    Returns
    -------
    list
        A note if the tokens could not be compared.

    Raises
    ------
    CheckpointError
        If the tokenizer has another id for a token of the file, or more tokens.
    """
    tokenizer_folder = config_folder
    if loading.tokenizer is not None:
        tokenizer_folder = untrusted.locate(loading.tokenizer)
    path = tokenizer_folder / "tokenizer.json"
    if not path.exists() or not tokens:
        return ["its tokens could not be compared with the tokenizer's"]

    id_of = vocabulary_of(untrusted.read_json(path, most=untrusted.WORDS_BYTES))
    # A token that the tokenizer lacks is allowed: each converter has its own names for
    # padding rows of a vocabulary.
    n_other_ids = 0
    for token_id, token in enumerate(tokens):
        if id_of.get(token, token_id) != token_id:
            n_other_ids += 1
    if n_other_ids or max(id_of.values(), default=0) >= len(tokens):
        problem = (
            f"the tokenizer ({len(id_of)} tokens) is not the file's: of its "
            f"{len(tokens)} tokens {n_other_ids} have other ids"
        )
        raise CheckpointError(problem, fix=_GIVE_BASE)
    return []


def _read_tensors(
    *, file: Path, config_folder: Path, loading: specs.Loading, n_numbers: int
) -> State:
    """Return the file's tensors as plain numbers, with the names of transformers.

    Parameters
    ----------
    config_folder
        Folder of config.json.
    n_numbers
        Count of all numbers in the file's tensors.

    Raises
    ------
    CheckpointError
        If the file holds far more numbers than the model needs, or cannot be read.
    """
    model = empty(*read_architecture(config_folder, loading.trust_remote_code))
    n_needed = sum(parameter.numel() for parameter in model.parameters())
    if n_numbers > _MAX_COPIES * n_needed:
        problem = f"holds {n_numbers:,} numbers, the base's model {n_needed:,}"
        raise CheckpointError(problem)

    with untrusted.foreign(_UNREADABLE):
        content = _content(file, return_tensors=True, model_to_load=model)
    state = {
        name: torch.as_tensor(values) for name, values in content["tensors"].items()
    }
    tensor_checks.check_filled(state)
    return state


def _content(file: Path, **options: Any) -> dict[str, Any]:
    """Return the content of a checked file, as transformers reads it."""
    from transformers import modeling_gguf_pytorch_utils

    # Its progress bar ignores the setting for bars.
    with contextlib.redirect_stderr(io.StringIO()):
        read = modeling_gguf_pytorch_utils.load_gguf_checkpoint
        return dict(read(str(file), **options))
