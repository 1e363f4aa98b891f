"""A checkpoint on its module, before other weights are derived from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spark_audit.checkpoints import derived
from spark_audit.checkpoints.adapters import AdapterHost, AttachedAdapter
from spark_audit.checkpoints.checkpoint import ModuleFacts
from spark_audit.checkpoints.grown_vocabulary import Growth, notes_on_growth
from spark_audit.checkpoints.remarks import remarks
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.tokenizer import TokenizerRead
from spark_audit.checkpoints.unused_tensors import notes_on


@dataclass(frozen=True)
class OnModule:
    """A checkpoint on its module, before other weights are derived from it.

    Attributes
    ----------
    host
        The module of its full weights.
    checkpoint
        The description of its parts.
    attached
        The adapter on ``host``; ``None``: full weights alone.
    noise
        Shape ``(rows, width)``: noise on the input embeddings.
    tokenizer_read
        Its tokenizer.
    facts
        Properties of the module alone, with this tokenizer.
    growth
        The growth of its vocabulary over the base's; ``None`` without any.
    """

    host: AdapterHost
    checkpoint: StoredCheckpoint
    attached: AttachedAdapter | None
    noise: torch.Tensor | None
    tokenizer_read: TokenizerRead
    facts: ModuleFacts
    growth: Growth | None

    @property
    def adapter_name(self) -> str | None:
        """The name of the adapter on the module, if there is one."""
        return None if self.attached is None else self.attached.name

    @property
    def is_packed(self) -> bool:
        """Return whether only headers of packed (quantised) weights were read.

        Headers show no dtype, and fewer numbers than the model has.
        """
        return self.checkpoint.full_weights.quantised and self.host.ids is None

    @property
    def dtype(self) -> str:
        """The dtype in which it computes."""
        return "auto" if self.is_packed else self.facts.dtype

    @property
    def attention(self) -> str:
        """The implementation of attention that transformers chose."""
        return str(getattr(self.host.model.config, "_attn_implementation", "eager"))

    def notes(self) -> list[str]:
        """Return the notes on it for readers of the report."""
        model = self.host.model
        full_weights = self.checkpoint.full_weights
        notes = [*self.checkpoint.notes, *notes_on(full_weights.unused)]
        if self.attached is not None:
            notes += self.attached.notes
        if self.noise is not None:
            notes.append("the frozen noise next to it is added to input embeddings")
        notes += self.tokenizer_read.notes
        notes.append(f"loaded as {self.dtype}, attention {self.attention}")
        notes += remarks(
            full_weights.architecture,
            model,
            self.tokenizer_read.tokenizer,
            self.facts.usable,
        )
        if self.growth is not None:
            notes += notes_on_growth(
                model,
                self.tokenizer_read.tokenizer,
                self.growth.usable,
                self.growth.added,
            )
        return notes


@dataclass(frozen=True)
class Derivation:
    """A way to derive other weights from a checkpoint's own: rounded, or relearned.

    Attributes
    ----------
    field, value
        Everything except the checkpoint that determines the other weights, and its name
        in the checkpoint's hash.
    note
        A note for readers of the report.
    make
        Makes the weights. It is called when the checkpoint is first scored, because
        stored scores need no weights.
    """

    field: str
    value: str
    note: str
    make: Callable[[], derived.ReplacedWeights]
