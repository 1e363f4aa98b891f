"""The plain data of this folder: what was given, how it is put together, what comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spark_audit.checkpoints.specs import Loading

if TYPE_CHECKING:
    from spark_audit.checkpoints.server import Server

State = dict[str, torch.Tensor]
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
)
"""What a configuration says of a model's tensors, vocabulary apart."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint ready to be scored.

    Attributes
    ----------
    name
        What reports call it.
    source
        What the user gave, without folders above it.
    format
        Registry name of the format that opened it.
    base
        Name of the base for adapters, else ``None``.
    base_sha256
        Hash of the base's weights and config for adapters (and for a checkpoint that
        is the base itself), ``None`` for full weights whose base is unknown.
    model
        The module; for adapters the shared base with this adapter attached.
    tokenizer
        A fast tokenizer.
    usable
        Shape ``(V,)`` bool over the rows of the output head: ids that are tokens
        (padded embedding rows are not).
    max_positions
        Context length, ``None`` when the model states none.
    weights_sha256
        Hash of the weights and config files; for an adapter of its own.
    model_id
        Hash of everything a score depends on besides the token ids.
    notes
        What a reader of the report must know (decisions taken while loading).
    quantised_from
        Name of the checkpoint that this is with rounded weights.
    served
        The server that scores it; ``model`` is then what its scores must agree with.
    """

    name: str
    source: str
    format: str
    base: str | None
    base_sha256: str | None
    model: torch.nn.Module = field(repr=False)
    tokenizer: Any = field(repr=False)
    architecture: str
    usable: np.ndarray = field(repr=False)
    max_positions: int | None
    dtype: str
    device: str
    weights_sha256: str
    tokenizer_sha256: str
    model_id: str
    notes: tuple[str, ...] = ()
    quantised_from: str | None = None
    served: Server | None = None
    activate: Callable[[], AbstractContextManager[None]] = field(
        default=nullcontext, repr=False
    )

    @property
    def shape(self) -> dict[str, int]:
        """Sizes that the model's configuration states, by their names there."""
        config: Any = getattr(self.model, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else None
        sizes = {name: getattr(text, name, None) for name in SIZES}
        return {name: size for name, size in sizes.items() if type(size) is int}

    def without_weights(self) -> Loaded:
        """All that is known of it, for a process that does not score it."""
        described: Any = torch.nn.Module()
        described.config = getattr(self.model, "config", None)
        return replace(self, model=described, activate=nullcontext)

    @contextmanager
    def active(self) -> Iterator[torch.nn.Module]:
        """The module with exactly this checkpoint switched on, in eval mode."""
        self.model.eval()
        with self.activate(), torch.inference_mode():
            yield self.model


@dataclass(frozen=True, kw_only=True)
class Given(Loading):
    """What the user said about one checkpoint, and about how all are opened.

    ``where`` is the path as it was typed, ``stage`` the ``K[:task]`` of ``PATH@K``.
    """

    where: str
    stage: str | None = None


@dataclass(frozen=True)
class Weights:
    """Full weights: the folder of their config.json, their files, their tensors.

    ``read(meta)`` gives the tensors by the module's names; on the meta device it reads
    headers only. ``folder`` is set when transformers reads the files itself.
    """

    config: Path
    files: tuple[Path, ...]
    read: Callable[[bool], State]
    folder: Path | None = None


@dataclass(frozen=True)
class Adapter:
    """An adapter: what adapter_config.json says, its files, its tensors.

    Tensors go by PEFT's names without the adapter's: ``base_model.model.`` in front,
    ``lora_B.weight`` at the end.
    """

    config: dict[str, Any]
    files: tuple[Path, ...]
    read: Callable[[bool], State]


@dataclass(frozen=True)
class Recipe:
    """How one checkpoint is put together; made from headers, before anything is loaded.

    Attributes
    ----------
    weights
        ``None`` when the weights are the base's.
    base
        Path or ``hf:ORG/NAME`` of the base; for full weights only where a tokenizer
        may be.
    folder
        Where the checkpoint's own tokenizer and ``frozen_noise.safetensors`` may lie.
    trained_on
        ``weights_sha256`` of the base that an adapter was trained on, where its maker
        wrote it down.
    noise_sha256
        SHA-256 of the ``frozen_noise.safetensors`` that belongs to it, where its maker
        wrote that down: without the file it is another model.
    """

    format: str
    source: str
    given: Given
    folder: Path
    weights: Weights | None = None
    adapter: Adapter | None = None
    base: str | None = None
    notes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    trained_on: str | None = None
    noise_sha256: str | None = None


@dataclass(frozen=True)
class Stage:
    """One stage of a series.

    ``label`` is its folder's name, ``path`` its checkpoint, ``task`` the one before
    correction (``PATH@K:task``).
    """

    label: str
    path: Path
    task: Path | None = None


@dataclass(frozen=True)
class Inspection:
    """What ``spark-audit inspect`` prints.

    ``problems`` holds what would make opening, or an audit beside the base that was
    given, fail; it is empty when nothing would. ``opened`` is whether that was tried,
    or follows from headers.
    """

    source: str
    format: str | None
    facts: dict[str, str]
    notes: tuple[str, ...]
    stages: tuple[str, ...]
    problems: tuple[str, ...]
    opened: bool
