"""A checkpoint that is ready to be scored, from files or in memory.

Those of files are made in ``open.py``, and models in memory in ``in_memory.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spark_audit.cells_html import facts_html, short_repr
from spark_audit.checkpoints.tokenizer import usable_rows
from spark_audit.provenance import sha256_json

if TYPE_CHECKING:
    from accelerate.hooks import AlignDevicesHook
    from peft import PeftConfig
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

    from spark_audit.checkpoints.server import Server
    from spark_audit.checkpoints.specs import Loading
    from spark_audit.results.training import TrainingFacts


SIZE_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
)
"""Sizes of a model's tensors in a configuration, except the vocabulary."""


@dataclass(frozen=True)
class Origin:
    """How an open checkpoint was opened, so that an adapter can be put on its module.

    Attributes
    ----------
    typed_path
        Its path, as it was given.
    loading
        The options with which it was opened.
    host
        The module, an :class:`~spark_audit.checkpoints.adapters.AdapterHost`.
    """

    typed_path: str
    loading: Loading
    host: Any


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """A checkpoint ready to be scored.

    Attributes
    ----------
    name
        Its name in reports.
    source
        The user's path, without parent folders.
    format
        Name of the format that opened it; ``live`` for a model in memory.
    base
        Name of the base for adapters, else ``None``.
    base_sha256
        Hash of the base's weights and config for adapters (and for a checkpoint that
        is the base itself), ``None`` for full weights whose base is unknown.
    model
        The module; for adapters the shared base with this adapter attached.
    tokenizer
        A fast tokenizer.
    architecture
        Name of the model's class.
    usable
        Shape ``(V,)`` bool over the rows of the output head: ids that are tokens
        (padded embedding rows are not).
    max_positions
        Context length in tokens, ``None`` when the model states none.
    dtype, device
        Those in which and on which it computes, such as ``float32`` and ``cuda:0``.
    weights_sha256
        Hash of the weights and configuration files; for an adapter, of its own.
    tokenizer_sha256
        Hash of its tokenizer, without truncation and padding.
    model_id
        Hash of everything a score depends on besides the token ids.
    parameters
        Number of the model's parameters, without an adapter's; ``None``: unknown.
    notes
        Notes for readers of the report (decisions during loading).
    quantised_from
        Name of the checkpoint whose weights were rounded.
    relearned_from
        Name of the checkpoint before its short training on other rows.
    training
        What it was trained with, if it is of a run of spark-train.
    served
        The server that scores it. Its scores must agree with ``model``.
    grown_from
        Hash of its base's tokenizer, if its own is that one with tokens added.
    added
        Shape ``(V,)`` bool: rows that are tokens here but not in the base; they are not
        ``usable``.
    repeats_layers
        Whether its adapter repeats layers of the base.
    on_base
        The base on the same module, for an adapter that shares it.
    origin
        How it was opened from files; ``None``: a model in memory.
    activate
        Switches the module to this checkpoint, see :meth:`active`.

    Examples
    --------
    >>> checkpoint = sa.open_checkpoint("models/base", name="base")
    >>> checkpoint.name, checkpoint.dtype
    ('base', 'float32')
    """

    name: str
    source: str
    format: str
    model: torch.nn.Module = field(repr=False)
    tokenizer: PreTrainedTokenizerFast = field(repr=False)
    architecture: str
    usable: np.ndarray = field(repr=False)
    max_positions: int | None
    dtype: str
    device: str
    weights_sha256: str
    tokenizer_sha256: str
    model_id: str
    parameters: int | None = None
    base: str | None = None
    base_sha256: str | None = None
    notes: tuple[str, ...] = ()
    quantised_from: str | None = None
    relearned_from: str | None = None
    training: TrainingFacts | None = field(default=None, repr=False)
    served: Server | None = None
    grown_from: str | None = None
    added: np.ndarray | None = field(default=None, repr=False)
    repeats_layers: bool = False
    on_base: Checkpoint | None = field(default=None, repr=False)
    origin: Origin | None = field(default=None, repr=False)
    activate: Callable[[], AbstractContextManager[None]] = field(
        default=nullcontext, repr=False
    )

    def __repr__(self) -> str:
        return short_repr(
            self,
            self.name,
            source=self.source,
            format=self.format,
            base=self.base,
            dtype=self.dtype,
            device=self.device,
            weights=self.weights_sha256[:12],
        )

    def _repr_html_(self) -> str:
        """Return what it is as a notebook shows it."""
        facts = {
            "source": self.source,
            "format": self.format,
            "base": self.base,
            "architecture": self.architecture,
            "parameters": self.parameters,
            "context, tokens": self.max_positions,
            "dtype": self.dtype,
            "device": self.device,
            "weights, SHA-256": self.weights_sha256[:12],
        }
        note = " ".join(self.notes)
        return facts_html(f"Checkpoint {self.name}", facts, note=note)

    @property
    def shape(self) -> dict[str, int]:
        """The sizes in the model's configuration, by name."""
        config: PreTrainedConfig = getattr(self.model, "config", None)
        text_config = None
        if hasattr(config, "get_text_config"):
            text_config = config.get_text_config()

        sizes: dict[str, int] = {}
        for name in SIZE_FIELDS:
            # Repeated layers change the number of layers, so it need not equal the
            # base's.
            if name == "num_hidden_layers" and self.repeats_layers:
                continue
            size = getattr(text_config, name, None)
            if type(size) is int:
                sizes[name] = size
        return sizes

    @property
    def scored_tokenizer_sha256(self) -> str:
        """The hash of the tokenizer whose tokens are scored: its own or its base's."""
        return self.grown_from or self.tokenizer_sha256

    def has_rows_of(self, vocabulary: str, rows: int) -> bool:
        """Return whether it has all rows of a head with this tokenizer, or more.

        Parameters
        ----------
        vocabulary
            Hash of the tokenizer.
        """
        return self.scored_tokenizer_sha256 == vocabulary and len(self.usable) >= rows

    def is_on(self, host: object) -> bool:
        """Return whether it was opened on this module."""
        return self.origin is not None and self.origin.host is host

    def without_weights(self) -> Checkpoint:
        """Return everything but the weights, for a process that does not score it."""
        described: Any = torch.nn.Module()
        described.config = getattr(self.model, "config", None)
        return replace(
            self, model=described, activate=nullcontext, on_base=None, origin=None
        )

    @contextmanager
    def active(self) -> Iterator[torch.nn.Module]:
        """Yield the module with exactly this checkpoint switched on, in eval mode."""
        with self.activate(), torch.inference_mode():
            # A model in memory gets its own mode back when it is deactivated.
            self.model.eval()
            yield self.model


@dataclass(frozen=True)
class ModuleFacts:
    """The properties of a module alone; the fields are those of :class:`Checkpoint`."""

    architecture: str
    usable: np.ndarray
    max_positions: int | None
    dtype: str


def module_facts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    adapter: PeftConfig | None = None,
) -> ModuleFacts:
    """Return the properties of a module alone.

    Parameters
    ----------
    adapter
        PEFT's configuration of the adapter on it.
    """
    # A prompt's virtual tokens take positions of the context.
    limit = max_positions(model.config)
    if limit is not None and adapter is not None and adapter.is_prompt_learning:
        limit -= adapter.num_virtual_tokens

    return ModuleFacts(
        architecture=type(model).__name__,
        usable=usable_rows(tokenizer, head_rows(model)),
        max_positions=limit,
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
    )


def max_positions(config: PreTrainedConfig) -> int | None:
    """Return the context length, ``None`` when the configuration states none."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or None


def end_token_ids(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> frozenset[int]:
    """Return all end ids of a model's settings and of the tokenizer."""
    settings = (
        model.config,
        model.config.get_text_config(),
        getattr(model, "generation_config", None),
        tokenizer,
    )

    end_ids: set[int] = set()
    for holder in settings:
        # The value may be one id, a list of ids, or missing.
        ids = getattr(holder, "eos_token_id", None)
        listed = ids if isinstance(ids, list | tuple) else [ids]
        end_ids.update(int(token_id) for token_id in listed if token_id is not None)
    return frozenset(end_ids)


def served_by(local: Checkpoint, server: Server, *, note: str) -> Checkpoint:
    """Return a local checkpoint as the one that a server scores."""
    identity = {"server": server.url, "model": server.model, "here": local.model_id}
    return replace(
        local,
        source=f"{server.model} at {server.url}",
        format="server",
        model_id=sha256_json(identity),
        served=server,
        notes=(*local.notes, note),
    )


def head_rows(model: PreTrainedModel) -> int:
    """Return the number of rows of the output head."""
    weight = getattr(model.get_output_embeddings(), "weight", None)  # (rows, width)
    if weight is None:
        return int(model.config.get_text_config().vocab_size)
    return int(weight.shape[0])


def entry_device(model: PreTrainedModel) -> torch.device:
    """Return the device on which a model expects token ids."""
    embeddings = model.get_input_embeddings()
    # In a spread model, weights may be stored elsewhere than they compute.
    device = getattr(offload_hook(embeddings), "execution_device", None)
    return torch.device(embeddings.weight.device if device is None else device)


def offload_hook(layer: torch.nn.Module) -> AlignDevicesHook | None:
    """Return accelerate's hook that loads a layer's weights, if it has one."""
    # A layer has one hook or a sequence of hooks.
    hook = getattr(layer, "_hf_hook", None)
    for candidate in (hook, *getattr(hook, "hooks", ())):
        if hasattr(candidate, "execution_device"):
            return candidate
    return None


def weight_of(layer: torch.nn.Module, name: str = "weight") -> torch.Tensor | None:
    """Return a layer's tensor, from memory or disk; ``None`` if it has none.

    Parameters
    ----------
    name
        Name of the tensor in the layer; any shape.
    """
    tensor: torch.Tensor | None = getattr(layer, name, None)
    if tensor is None:
        return None

    hook = offload_hook(layer)
    weights_map = getattr(hook, "weights_map", None)
    # If it is on the meta device here, the hook's map has its numbers.
    if hook is not None and tensor.is_meta and weights_map is not None:
        tensor = weights_map[name].to(hook.execution_device)
    return tensor.detach()


def offloaded(model: PreTrainedModel) -> bool:
    """Return whether some weights are loaded from CPU or disk at each use."""
    return any(
        getattr(offload_hook(layer), "offload", False) for layer in model.modules()
    )
