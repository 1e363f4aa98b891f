"""Find the class of transformers that a folder's configuration describes.

This class predicts the next token of a text. Some such classes also read images or
sounds: their encoders are the parts "beside the text", which text does not pass
through.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.checkpoint import entry_device
from spark_audit.checkpoints.tensor_checks import GIVE_OWN_CONFIG
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MOST_BUFFERS = 1 << 28
"""Bytes besides the weights that a configuration may require."""
_MAX_CONTEXT = 1 << 31
"""Tokens from which a context length is no plausible number."""

# Classes around a language model that ``architectures`` may name instead of it.
_AROUND = (
    "AutoModelForCausalLM",
    "AutoModelForCausalLMWithValueHead",
    "OptimizedModule",
)
# FSDP 2 puts this in front of the class name.
_SHARDED = "FSDP"


def empty(
    config: PreTrainedConfig, model_class: type[PreTrainedModel]
) -> PreTrainedModel:
    """Return the module that a configuration describes, on the meta device."""
    with untrusted.foreign("config.json describes no model"), torch.device("meta"):
        return model_class(copy.deepcopy(config))


def read_architecture(
    folder: Path, trusted: bool
) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    """Return a folder's configuration, and the class that predicts text with it.

    The class is the saved one, which ``architectures`` names. For models that also read
    images or sounds it is the whole class, whose forward accepts text alone. If only
    their language model was saved, its own configuration is returned, too.

    Parameters
    ----------
    trusted
        Whether code of the checkpoint may run.

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
        listed = [str(name) for name in getattr(config, "architectures", None) or ()]
        # If a configuration has several language models, none of them is the text's.
        text_config = config.get_text_config()
        context_length = getattr(text_config, "max_position_embeddings", None)
    _check_context_length(context_length)

    # The checkpoint's own code is used only if it is trusted; otherwise it was refused
    # before.
    own_class = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    model_class: type[PreTrainedModel] | None
    if own_class is not None:
        with untrusted.foreign("its own code cannot be loaded"):
            model_class = get_class_from_dynamic_module(
                own_class, folder, local_files_only=True
            )
    else:
        model_class = _class_of(config, listed)
    is_decoder = not getattr(config, "is_encoder_decoder", False)
    if model_class is None or not is_decoder or not hasattr(text_config, "vocab_size"):
        raise _no_language_model(config, listed)

    # As in transformers: a language model that was saved alone, and belongs to a model
    # that also reads images, has its own configuration.
    config_class = getattr(model_class, "config_class", None)
    if own_class is None and config_class is type(text_config):
        quantisation = getattr(config, "quantization_config", None)
        if text_config is not config and quantisation is not None:
            text_config.quantization_config = quantisation
        config = text_config

    _check_buffers(config, model_class)
    return config, model_class


def _check_context_length(length: object) -> None:
    """Refuse a context length that is not a number of tokens; ``None``: not stated."""
    if length is None:
        return
    if type(length) is not int or not 0 <= length < _MAX_CONTEXT:
        problem = "config.json: max_position_embeddings is not a valid context length"
        raise CheckpointError(problem, fix=GIVE_OWN_CONFIG)


def _check_buffers(
    config: PreTrainedConfig, model_class: type[PreTrainedModel]
) -> None:
    """Refuse a configuration that would fill the memory without any weights.

    Tables of positions have the length that it states. On the meta device they cost
    nothing, so they are measured there.
    """
    buffers = empty(config, model_class).buffers()
    n_bytes = sum(buffer.nbytes for buffer in buffers)
    if n_bytes > MOST_BUFFERS:
        problem = f"config.json needs {n_bytes:.3g} bytes beside the weights"
        raise CheckpointError(problem, fix=GIVE_OWN_CONFIG)


def _class_of(
    config: PreTrainedConfig, listed: Sequence[str]
) -> type[PreTrainedModel] | None:
    """Return the class for the names in ``architectures``, by the first that applies.

    ===================================================  ===========================
    ``architectures``                                    class
    ===================================================  ===========================
    is empty                                             the type's for text, else
                                                         for text and other media
    has a class whose configuration is of this type      that class
    has the type's class for text and other media        that class
    has any class for text, or one that wraps such       the type's for text
    has any class for text and other media               the type's for these
    has the type's body alone                            the type's for text: its head
                                                         is tied to its embeddings, or
                                                         is missed by name
    has another class                                    ``None``: it predicts no text
    ===================================================  ===========================
    """
    import transformers
    from transformers.models.auto import modeling_auto

    # Compared by name, because the mappings themselves would import every model.
    causal_names: Mapping[str, str] = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    media_names: Mapping[str, str] = modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    body_names: Mapping[str, object] = modeling_auto.MODEL_MAPPING_NAMES
    masked_names: Mapping[str, str] = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    causal_class: type[PreTrainedModel] | None = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    )
    media_class: type[PreTrainedModel] | None = (
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(config), None)
    )
    if not listed:
        return causal_class or media_class

    # Early LLaMA models were written LLaMAForCausalLM.
    saved_names = {name.removeprefix(_SHARDED).lower() for name in listed}

    def is_saved(names: Iterable[str]) -> bool:
        return any(name.lower() in saved_names for name in names)

    for name in {*causal_names.values(), *media_names.values()}.intersection(listed):
        # No mapping has the type of a language model within a larger model.
        named_class: type[PreTrainedModel] | None = getattr(transformers, name, None)
        if named_class is not None and named_class.config_class is type(config):
            return named_class
    if media_class is not None and is_saved([media_class.__name__]):
        return media_class
    if is_saved([*causal_names.values(), *_AROUND]):
        return causal_class
    if media_class is not None and is_saved(media_names.values()):
        return media_class

    # The body of a type for masked tokens reads ahead, whatever its head is.
    body_name = str(body_names.get(config.model_type))
    if config.model_type not in masked_names and is_saved([body_name]):
        return causal_class
    return None


def _no_language_model(
    config: PreTrainedConfig, listed: Sequence[str]
) -> CheckpointError:
    """Return the error about a model that does not predict the next token."""
    import transformers

    name = shown(listed[0]) if listed else type(config).__name__
    problem = f"{name} is not a causal language model (decoder only)"
    if not listed or hasattr(transformers, listed[0]):
        return CheckpointError(problem)

    problem += f", or unknown to transformers {transformers.__version__}"
    remedy = (
        "if it computes as a class of transformers does, name that class under "
        "architectures in config.json; else merge or convert it into one"
    )
    return CheckpointError(problem, fix=remedy)


def configurations_beside_text(config: PreTrainedConfig) -> list[str]:
    """Return the fields of a configuration for encoders of images or sounds."""
    text_config = config.get_text_config()
    names: list[str] = []
    for name in getattr(config, "sub_configs", None) or ():
        sub_config = getattr(config, name, None)
        if sub_config is None:
            continue
        if sub_config.get_text_config() is not text_config:
            names.append(name)
    return names


def parts_beside_text(model: PreTrainedModel) -> list[str]:
    """Return the names of the parts that text does not pass through.

    They are encoders of images or sounds. An encoder is a whole transformers model
    inside the model. Its configuration is not the text's, and it holds neither the
    text's embeddings nor its head.
    """
    from transformers import PreTrainedModel

    config = model.config
    text_config = config.get_text_config()
    if text_config is config:
        return []

    text_modules = {model.get_input_embeddings(), model.get_output_embeddings()}
    text_modules.discard(None)
    names: list[str] = []
    for name, module in model.named_modules():
        is_inside_of_one = any(name.startswith(f"{outer}.") for outer in names)
        if is_inside_of_one or not isinstance(module, PreTrainedModel):
            continue
        if type(module.config) in (type(config), type(text_config)):
            continue
        if text_modules.isdisjoint(module.modules()):
            names.append(name)
    return names


def drop_parts_beside_text(model: PreTrainedModel) -> None:
    """Free the weights of the parts that text does not pass through.

    A text is run through the model without them. If the class needs them, they stay as
    loaded.

    Raises
    ------
    IncompleteError
        If memory runs out, which says nothing about the class.
    """
    for name in parts_beside_text(model):
        encoder = model.get_submodule(name)
        saved = [
            (module, {**module._parameters}, {**module._buffers})
            for module in encoder.modules()
        ]
        encoder.to("meta")
        if _needs_meta_tensors(model):
            for module, parameters, buffers in saved:
                module._parameters.update(parameters)
                module._buffers.update(buffers)


def _needs_meta_tensors(model: PreTrainedModel) -> bool:
    """Return whether a text's logits depend on tensors of the meta device.

    Raises
    ------
    IncompleteError
        If memory runs out.
    """
    try:
        ids = torch.arange(4, device=entry_device(model))[None]  # (1, 4)
        with torch.inference_mode():
            return bool(model(input_ids=ids, use_cache=False).logits.is_meta)
    # A forward that uses tensors without numbers may raise any error.
    except Exception as error:
        untrusted.refuse_end_of_memory(error)
        return True
