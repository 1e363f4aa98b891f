"""Embeddings and output heads ("tables") that an adapter's file holds beside its own.

PEFT saves them where they were adapted, asked for, or have more rows than the base's,
and fills them into the base when it loads the adapter. So does this: a table that
equals the base's is left out, another one takes its place in a base of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints.loaded import weight_of
from spark_audit.checkpoints.weight_files import PEFT_PREFIX, State
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from peft import PeftModelForCausalLM
    from transformers import PreTrainedModel

# What PEFT puts between a module's name and that of its weight.
_WRAPPER_NAME = re.compile(r"\.(?:(?:token_adapter\.)?base_layer|original_module)\.")
# Tensors of adapters of any type.
_OF_ADAPTER = re.compile(r"\.(?:lora_|loranew_|ia3_|hada_|lokr_|vera_|osf_|oft_)")
_SAVED_TWICE = re.compile(r"\.modules_to_save\.(?=[^.]+$)")
_TRAINED_ROWS = ".token_adapter.trainable_tokens_delta"
LEAST_LIKENESS = 0.5
"""Cosine of two tables, all rows together, below which training did not make one of
the other: rows that were trained stay near 1, those of another model are near 0."""
_ROWS_AT_ONCE = 4096
_ALL_ROWS_DIFFER = (
    "save the adapter again with model.save_pretrained(FOLDER, "
    "save_embedding_layers=True), or merge it where it was trained"
)


def path_of(key: str) -> str:
    """Return the name of the tensor in the base that PEFT's key stands for."""
    return _WRAPPER_NAME.sub(".", key.removeprefix(PEFT_PREFIX))


def own_tables(
    state: State,
    *,
    saved_apart: object,
    read_base: Callable[[], State],
    base_rows: int | None,
) -> dict[str, str]:
    """Map the tables of an adapter's file that are not its base's to a note on each.

    Parameters
    ----------
    state
        The tensors of the adapter's file.
    saved_apart
        ``modules_to_save`` of its configuration.
    read_base
        Reads the tensors of the base; called only where the file has a table.
    base_rows
        Rows of the base's embeddings, if its configuration says so.

    Raises
    ------
    CheckpointError
        If a table is one of another model.
    """
    names = tuple(saved_apart) if isinstance(saved_apart, list) else ()
    found: dict[str, str] = {}
    base: State = {}
    for key, tensor in state.items():
        if not key.endswith(".weight") or tensor.ndim != 2 or _OF_ADAPTER.search(key):
            continue
        if _SAVED_TWICE.search(key):
            continue
        base = base or read_base()
        own = _twin(path_of(key), base, base_rows)
        if own is None or own.shape[1:] != tensor.shape[1:] or _is_equal(tensor, own):
            continue
        module = path_of(key).removesuffix(".weight")
        is_kept_apart = bool(names) and module.endswith(names)
        if is_kept_apart and tensor.shape == own.shape:
            continue  # PEFT keeps it beside the base's
        _check_related(key, tensor, own)
        found[key] = _note(path_of(key), tensor, own)
    return found


def _twin(path: str, base: State, base_rows: int | None) -> torch.Tensor | None:
    """Return the base's tensor of this name, or its embeddings for a tied head."""
    for name, tensor in base.items():
        # Files may leave out the name of the body in front, or have one more.
        ends_alike = path.endswith(f".{name}") or name.endswith(f".{path}")
        if path == name or ends_alike:
            return tensor
    tables = (t for t in base.values() if t.ndim == 2 and len(t) == base_rows)
    return next(tables, None)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    wide = torch.promote_types(one.dtype, other.dtype)
    return torch.equal(one.to(wide), other.to(wide))


def _rows_of_both(
    one: torch.Tensor, other: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield some of the rows that both have at a time, in float32."""
    count = min(len(one), len(other))
    for start in range(0, count, _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, count))
        yield one[rows].float(), other[rows].float()


def _check_related(key: str, given: torch.Tensor, own: torch.Tensor) -> None:
    """Refuse a table whose rows have nothing to do with the base's."""
    product = given_square = own_square = 0.0
    for some, theirs in _rows_of_both(given, own):
        product += float((some * theirs).sum())
        given_square += float(some.square().sum())
        own_square += float(theirs.square().sum())
    if not product > LEAST_LIKENESS * (given_square * own_square) ** 0.5:
        what = f"adapter tensor {shown(key)} is unlike the base's own: it was trained "
        what += "on another base"
        fix = "give the model that it was trained on by --base"
        raise CheckpointError(what, fix=fix)


def _note(path: str, given: torch.Tensor, own: torch.Tensor) -> str:
    """Say which rows are the adapter's own."""
    pairs = _rows_of_both(given, own)
    changed = sum(int((some != theirs).any(1).sum()) for some, theirs in pairs)
    note = f"{path}: the adapter's own, in place of the base's "
    note += f"({changed} of {len(own)} rows differ"
    if (more := len(given) - len(own)) > 0:
        note += f", {more} more"
    return f"{note})"


def grow(
    model: PreTrainedModel, state: Mapping[str, torch.Tensor], given: Mapping[str, str]
) -> None:
    """Give a base as many rows of embeddings and head as an adapter's file has.

    Parameters
    ----------
    state, given
        The tensors of the adapter's file, and those of :func:`own_tables`. New rows
        hold anybody's numbers until they are filled in.

    Raises
    ------
    CheckpointError
        If the file has the new rows of one table, and not those of the other.
    """
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    own_rows = len(embeddings.weight)
    most = max((len(state[key]) for key in given), default=0)
    if most <= own_rows:
        return
    rows_by_path = {path_of(key): len(state[key]) for key in given}
    tables = {"input embeddings": embeddings, "output head": head}
    if head is None or head.weight is embeddings.weight:
        tables = {"input embeddings": embeddings}
    for place, table in tables.items():
        rows = [
            rows_by_path.get(f"{path}.weight", 0)
            for path, module in model.named_modules()
            if module is table
        ]
        # Tied, either name gives both.
        there = most if len(tables) == 1 else max(rows, default=0)
        if there != most:
            what = f"its vocabulary has {most - own_rows} rows more than the base's, "
            what += f"and its file lacks those of the {place}"
            raise CheckpointError(what, fix=_ALL_ROWS_DIFFER)
    if getattr(head, "bias", None) is not None:
        what = "its vocabulary has grown, and its head has a bias, whose new numbers "
        fix = "merge it where it was trained, and give the merged folder"
        raise CheckpointError(f"{what}PEFT does not save", fix=fix)
    model.resize_token_embeddings(most, mean_resizing=False)


def take(
    peft: PeftModelForCausalLM,
    state: State,
    wanted: Mapping[str, torch.Tensor],
    given: Mapping[str, str],
) -> list[str]:
    """Take what belongs to the base out of ``state``; fill in what is not the base's.

    Parameters
    ----------
    peft
        The base with the adapter attached.
    state
        Of the adapter's file; what is neither a copy nor one of ``given`` stays.
    wanted
        What PEFT takes for the adapter itself.
    given
        The tables of :func:`own_tables`.

    Returns
    -------
    list
        Notes.

    Raises
    ------
    CheckpointError
        If two copies of a tied table differ.
    """
    notes = [given[key] for key in given]
    unwanted = sorted(state.keys() - wanted.keys())
    if not unwanted:
        return notes

    places = _places(peft.get_base_model())
    filled: dict[int, torch.Tensor] = {}
    for key in unwanted:
        once = _SAVED_TWICE.sub(".", key)
        if once != key and once in state and _is_equal(state[once], state[key]):
            del state[key]
            continue
        if _is_copy_of_tied_rows(peft, key, state):
            del state[key]
            continue
        module, name = places.get(path_of(key), (None, ""))
        if module is None:
            continue
        parameter = module._parameters[name]
        own = weight_of(module, name)
        if parameter is None or own is None or own.shape != state[key].shape:
            continue
        if key in given:
            tensor = state.pop(key)
            _fill(parameter, tensor, filled)
        elif own.is_meta or torch.equal(own, state[key].to(own)):
            del state[key]
            notes.append(f"{path_of(key)}: a copy of the base's, unused")
    return notes


def _is_copy_of_tied_rows(peft: PeftModelForCausalLM, key: str, state: State) -> bool:
    """Whether rows that were trained are those of the embeddings, saved for the head.

    PEFT saves them twice where head and embeddings are tied and the vocabulary grew.
    """
    if not key.endswith(_TRAINED_ROWS):
        return False
    layers = dict(peft.named_modules())
    layer = layers.get(key.rpartition(".")[0])
    if getattr(layer, "tied_adapter", None) is None:
        return False
    others = [name for name in state if name.endswith(_TRAINED_ROWS) and name != key]
    return len(others) == 1 and _is_equal(state[others[0]], state[key])


def _places(model: PreTrainedModel) -> dict[str, tuple[torch.nn.Module, str]]:
    """Map the name of each of the base's parameters to its module and name there.

    Each name of a tied parameter is there.
    """
    places: dict[str, tuple[torch.nn.Module, str]] = {}
    for path, module in model.named_modules():
        for name in module._parameters:
            places[path_of(f"{path}.{name}")] = (module, name)
    return places


def _fill(
    parameter: torch.nn.Parameter,
    given: torch.Tensor,
    filled: dict[int, torch.Tensor],
) -> None:
    """Put a table in the place of the base's, once where it is tied."""
    before = filled.setdefault(id(parameter), given)
    if not _is_equal(before, given):
        what = "its file holds two different tables, and its base ties embeddings and "
        raise CheckpointError(f"{what}head: which of them counts is not known")
    if not parameter.is_meta:
        with torch.no_grad():
            parameter.copy_(given)
