"""Handle embeddings and output heads ("tables") in an adapter's file.

PEFT saves a table if it was adapted or requested, or if it has more rows than the
base's, and puts it into the base when it loads the adapter. This module does the same:
a table that equals the base's is left out, and any other replaces it in a separate
base.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints.checkpoint import weight_of
from spark_audit.checkpoints.tensor_checks import State
from spark_audit.checkpoints.weight_files import PEFT_PREFIX
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from peft import PeftModelForCausalLM
    from transformers import PreTrainedModel

# PEFT names tensors as "base_model.model.lm_head.base_layer.weight": these parts of a
# name are PEFT's, and not the base's.
_WRAPPER_NAME = re.compile(r"\.(?:(?:token_adapter\.)?base_layer|original_module)\.")
# Tensors of the adapter itself, of any type.
_OF_ADAPTER = re.compile(r"\.(?:lora_|loranew_|ia3_|hada_|lokr_|vera_|osf_|oft_)")
# A module that was trained whole: PEFT may save it under two names.
_SAVED_TWICE = re.compile(r"\.modules_to_save\.(?=[^.]+$)")
# New numbers of some rows of a table.
_TRAINED_ROWS = ".token_adapter.trainable_tokens_delta"
LEAST_LIKENESS = 0.5
"""Cosine of two tables, over all rows, below which they belong to different models.
Training keeps it near 1, and tables of other models are near 0."""
_ROWS_AT_ONCE = 4096
"""Rows of a table that are converted to float32 and compared at once."""
_ALL_ROWS_DIFFER = (
    "save the adapter again with model.save_pretrained(FOLDER, "
    "save_embedding_layers=True), or merge it where it was trained"
)


def path_of(key: str) -> str:
    """Return the base's tensor name for a key of PEFT."""
    return _WRAPPER_NAME.sub(".", key.removeprefix(PEFT_PREFIX))


def own_tables(
    state: State,
    *,
    saved_apart: object,
    read_base: Callable[[], State],
    base_rows: int | None,
) -> dict[str, str]:
    """Return the tables of an adapter's file that differ from its base's, with notes.

    Parameters
    ----------
    state
        The tensors of the adapter's file.
    saved_apart
        ``modules_to_save`` of its configuration.
    read_base
        Reads the base's tensors; called only if the file has a table.
    base_rows
        Rows of the base's embeddings, if its configuration states them.

    Raises
    ------
    CheckpointError
        If a table belongs to another model.
    """
    modules_apart: tuple[str, ...] = ()
    if isinstance(saved_apart, list):
        modules_apart = tuple(saved_apart)

    note_by_key: dict[str, str] = {}
    base: State = {}
    for key, table in state.items():
        if not key.endswith(".weight") or table.ndim != 2:
            continue
        # Skip the adapter's own tensors and second copies of modules.
        if _OF_ADAPTER.search(key) or _SAVED_TWICE.search(key):
            continue

        path = path_of(key)
        base = base or read_base()
        base_table = _base_table(path, base, base_rows)
        # A table of another width is refused later, as a tensor without a place.
        if base_table is None or base_table.shape[1:] != table.shape[1:]:
            continue
        if _is_equal(table, base_table):
            continue
        # PEFT keeps a module that was trained whole beside the base's.
        module = path.removesuffix(".weight")
        is_apart = bool(modules_apart) and module.endswith(modules_apart)
        if is_apart and table.shape == base_table.shape:
            continue

        _check_related(key, table, base_table)
        note_by_key[key] = _note_on_rows(path, table, base_table)
    return note_by_key


def _base_table(path: str, base: State, base_rows: int | None) -> torch.Tensor | None:
    """Return the base's tensor with this name, or its embeddings for a tied head."""
    for name, tensor in base.items():
        # Names may lack the body's prefix, or have one more.
        if path == name or path.endswith(f".{name}") or name.endswith(f".{path}"):
            return tensor
    for tensor in base.values():
        if tensor.ndim == 2 and len(tensor) == base_rows:
            return tensor
    return None


def _is_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors hold the same numbers, in any dtype."""
    if tensor.shape != other.shape:
        return False
    wide = torch.promote_types(tensor.dtype, other.dtype)
    return torch.equal(tensor.to(wide), other.to(wide))


def _common_rows(
    table: torch.Tensor, base_table: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the rows that both tables have, in float32 chunks."""
    n_common = min(len(table), len(base_table))
    for start in range(0, n_common, _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, n_common))
        yield table[rows].float(), base_table[rows].float()  # each (rows, width)


def _check_related(key: str, table: torch.Tensor, base_table: torch.Tensor) -> None:
    """Refuse a table whose rows are unrelated to the base's."""
    product = 0.0
    square = 0.0
    base_square = 0.0
    for rows, base_rows in _common_rows(table, base_table):
        product += float((rows * base_rows).sum())
        square += float(rows.square().sum())
        base_square += float(base_rows.square().sum())

    # NaN on either side is also refused.
    is_alike = product > LEAST_LIKENESS * (square * base_square) ** 0.5
    if not is_alike:
        problem = (
            f"adapter tensor {shown(key)} is unlike the base's own: it was trained "
            "on another base"
        )
        remedy = "give the model that it was trained on by --base"
        raise CheckpointError(problem, fix=remedy)


def _note_on_rows(path: str, table: torch.Tensor, base_table: torch.Tensor) -> str:
    """Return a note on the number of rows that belong to the adapter."""
    n_changed = 0
    for rows, base_rows in _common_rows(table, base_table):
        n_changed += int((rows != base_rows).any(1).sum())

    note = (
        f"{path}: the adapter's own, in place of the base's "
        f"({n_changed} of {len(base_table)} rows differ"
    )
    n_more = len(table) - len(base_table)
    if n_more > 0:
        note += f", {n_more} more"
    return f"{note})"


def add_rows(
    model: PreTrainedModel,
    state: Mapping[str, torch.Tensor],
    note_by_key: Mapping[str, str],
) -> None:
    """Give a base as many rows of embeddings and head as an adapter's file has.

    This precedes attaching the adapter, whose shapes depend on them.

    New rows are undefined until they are filled.

    Parameters
    ----------
    state
        The tensors of the adapter's file.
    note_by_key
        The tables of :func:`own_tables`.

    Raises
    ------
    CheckpointError
        If the file has the new rows of only one table.
    """
    embeddings = model.get_input_embeddings()
    head = model.get_output_embeddings()
    n_base_rows = len(embeddings.weight)
    n_rows = max((len(state[key]) for key in note_by_key), default=0)
    if n_rows <= n_base_rows:
        return

    if head is not None and head.weight is not embeddings.weight:
        # For tied tables, one name is enough; otherwise the file must have each of
        # them.
        rows_by_path = {path_of(key): len(state[key]) for key in note_by_key}
        for label, table in (("input embeddings", embeddings), ("output head", head)):
            if _rows_in_file(model, table, rows_by_path) != n_rows:
                problem = (
                    f"its vocabulary has {n_rows - n_base_rows} rows more than the "
                    f"base's, and its file lacks those of the {label}"
                )
                raise CheckpointError(problem, fix=_ALL_ROWS_DIFFER)

    if getattr(head, "bias", None) is not None:
        problem = (
            "its vocabulary has grown, and its head has a bias, whose new numbers "
            "PEFT does not save"
        )
        remedy = "merge it where it was trained, and give the merged folder"
        raise CheckpointError(problem, fix=remedy)
    model.resize_token_embeddings(n_rows, mean_resizing=False)


def _rows_in_file(
    model: PreTrainedModel, table: torch.nn.Module, rows_by_path: Mapping[str, int]
) -> int:
    """Return how many rows an adapter's file has of a table, under any name."""
    counts = [
        rows_by_path.get(f"{path}.weight", 0)
        for path, module in model.named_modules()
        if module is table
    ]
    return max(counts, default=0)


def move_into_base(
    peft: PeftModelForCausalLM,
    state: State,
    wanted: Mapping[str, torch.Tensor],
    note_by_key: Mapping[str, str],
) -> list[str]:
    """Move the base's tables from ``state`` into the base, where they differ.

    Parameters
    ----------
    peft
        The base with the adapter attached.
    state
        Tensors of the adapter's file, changed in place. A tensor stays if it is neither
        a copy nor in ``note_by_key``.
    wanted
        Tensors that PEFT expects for the adapter itself.
    note_by_key
        The tables of :func:`own_tables`.

    Returns
    -------
    list
        Notes for readers of the report.

    Raises
    ------
    CheckpointError
        If two copies of a tied table differ.
    """
    notes = list(note_by_key.values())
    # PEFT would put these into the base, or refuse them.
    unwanted = sorted(state.keys() - wanted.keys())
    if not unwanted:
        return notes

    parameter_places = _parameter_places(peft.get_base_model())
    filled: dict[int, torch.Tensor] = {}
    for key in unwanted:
        if _is_saved_twice(key, state) or _is_copy_of_tied_rows(peft, key, state):
            del state[key]
            continue

        path = path_of(key)
        if path not in parameter_places:
            continue
        module, name = parameter_places[path]
        parameter = module._parameters[name]
        weight = weight_of(module, name)
        if parameter is None or weight is None or weight.shape != state[key].shape:
            continue

        # Remaining tensors are refused by name, because the adapter has no such tensor.
        if key in note_by_key:
            _fill(parameter, state.pop(key), filled)
        elif weight.is_meta or torch.equal(weight, state[key].to(weight)):
            del state[key]
            notes.append(f"{path}: a copy of the base's, unused")
    return notes


def _is_saved_twice(key: str, state: State) -> bool:
    """Return whether the file also has the tensor under its module's own name."""
    plain_key = _SAVED_TWICE.sub(".", key)
    if plain_key == key or plain_key not in state:
        return False
    return _is_equal(state[plain_key], state[key])


def _is_copy_of_tied_rows(peft: PeftModelForCausalLM, key: str, state: State) -> bool:
    """Return whether a head's trained rows are a copy of those of the embeddings.

    PEFT saves them twice if head and embeddings are tied and the vocabulary grew.
    """
    if not key.endswith(_TRAINED_ROWS):
        return False
    layers = dict(peft.named_modules())
    layer = layers.get(key.rpartition(".")[0])
    if getattr(layer, "tied_adapter", None) is None:
        return False

    other_keys = [name for name in state if name.endswith(_TRAINED_ROWS)]
    other_keys.remove(key)
    return len(other_keys) == 1 and _is_equal(state[other_keys[0]], state[key])


def _parameter_places(
    model: PreTrainedModel,
) -> dict[str, tuple[torch.nn.Module, str]]:
    """Return each parameter of the base by name, as its module and its name there.

    A tied parameter occurs under each of its names.
    """
    places: dict[str, tuple[torch.nn.Module, str]] = {}
    for path, module in model.named_modules():
        for name in module._parameters:
            places[path_of(f"{path}.{name}")] = (module, name)
    return places


def _fill(
    parameter: torch.nn.Parameter,
    table: torch.Tensor,
    filled: dict[int, torch.Tensor],
) -> None:
    """Put a table in place of the base's, only once if it is tied.

    Parameters
    ----------
    parameter, table
        Each ``(rows, width)``.
    filled
        Identity of each filled parameter -> its table.
    """
    earlier = filled.setdefault(id(parameter), table)
    if not _is_equal(earlier, table):
        problem = (
            "its file holds two different tables, and its base ties embeddings and "
            "head: which of them counts is not known"
        )
        raise CheckpointError(problem)
    if not parameter.is_meta:
        with torch.no_grad():
            parameter.copy_(table)
