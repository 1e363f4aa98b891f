"""The class of transformers that a folder's configuration describes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.loaded import entry_device
from spark_audit.checkpoints.weight_files import ITS_OWN
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MOST_BUFFERS = 1 << 28

# Classes around a language model that stand in ``architectures`` in its place.
_AROUND = (
    "AutoModelForCausalLM",
    "AutoModelForCausalLMWithValueHead",
    "OptimizedModule",
)
# FSDP 2 puts this in front of the name of the class.
_SHARDED = "FSDP"


def empty(config: PreTrainedConfig, cls: type[PreTrainedModel]) -> PreTrainedModel:
    """The module as the configuration has it, on the meta device."""
    with untrusted.foreign("config.json describes no model"), torch.device("meta"):
        return cls(copy.deepcopy(config))


def read_architecture(
    folder: Path, trusted: bool
) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    """A folder's configuration, and the class that predicts the next token of a text.

    The class is the one that was saved, as ``architectures`` names it. Of classes that
    also read images or sounds it is the whole class, whose forward takes text alone;
    where only their language model was saved, its own configuration comes with it.

    Parameters
    ----------
    trusted
        Whether code that comes with it may run.

    Raises
    ------
    CheckpointError
        If it is another kind of model, by name, or unknown to transformers.
    """
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    with untrusted.foreign("config.json is not understood"):
        config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
        listed = [*map(str, getattr(config, "architectures", None) or ())]
        # Where several language models lie in one, none is the text's.
        text_config = config.get_text_config()
        limit = getattr(text_config, "max_position_embeddings", None)
    if limit is not None and (type(limit) is not int or not 0 <= limit < 1 << 31):
        what = "config.json says max_position_embeddings, but no length of a context"
        raise CheckpointError(what, fix=ITS_OWN)

    # Code of its own runs only where that is trusted: else it was refused before.
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if own is not None:
        with untrusted.foreign("its own code cannot be loaded"):
            cls = get_class_from_dynamic_module(own, folder, local_files_only=True)
    else:
        cls = _class_of(config, listed)
    is_causal = not getattr(config, "is_encoder_decoder", False)
    if cls is None or not is_causal or not hasattr(text_config, "vocab_size"):
        raise _no_language_model(config, listed)

    # As transformers does it: the language model alone has a configuration of its own.
    if own is None and getattr(cls, "config_class", None) is type(text_config):
        quantisation = getattr(config, "quantization_config", None)
        if text_config is not config and quantisation is not None:
            text_config.quantization_config = quantisation
        config = text_config

    # Tables of positions are as long as the configuration says: memory that no weights
    # back. On the meta device they cost nothing.
    size = sum(table.nbytes for table in empty(config, cls).buffers())
    if size > MOST_BUFFERS:
        what = f"config.json needs {size:.3g} bytes beside the weights"
        raise CheckpointError(what, fix=ITS_OWN)
    return config, cls


def _class_of(
    config: PreTrainedConfig, listed: Sequence[str]
) -> type[PreTrainedModel] | None:
    """The class for the names in ``architectures``; ``None`` if it predicts no text."""
    import transformers
    from transformers.models.auto import modeling_auto

    # By name: the mappings themselves would import every model there is.
    causal_names: Mapping[str, str] = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    media_names: Mapping[str, str] = modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    body_names: Mapping[str, object] = modeling_auto.MODEL_MAPPING_NAMES
    masked_names: Mapping[str, str] = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    causal: type[PreTrainedModel] | None = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    )
    media: type[PreTrainedModel] | None = (
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(config), None)
    )
    # Early LLaMA was written LLaMAForCausalLM.
    saved = {name.removeprefix(_SHARDED).lower() for name in listed}

    def is_saved(names: Sequence[str]) -> bool:
        return not saved.isdisjoint(map(str.lower, names))

    if not listed:
        return causal or media
    for name in {*causal_names.values(), *media_names.values()}.intersection(listed):
        # Of a language model that lies in a larger one no mapping has the type.
        named: type[PreTrainedModel] | None = getattr(transformers, name, None)
        if named is not None and named.config_class is type(config):
            return named
    if media is not None and is_saved([media.__name__]):
        return media
    if is_saved([*causal_names.values(), *_AROUND]):
        return causal
    if media is not None and is_saved([*media_names.values()]):
        return media
    # The body alone: its head is tied to its embeddings, or is missed by name.
    body = body_names.get(config.model_type)
    if config.model_type not in masked_names and is_saved([str(body)]):
        return causal
    return None


def _no_language_model(
    config: PreTrainedConfig, listed: Sequence[str]
) -> CheckpointError:
    import transformers

    name = shown(listed[0]) if listed else type(config).__name__
    what = f"{name} is not a causal language model (decoder only)"
    fix = None
    if listed and not hasattr(transformers, listed[0]):
        what += f", or unknown to transformers {transformers.__version__}"
        fix = "if it computes as a class of transformers does, name that class under "
        fix += "architectures in config.json; else merge or convert it into one"
    return CheckpointError(what, fix=fix)


def configurations_beside_text(config: PreTrainedConfig) -> list[str]:
    """Fields of a configuration that describe encoders of images or sounds."""
    text_config = config.get_text_config()
    names = []
    for name in getattr(config, "sub_configs", None) or ():
        part = getattr(config, name, None)
        if part is not None and part.get_text_config() is not text_config:
            names.append(name)
    return names


def parts_beside_text(model: PreTrainedModel) -> list[str]:
    """Names of the parts that text does not pass through: encoders of images or sounds.

    They are whole models of transformers in the model, with a configuration that is not
    the text's, and hold neither its embeddings nor its head.
    """
    from transformers import PreTrainedModel

    config = model.config
    text_config = config.get_text_config()
    if text_config is config:
        return []
    of_text = {model.get_input_embeddings(), model.get_output_embeddings()}
    of_text.discard(None)
    found: list[str] = []
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{above}.") for above in found)
        if is_inside or not isinstance(module, PreTrainedModel):
            continue
        if type(module.config) in (type(config), type(text_config)):
            continue
        if of_text.isdisjoint(module.modules()):
            found.append(name)
    return found


def drop_parts_beside_text(model: PreTrainedModel) -> None:
    """Free the weights of the parts that text does not pass through.

    A text is put through the model without them. Where its class looks at them, they
    stay as they were loaded.

    Raises
    ------
    IncompleteError
        If memory ends meanwhile: that says nothing about the class.
    """
    for name in parts_beside_text(model):
        part = model.get_submodule(name)
        tensors = [
            (module, {**module._parameters}, {**module._buffers})
            for module in part.modules()
        ]
        part.to("meta")
        try:
            ids = torch.arange(4, device=entry_device(model))[None]
            with torch.inference_mode():
                needs_part = model(input_ids=ids, use_cache=False).logits.is_meta
        # A forward that meets tensors without numbers may raise anything.
        except Exception as error:
            untrusted.refuse_end_of_memory(error)
            needs_part = True
        if needs_part:
            for module, parameters, buffers in tensors:
                module._parameters.update(parameters)
                module._buffers.update(buffers)
