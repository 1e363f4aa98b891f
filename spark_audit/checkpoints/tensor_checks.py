"""Check tensors of files before a model takes them.

They must be present, dense, floating-point and finite, and have the shapes and names
that the model needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module

import torch

from spark_audit.errors import CheckpointError, shown

State = dict[str, torch.Tensor]
"""Tensors by name."""

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Dtypes that weights may have."""

GIVE_OWN_CONFIG = "give the config.json that was saved with these weights"
"""Advice for weights that do not fit their configuration."""

# Meta, Mistral and torchtune name the embeddings so; transformers does not.
_META_EMBEDDINGS = "tok_embeddings.weight"


def only_tensors(content: object, *, prefix: str = "", fix: str) -> State:
    """Return a file's content as a state dictionary of dense tensors.

    Parameters
    ----------
    prefix, fix
        Beginning of the error's text, such as ``"FILE "``, and its advice.

    Raises
    ------
    CheckpointError
        If the content is anything else.
    """
    if not isinstance(content, dict):
        raise CheckpointError(f"{prefix}holds no state dictionary", fix=fix)

    for key, value in content.items():
        if not isinstance(value, torch.Tensor):
            problem = f"{prefix}holds something else than tensors ({shown(key)})"
            raise CheckpointError(problem, fix=fix)

        is_dense = value.layout == torch.strided and not value.is_quantized
        # A pickle can declare a tensor that is larger than its storage.
        if not is_dense or value.nbytes > value.untyped_storage().nbytes():
            problem = f"tensor {shown(key)} is not stored number by number"
            raise CheckpointError(problem, fix="save contiguous, dense tensors")
    return {str(key): value for key, value in content.items()}


def check_filled(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse files without tensors, and tensors without numbers.

    Parameters
    ----------
    state
        Tensors of any shape, by name.
    """
    problem = "holds no tensors" if not state else ""
    for name, tensor in state.items():
        if tensor.numel() == 0:
            problem = f"tensor {shown(name)} is empty"
            break

    if problem:
        problem += ": DeepSpeed ZeRO-3 saves that when it does not gather its shards"
        remedy = "run zero_to_fp32.py on the training folder and give its result"
        raise CheckpointError(problem, fix=remedy)


def check_floats(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse dtypes other than ``FLOATS`` (integers, float8).

    A cast to floats would hide them.
    """
    for name, tensor in state.items():
        if tensor.dtype not in FLOATS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            problem = (
                f"tensor {shown(name)} holds {dtype}, not floating-point numbers of "
                "16 bits or more"
            )
            raise CheckpointError(problem, fix="save it as it was trained")


def check_finite(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse NaN and infinite numbers; the error names the tensor.

    Parameters
    ----------
    state
        Tensors of any shape, by name. Integers and empty tensors pass.
    """
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # Minimum and maximum are NaN if any number is. Computing them is 20 times as
        # fast as checking each number.
        ends = torch.stack(torch.aminmax(tensor))  # (2,)
        if bool(torch.isfinite(ends).all()):
            continue

        # A full check only for the words of the error.
        contents = "NaN" if bool(torch.isnan(tensor).any()) else "infinite numbers"
        remedy = (
            "training diverged, or the dtype is too narrow: leave it out, give "
            "an earlier checkpoint, or try --dtype float32"
        )
        raise CheckpointError(f"tensor {shown(name)} holds {contents}", fix=remedy)


def refuse_differences(
    file_shapes: Mapping[str, Sequence[int]],
    model_shapes: Mapping[str, Sequence[int]],
    *,
    noun: str = "tensor",
    fix: str = f"{GIVE_OWN_CONFIG}, or save the whole model again",
) -> None:
    """Refuse a file whose tensors are not those of the model.

    The error names the first tensor that does not fit, and counts the others of the
    same kind: missing ones first, then unexpected ones, then those of another shape.

    Parameters
    ----------
    file_shapes, model_shapes
        Shapes of tensors by name, in the file and in the model. A tensor that the file
        lacks would stay at its random initial values.
    noun, fix
        Words in front of the tensor's name, and the advice of the error.
    """
    # One list per kind of difference: the first that is not empty is reported.
    missing: list[str] = []
    unexpected: list[str] = []
    reshaped: list[str] = []
    for name in sorted(file_shapes.keys() | model_shapes):
        file_shape = file_shapes.get(name)
        model_shape = model_shapes.get(name)
        if file_shape is None:
            missing.append(f"{shown(name)} is missing")
        elif model_shape is None:
            unexpected.append(f"{shown(name)} is unexpected")
        elif tuple(file_shape) != tuple(model_shape):
            shapes = f"has shape {[*file_shape]}, the model needs {[*model_shape]}"
            reshaped.append(f"{shown(name)} {shapes}")

    differences = missing or unexpected or reshaped
    if differences:
        more = ""
        if len(differences) > 1:
            more = f" (and {len(differences) - 1} more)"
        raise CheckpointError(f"{noun} {differences[0]}{more}", fix=fix)


def refuse_other_names(
    state: Mapping[str, torch.Tensor], *, model_type: str = ""
) -> None:
    """Refuse weights with the names of Meta, Mistral or torchtune.

    Parameters
    ----------
    model_type
        ``model_type`` of a folder that transformers reads; empty for a bare file. A few
        types are saved with such names (Mistral Large 4), and transformers renames
        their tensors.

    Raises
    ------
    CheckpointError
        Names the command or class that converts them.
    """
    if _META_EMBEDDINGS not in state or _is_renamed(model_type):
        return

    problem = (
        "its tensors have the names of Meta, Mistral or torchtune "
        f"({_META_EMBEDDINGS}), not those of transformers"
    )
    remedy = (
        "give the folder in Hugging Face's format: convert Meta's by python -m "
        "transformers.models.llama.convert_llama_weights_to_hf --input_dir FOLDER "
        "--output_dir OUT, save torchtune's by FullModelHFCheckpointer"
    )
    raise CheckpointError(problem, fix=remedy)


def _is_renamed(model_type: str) -> bool:
    """Return whether transformers renames ``_META_EMBEDDINGS`` of a type at loading.

    A release of transformers may keep its conversions elsewhere, or in another form.
    None is known here then, and the weights are refused.
    """
    try:
        conversion_mapping = import_module("transformers.conversion_mapping")
    except ImportError:
        return False
    mapping_of = getattr(conversion_mapping, "get_checkpoint_conversion_mapping", None)
    if mapping_of is None:
        return False

    # Each conversion has one or several patterns of names.
    for conversion in mapping_of(model_type) or ():
        patterns = getattr(conversion, "source_patterns", ())
        if isinstance(patterns, str):
            patterns = [patterns]
        for pattern in patterns:
            # A pattern for any name is not about these tensors.
            names_embeddings = "tok_embeddings" in pattern
            if names_embeddings and re.search(pattern, _META_EMBEDDINGS):
                return True
    return False
