"""A checkpoint that is open, ready to be scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from spark_audit.checkpoints.server import Server

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
    parameters
        Of the model, without an adapter's; ``None``: not known.
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
    parameters: int | None = None
    base: str | None = None
    base_sha256: str | None = None
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
