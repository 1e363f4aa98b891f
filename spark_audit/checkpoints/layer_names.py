"""Names of an adapter's layers where it was trained on another class of its base.

A model that also reads images holds its language model as ``model.language_model``;
trained as the text class alone, the same layers are ``model.layers``. An adapter of one
is the other's if its names differ in front of the layers only, and each of its layers
is then there.
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
_ADAPTER_PART = re.compile(r"\.(?:lora|ia3|hada|lokr)_")
_FRONT_OF_LAYERS = re.compile(r"(?P<front>(?:\w+\.)*?)layers\.\d+\.")
# Fields that name modules by patterns; the renamed adapter lists its modules instead.
_SELECTING_FIELDS = ("exclude_modules", "layers_to_transform", "layers_pattern")
_PATTERN_FIELDS = ("rank_pattern", "alpha_pattern")


@dataclass(frozen=True)
class NamedAdapter:
    """An adapter's configuration and tensors by the names of a base.

    Attributes
    ----------
    config, state
        Its configuration and its tensors.
    new_keys
        Keys of tensors as its file has them -> as ``state`` has them, where they
        differ.
    notes
        What a reader of the report must know.
    """

    config: dict[str, object]
    state: State
    new_keys: Mapping[str, str]
    notes: list[str]


def front_of_decoder(
    modules: Mapping[str, torch.nn.Module], embeddings: torch.nn.Module
) -> str | None:
    """Return what stands in front of ``layers`` in a model's names of its decoder.

    The decoder is the module that holds both the input embeddings and the layers.

    Parameters
    ----------
    modules
        All modules of the model by name, the model itself by the empty one.
    embeddings
        Those of its input.
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
    """Return an adapter by the names of its base; unchanged if that does not fit.

    Parameters
    ----------
    config, state
        The content of the adapter's adapter_config.json, and its tensors.
    modules
        Names of the base's modules, without adapters.
    decoder_front
        As :func:`front_of_decoder` finds it in the base.
    """
    unchanged = NamedAdapter(config, state, {}, [])
    # Layers that are repeated, and single tensors, are selected in other ways.
    if config.get("layer_replication") or config.get("target_parameters"):
        return unchanged
    if adapter_type(config) not in _RENAMED_TYPES or decoder_front is None:
        return unchanged

    # All names that the base lacks must begin alike in front of the layers.
    base_modules = set(modules)
    module_by_key = {key: _module_of(key) for key in state}
    unknown = {path for path in module_by_key.values() if path not in base_modules}
    matches = [_FRONT_OF_LAYERS.match(path) for path in unknown]
    fronts = {match["front"] for match in matches if match is not None}
    if len(fronts) != 1:
        return unchanged

    # With the base's front in that place, each must be a module of the base.
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
        The modules that have an adapter, by their old names.
    new_path
        Old names -> new ones, where they differ.
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
    """Return the name of the module that a tensor of an adapter's file belongs to."""
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
    """Return the ranks or alphas of modules by their new names.

    A pattern may hold the old ones, so each module gets the value that PEFT would
    choose for it by its old name.
    """
    from peft.utils.other import get_pattern_key

    # Listed module by module, in the place of patterns.
    values: dict[str, object] = {}
    for path in sorted(adapted):
        pattern = get_pattern_key(list(values_by_pattern), path)
        if pattern in values_by_pattern:
            values[new_path.get(path, path)] = values_by_pattern[pattern]
    return values
