"""Rename an adapter's layers if it was trained on another class of its base.

A model that also reads images holds its language model as ``model.language_model``. If
it was trained as the text class alone, the same layers are ``model.layers``. An adapter
for one fits the other if its names differ only in front of the layers, and if the
renamed layers exist.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from spark_audit.checkpoints.adapter_config import adapter_type
from spark_audit.checkpoints.tables import path_of
from spark_audit.checkpoints.tensor_checks import State
from spark_audit.checkpoints.weight_files import PEFT_PREFIX

_RENAMED_TYPES = ("LORA", "IA3", "LOHA", "LOKR")
# Where the adapter's own part of a tensor's name begins.
_ADAPTER_PART = re.compile(r"\.(?:lora|ia3|hada|lokr)_")
# What stands in front of "layers.0." in the name of a module, such as "model.".
_FRONT_OF_LAYERS = re.compile(r"(?P<front>(?:\w+\.)*?)layers\.\d+\.")
# Fields that select modules by patterns; the renamed adapter lists its modules instead.
_SELECTING_FIELDS = ("exclude_modules", "layers_to_transform", "layers_pattern")
_PATTERN_FIELDS = ("rank_pattern", "alpha_pattern")


@dataclass(frozen=True)
class NamedAdapter:
    """An adapter's configuration and tensors, with the names of a base.

    Attributes
    ----------
    config, state
        Its configuration and its tensors.
    new_keys
        Old key of a tensor -> new key, where they differ.
    notes
        Notes for readers of the report.
    """

    config: dict[str, object]
    state: State
    new_keys: Mapping[str, str]
    notes: list[str]


def front_of_decoder(
    modules: Mapping[str, torch.nn.Module], embeddings: torch.nn.Module
) -> str | None:
    """Return the prefix of ``layers`` in the names of a model's decoder.

    The decoder is the module that holds both the input embeddings and the layers.

    Parameters
    ----------
    modules
        All modules of the model by name, with the model itself under the empty name.
    embeddings
        The input embeddings.
    """
    for name, module in modules.items():
        children = module._modules
        holds_embeddings = any(child is embeddings for child in children.values())
        if "layers" in children and holds_embeddings:
            return f"{name}." if name else ""
    return None


def named_as_in_base(
    config: dict[str, object],
    state: State,
    *,
    modules: Collection[str],
    decoder_front: str | None,
) -> NamedAdapter:
    """Return an adapter with the names of its base; unchanged if it does not fit.

    Parameters
    ----------
    config, state
        The content of the adapter's adapter_config.json, and its tensors.
    modules
        Names of the base's modules, without adapters.
    decoder_front
        The result of :func:`front_of_decoder` for the base.
    """
    unchanged = NamedAdapter(config, state, {}, [])
    # Repeated layers and single tensors are selected in other ways.
    if config.get("layer_replication") or config.get("target_parameters"):
        return unchanged
    if adapter_type(config) not in _RENAMED_TYPES or decoder_front is None:
        return unchanged

    # All names that the base lacks must have one prefix in front of the layers.
    base_modules = set(modules)
    module_by_key = {key: _module_of(key) for key in state}
    unknown = {path for path in module_by_key.values() if path not in base_modules}
    matches = [_FRONT_OF_LAYERS.match(path) for path in unknown]
    fronts = {match["front"] for match in matches if match is not None}
    if len(fronts) != 1:
        return unchanged

    # With the base's prefix instead, each must be a module of the base.
    (front,) = fronts
    new_path = {path: decoder_front + path.removeprefix(front) for path in unknown}
    has_front = all(path.startswith(front) for path in unknown)
    if not has_front or not base_modules.issuperset(new_path.values()):
        return unchanged

    new_keys: dict[str, str] = {}
    adapted: set[str] = set()
    for key, path in module_by_key.items():
        if path in new_path:
            name_in_decoder = key.removeprefix(PEFT_PREFIX + front)
            new_keys[key] = PEFT_PREFIX + decoder_front + name_in_decoder
        if _ADAPTER_PART.search(key):
            adapted.add(path)

    note = (
        f"the adapter was trained on another class of its base: its {front}layers "
        f"are {decoder_front}layers here, one to one"
    )
    renamed = {new_keys.get(key, key): tensor for key, tensor in state.items()}
    new_config = _renamed_config(config, adapted, new_path)
    return NamedAdapter(new_config, renamed, new_keys, [note])


def _renamed_config(
    config: dict[str, object], adapted: Collection[str], new_path: Mapping[str, str]
) -> dict[str, object]:
    """Return a configuration that lists its modules by their new names.

    Parameters
    ----------
    adapted
        Old names of the modules with an adapter.
    new_path
        Old name -> new name, where they differ.
    """
    targets = sorted(new_path.get(path, path) for path in adapted)
    new_config: dict[str, object] = {**config, "target_modules": targets}
    for name in _SELECTING_FIELDS:
        new_config.pop(name, None)
    for name in _PATTERN_FIELDS:
        values = config.get(name)
        if isinstance(values, dict) and values:
            new_config[name] = _values_by_module(values, adapted, new_path)
    return new_config


def _module_of(key: str) -> str:
    """Return the module's name for a tensor of an adapter's file."""
    path = path_of(key)
    adapter_part = _ADAPTER_PART.search(path)
    if adapter_part is not None:
        return path[: adapter_part.start()]
    return path.rpartition(".")[0]


def _values_by_module(
    values_by_pattern: Mapping[str, object],
    adapted: Collection[str],
    new_path: Mapping[str, str],
) -> dict[str, object]:
    """Return the ranks or alphas of modules, by their new names.

    Patterns may contain old names, so each module gets the value that PEFT would choose
    by its old name.
    """
    from peft.utils.other import get_pattern_key

    # A list of modules replaces the patterns.
    values: dict[str, object] = {}
    for path in sorted(adapted):
        pattern = get_pattern_key(list(values_by_pattern), path)
        if pattern in values_by_pattern:
            values[new_path.get(path, path)] = values_by_pattern[pattern]
    return values
