"""Checkpoints: whatever somebody saved, opened as exactly what it is or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


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
    notes
        What a reader of the report must know (decisions taken while loading).
    """

    name: str
    source: str
    format: str
    base: str | None
    base_sha256: str | None
    model: torch.nn.Module
    tokenizer: Any
    architecture: str
    usable: np.ndarray
    max_positions: int | None
    dtype: str
    device: str
    weights_sha256: str
    tokenizer_sha256: str
    model_id: str
    notes: tuple[str, ...] = ()
    activate: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)

    @contextmanager
    def active(self) -> Iterator[torch.nn.Module]:
        """The module with exactly this checkpoint switched on, in eval mode."""
        self.model.eval()
        with self.activate(), torch.inference_mode():
            yield self.model
